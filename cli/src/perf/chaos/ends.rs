//! The two ends of the connection: one sends for a time, the other checks every byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use clap::ValueEnum;
use invar::{Device, Handle, Listener, MemoryRegion, Request, SendComm, Settings};

use super::super::pattern::{Flow, Pattern};
use crate::failure::Failure;
use crate::output::print;

/// Messages under way.
const WINDOW: usize = 8;
/// The time between two lines of the sender.
const SLICE: Duration = Duration::from_millis(500);
/// The longest wait for the peer to connect.
const TIMEOUT: Duration = Duration::from_secs(30);
/// After this idle time an end sleeps for the same time.
const NAP: Duration = Duration::from_millis(1);
const SEED: u64 = 14791;

/// The part of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Send,
    Receive,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Role::Send => "send",
            Role::Receive => "receive",
        }
    }
}

/// The work of an end.
#[derive(Debug)]
pub(in super::super) struct Load<'a> {
    pub(in super::super) devices: &'a str,
    /// Bytes of a message.
    pub(in super::super) size: u32,
    /// The time for which the sender sends.
    pub(in super::super) time: Duration,
}

impl Load<'_> {
    /// The place of a message in the region.
    fn place(&self, message: u64) -> std::ops::Range<usize> {
        let size = self.size as usize;
        let at = (message % WINDOW as u64) as usize * size;
        at..at + size
    }
}

/// A part of the time, as the sender sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) time: Duration,
    pub(super) bytes: u64,
    /// The longest time between two messages that were done.
    pub(super) gap: Duration,
}

impl Slice {
    /// Gigabytes in a second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.time.as_secs_f64().max(1e-9)
    }

    pub(super) fn add(&mut self, other: &Slice) {
        self.time += other.time;
        self.bytes += other.bytes;
        self.gap = self.gap.max(other.gap);
    }

    fn line(&self) -> String {
        format!("{} {} {}", self.time.as_micros(), self.bytes, self.gap.as_micros())
    }

    pub(super) fn parse(line: &str) -> Option<Slice> {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let [time, bytes, gap] = std::array::from_fn(|_| numbers.next().and_then(Result::ok));
        let (time, gap) = (Duration::from_micros(time?), Duration::from_micros(gap?));
        Some(Slice { time, bytes: bytes?, gap })
    }
}

/// Runs an end.
pub(in super::super) fn run(role: Role, load: &Load, settings: &Settings) -> Result<(), Failure> {
    let device = Device::open_for(&Device::find(load.devices, settings)?, settings)?;
    let region = MemoryRegion::new(&device, WINDOW * load.size as usize)?;
    match role {
        Role::Send => send(&device, &region, load, settings),
        Role::Receive => receive(&device, &region, load, settings),
    }
}

fn send(
    device: &Device,
    region: &MemoryRegion,
    load: &Load,
    settings: &Settings,
) -> Result<(), Failure> {
    let Load { size, time, .. } = *load;
    let mut text = String::new();
    io::stdin().read_line(&mut text).map_err(|error| Failure::io("reading the handle", &error))?;
    let mut comm = SendComm::connect(device, &parse(text.trim())?, settings)?.wait()?;
    let pattern = Pattern::new(SEED, 0, Flow::ToServer, size);
    let mut under_way: VecDeque<Request> = VecDeque::new();
    let (mut written, mut started, mut slice) = (0, 0, Slice::default());
    let begin = Instant::now();
    let (mut last_line, mut last_done) = (begin, begin);
    while begin.elapsed() < time || !under_way.is_empty() {
        if begin.elapsed() < time && under_way.len() < WINDOW {
            if written == started {
                pattern.fill(region, load.place(started).start, started)?;
                written += 1;
            }
            if let Some(request) = comm.isend(region, load.place(started), 0)? {
                under_way.push_back(request);
                started += 1;
            }
        }
        while let Some(first) = under_way.front() {
            let is_done = comm.test(first)?.is_some();
            let now = Instant::now();
            slice.gap = slice.gap.max(now - last_done);
            if !is_done {
                nap(now - last_done);
                break;
            }
            under_way.pop_front();
            slice.bytes += u64::from(size);
            last_done = now;
        }
        if last_line.elapsed() >= SLICE {
            slice.time = last_line.elapsed();
            last_line = Instant::now();
            say(std::mem::take(&mut slice).line())?;
        }
    }
    slice.time = last_line.elapsed();
    say(slice.line())?;
    // An empty message ends the stream.
    comm.send(region, 0..0, 0, TIMEOUT)?;
    Ok(())
}

fn receive(
    device: &Device,
    region: &MemoryRegion,
    load: &Load,
    settings: &Settings,
) -> Result<(), Failure> {
    let size = load.size;
    let listener = Listener::bind(device, settings)?;
    say(listener.handle().hex())?;
    let mut comm = listener.accept_within(TIMEOUT)?;
    let pattern = Pattern::new(SEED, 0, Flow::ToServer, size);
    let mut under_way: VecDeque<Request> = VecDeque::new();
    let (mut posted, mut done, mut wrong) = (0, 0, 0);
    let (mut last_done, mut end) = (Instant::now(), None);
    loop {
        if under_way.len() < WINDOW && end.is_none() {
            match comm.irecv(&[(region, load.place(posted), 0)]) {
                Ok(Some(request)) => {
                    under_way.push_back(request);
                    posted += 1;
                }
                Ok(None) => {}
                // If the sender has closed, its last message is one of those under way.
                Err(error) => end = Some(error),
            }
        }
        let Some(first) = under_way.front() else {
            end.take().map_or(Ok(()), Err)?;
            continue;
        };
        let Some(received) = comm.test(first)? else {
            nap(last_done.elapsed());
            continue;
        };
        last_done = Instant::now();
        under_way.pop_front();
        if received.sizes().iter().all(|size| *size == 0) {
            return say(format_args!("{} {wrong}", done * u64::from(size)));
        }
        wrong += pattern.wrong(region, load.place(done).start, done)?;
        done += 1;
    }
}

/// Leaves the processor to others for a moment if nothing was done for `idle`. The NIC may be software that needs
/// the processor.
fn nap(idle: Duration) {
    if idle >= NAP {
        thread::sleep(NAP);
    }
}

/// Prints a line for the first process.
fn say(text: impl fmt::Display) -> Result<(), Failure> {
    print(io::stdout(), "to the first process", &text.to_string())
}

/// Reads the handle that the receiving end has printed.
fn parse(text: &str) -> Result<Handle, Failure> {
    Handle::from_hex(text).map_err(|error| Failure::new(format_args!("the receiving end: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_reads_as_it_was_written() {
        let slice = Slice {
            time: Duration::from_micros(500_123),
            bytes: 7 << 20,
            gap: Duration::from_micros(31),
        };
        assert_eq!(Slice::parse(&slice.line()), Some(slice));
        assert!(["", "1 2", "1 x 3"].iter().all(|line| Slice::parse(line).is_none()));
    }
}
