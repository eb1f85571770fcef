//! `invar perf --chaos`: a connection over two links that go down and up at random.
//!
//! [`hosts`] makes two hosts out of network namespaces, with two links between them. [`ends`] runs on each of
//! them. This process takes links down, and prints what the ends tell.

mod ends;
mod hosts;
mod plot;

use std::ffi::c_int;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem;
use std::ops::Range;
use std::process::ExitCode;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Args;
use super::latency::{Latency, Recorder};
use crate::failure::{Failure, WRONG};
use crate::output::{OutputFile, print};
use crate::parent::{ChildProcess, await_children};
use ends::Slice;
pub(super) use ends::{Load, Role, run as run_end};
use hosts::{Hosts, LINKS};

/// How long the links go down and up, if `-D` does not set the time.
const DURATION: Duration = Duration::from_secs(20);
/// How long a link stays up and down, in milliseconds.
const UP_MS: Range<u64> = 700..2500;
const DOWN_MS: Range<u64> = 600..1800;
/// The width of the picture of the bandwidth.
const BAR: usize = 40;

/// The links, one of which goes down and up again and again.
struct Links {
    up: [bool; LINKS],
    next: Duration,
    /// The link that is down.
    down: Option<usize>,
    outages: Vec<Outage>,
}

/// A time in which a link was down.
struct Outage {
    link: usize,
    time: Range<Duration>,
}

impl Links {
    fn new() -> Self {
        Links { up: [true; LINKS], next: Duration::from_secs(1), down: None, outages: Vec::new() }
    }

    /// Takes a link down or up, if its time has come.
    fn step(&mut self, hosts: &Hosts, elapsed: Duration) -> Result<(), Failure> {
        if elapsed < self.next {
            return Ok(());
        }
        let pause = match self.down.take() {
            Some(link) => {
                self.set(hosts, link, true)?;
                if let Some(outage) = self.outages.last_mut() {
                    outage.time.end = elapsed;
                }
                UP_MS
            }
            None => {
                let link = random(0..LINKS as u64) as usize;
                self.set(hosts, link, false)?;
                self.down = Some(link);
                self.outages.push(Outage { link, time: elapsed..Duration::MAX });
                DOWN_MS
            }
        };
        self.next = elapsed + Duration::from_millis(random(pause));
        Ok(())
    }

    fn set(&mut self, hosts: &Hosts, link: usize, up: bool) -> Result<(), Failure> {
        self.up[link] = up;
        hosts.set_link(link, up)
    }
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: zero is a valid action, and the call writes over it.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the call changes nothing, and there is room for the action.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Measures for the time that the user names, and prints what happens.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let duration = args.duration.unwrap_or(DURATION);
    let plot = args.plot.as_deref().map(OutputFile::open).transpose()?;
    await_children()?;
    let stop = Arc::new(AtomicBool::new(false));
    // `nohup` starts programs with SIGHUP ignored.
    let signals = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
    for signal in signals {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::io("catching signals", &error))?;
    }
    let hosts = Hosts::new()?;
    let mut receiver = End::start(&hosts, 1, Role::Receive, duration)?;
    let handle = receiver.line()?;
    let mut sender = End::start(&hosts, 0, Role::Send, duration)?;
    sender.tell(&handle)?;
    let slices = sender.slices();
    say(format_args!(
        "One connection over {LINKS} links, one of which goes down and up at random for {} s.\n\n    \
         time  links      GB/s  longest gap",
        duration.as_secs_f64()
    ))?;
    let (mut links, mut sum, mut rates) = (Links::new(), Slice::default(), Vec::new());
    let mut gaps = Vec::new();
    let mut fastest = 0.0_f64;
    let begin = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match slices.recv_timeout(Duration::from_millis(10)) {
            Ok(slice) => {
                sum.add(&slice);
                let rate = slice.rate();
                fastest = fastest.max(rate);
                rates.push((sum.time, rate));
                gaps.push((sum.time, slice.gap));
                say(row(sum.time, &links.up, &slice, fastest))?;
            }
            Err(RecvTimeoutError::Timeout) => links.step(&hosts, begin.elapsed())?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    (0..LINKS).try_for_each(|link| links.set(&hosts, link, true))?;
    let is_cut_short = stop.load(Ordering::Relaxed);
    if !is_cut_short {
        sender.end("the sender")?;
    }
    let (mut checked, mut wrong) = (0, 0);
    if !is_cut_short {
        let told = receiver.line()?;
        let mut numbers = told.split(' ').map(str::parse::<u64>);
        if let (Some(Ok(all)), Some(Ok(bad))) = (numbers.next(), numbers.next()) {
            (checked, wrong) = (all, bad);
        }
        receiver.end("the receiver")?;
    }
    say(format_args!(
        "\noutages {}, {}, {:.2} GB/s on average, {checked} bytes checked, {wrong} \
         wrong",
        links.outages.len(),
        describe_gaps(&gaps, &links.outages),
        sum.rate()
    ))?;
    if let Some(mut file) = plot {
        plot::write(&mut file, &rates, &links.outages)?;
    }
    let is_well = wrong == 0 && (checked >= sum.bytes || is_cut_short);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Percentiles of the longest gaps of the outages. `gaps` has the end and the gap of each slice. An outage counts until
/// the next begins.
fn describe_gaps(gaps: &[(Duration, Duration)], outages: &[Outage]) -> String {
    let begins = || outages.iter().map(|outage| outage.time.start);
    let ends = begins().skip(1).chain([Duration::MAX]);
    let mut longest = Recorder::new();
    for (begin, end) in begins().zip(ends) {
        let within = gaps.iter().filter(|(at, _)| *at > begin && *at <= end);
        longest.record(within.map(|(_, gap)| *gap).max().unwrap_or_default());
    }
    let Latency { p50, p99, max, .. } = longest.latency();
    let [p50, p99, max] = [p50, p99, max].map(|us| us / 1e3);
    format!("longest gap of an outage {p50:.0} ms (p50) {p99:.0} ms (p99) {max:.0} ms (max)")
}

/// A row of the picture.
fn row(time: Duration, up: &[bool; LINKS], slice: &Slice, fastest: f64) -> String {
    let mut line = format!("{:6.1} s  ", time.as_secs_f64());
    up.iter().for_each(|up| line += if *up { "up   " } else { "DOWN " });
    let bar = (slice.rate() / fastest.max(1e-9) * BAR as f64) as usize;
    let gap_ms = slice.gap.as_secs_f64() * 1e3;
    // Writing to a string does not fail.
    let _ = write!(line, "{:5.2}  {gap_ms:8.1} ms  {}", slice.rate(), "#".repeat(bar.min(BAR)));
    line
}

/// Prints to stdout.
fn say(text: impl fmt::Display) -> Result<(), Failure> {
    print(io::stdout(), "the results", &text.to_string())
}

fn random(range: Range<u64>) -> u64 {
    let value = RandomState::new().hash_one(0);
    range.start + value % (range.end - range.start).max(1)
}

/// The process of an end. Dropping this value ends the process by force.
struct End {
    child: ChildProcess,
    stdout: Option<BufReader<std::process::ChildStdout>>,
}

impl End {
    fn start(hosts: &Hosts, host: usize, role: Role, time: Duration) -> Result<Self, Failure> {
        let mut child = ChildProcess(hosts.start(host, role, time)?);
        let stdout = child.0.stdout.take().map(BufReader::new);
        Ok(End { child, stdout })
    }

    /// Reads a line of the end.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        let stdout = self.stdout.as_mut();
        let read = stdout.map_or(Ok(0), |stdout| stdout.take(4096).read_line(&mut line));
        match read {
            // The end has said why on stderr.
            Ok(0) => Err(Failure::new("an end of the connection has failed")),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(Failure::io("reading from an end", &error)),
        }
    }

    fn tell(&mut self, text: &str) -> Result<(), Failure> {
        let stdin = self.child.0.stdin.take();
        let told =
            stdin.map_or(Ok(()), |mut stdin| stdin.write_all(format!("{text}\n").as_bytes()));
        told.map_err(|error| Failure::io("writing to an end", &error))
    }

    /// The parts of the time, as the sender tells them.
    fn slices(&mut self) -> Receiver<Slice> {
        let (to, from) = mpsc::channel();
        let stdout = self.stdout.take();
        thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
            for slice in lines.filter_map(|line| Slice::parse(&line)) {
                if to.send(slice).is_err() {
                    return;
                }
            }
        });
        from
    }

    fn end(mut self, name: &str) -> Result<(), Failure> {
        let status =
            self.child.0.wait().map_err(|error| Failure::io("waiting for an end", &error))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(format_args!("{name} failed: {status}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_has_the_longest_gap_until_the_next_begins() {
        let ms = Duration::from_millis;
        let gaps = [(500, 900), (1000, 2), (1500, 300), (2000, 5), (2500, 7), (3000, 40)];
        let gaps = gaps.map(|(at, gap)| (ms(at), ms(gap)));
        let outages = [1100, 2100, 2900].map(|at| Outage { link: 0, time: ms(at)..ms(at + 50) });
        let told = |outages: &[Outage]| describe_gaps(&gaps, outages);
        assert_eq!(
            told(&outages),
            "longest gap of an outage 40 ms (p50) 300 ms (p99) 300 ms (max)"
        );
        assert_eq!(told(&[]), "longest gap of an outage 0 ms (p50) 0 ms (p99) 0 ms (max)");
    }
}
