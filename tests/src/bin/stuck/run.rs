//! Runs the cases: starts the processes, brings the fault about, and reads what they say.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStderr, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use invar::{Hub, PortRange};
use invar_testkit::child::Killed;
use invar_testkit::namespaces::Hosts;
use invar_testkit::skip::{self, NAMESPACES};
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Act, CASES, Case, Kind};
use crate::family::{ADDRESSES, goes_on, is_there, write_whole};
use crate::rank::RANKS;

/// Time after which the processes report a stall.
const STALL: Duration = Duration::from_secs(2);
/// Time after that in which all must have named the culprit.
const WITHIN: Duration = Duration::from_secs(5);
/// Share of the cases that must be judged right.
const RIGHT_MIN: f64 = 0.95;

/// Runs the cases whose names contain a text, and prints the table.
pub(crate) fn run_all(only: &str) -> ExitCode {
    println!("{:<42} {:>8}  said", "fault", "seconds");
    let (mut right, mut count, mut is_failed) = (0, 0, false);
    let mut skipped = BTreeMap::<String, Vec<&str>>::new();
    for case in CASES.iter().filter(|case| case.name.contains(only)) {
        let outcome = match run(case) {
            Ok(outcome) => outcome,
            Err(error) => {
                println!("{:<42} skipped", case.name);
                is_failed |= skip::allow(NAMESPACES).is_err();
                skipped.entry(error).or_default().push(case.name);
                continue;
            }
        };
        count += 1;
        right += u32::from(outcome.is_right);
        is_failed |= outcome.is_fatal;
        let mark = if outcome.is_right { "" } else { " WRONG" };
        println!("{:<42} {:>8.1} {mark} {}", case.name, outcome.after.as_secs_f64(), outcome.said);
    }
    println!("{}", summary(right, count, &skipped));
    match count > 0 && !is_failed && f64::from(right) >= RIGHT_MIN * f64::from(count) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// How many cases were judged right, and how many were skipped for each reason.
fn summary(right: u32, count: u32, skipped: &BTreeMap<String, Vec<&str>>) -> String {
    let mut text =
        format!("{right} of {count} right, {} skipped", skipped.values().flatten().count());
    for (reason, cases) in skipped {
        text += &format!("\nskipped {}: {reason}: {}", cases.len(), cases.join("; "));
    }
    text
}

struct Outcome {
    is_right: bool,
    /// Whether this outcome alone fails the run: somebody was blamed wrongly, or a harmless fault did harm.
    is_fatal: bool,
    /// Time from the fault until all had said so.
    after: Duration,
    said: String,
}

fn run(case: &Case) -> Result<Outcome, String> {
    let hosts = Hosts::new(1500)?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let dir = folder.path();
    let (lines, said) = channel();
    let hub = match case.kind {
        Kind::Ends(_) | Kind::Chain(_) => None,
        _ => Some(hosts.call(0, || hub(dir))),
    };
    let processes = start(case, &hosts, dir, &lines);
    for name in names(case) {
        if !is_there(&dir.join(format!("works-{name}"))) {
            let lines: Vec<String> =
                said.try_iter().map(|(at, line)| format!("{at}: {line}")).collect();
            let said = format!("{name} does not come to work: {}", lines.join("; "));
            return Ok(Outcome { is_right: false, is_fatal: false, after: Duration::ZERO, said });
        }
    }
    let pids: Vec<u32> = processes.iter().map(|process| process.id()).collect();
    write_whole(&dir.join("fault"), b"");
    let began = Instant::now();
    let silent = act(case, &hosts, &pids)?;
    let mut outcome = listen(case, &said, &pids, &silent, began);
    if case.is_none && outcome.is_right {
        // Nobody has complained, and nobody may have stopped either.
        if let Some(name) = names(case).iter().find(|name| !goes_on(dir, name)) {
            let said = format!("{name} says nothing and does not go on");
            outcome = Outcome { is_right: false, is_fatal: true, said, ..outcome };
        }
    }
    for at in silent {
        let _ = signal(pids[at], Signal::CONT);
    }
    drop(processes);
    drop(hub);
    Ok(outcome)
}

/// Does what the processes of a case do not do themselves. Returns those that can say nothing any more.
fn act(case: &Case, hosts: &Hosts, pids: &[u32]) -> Result<Vec<usize>, String> {
    // By now both ends know each other's process, and work at full speed, so that a stop hits any place of their code.
    thread::sleep(Duration::from_millis(200));
    match case.act {
        Act::Nothing => Ok(vec![]),
        Act::Stop(at) => {
            signal(pids[at], Signal::STOP)?;
            Ok(vec![at])
        }
        Act::StopHost(host) => {
            let there = (0..pids.len()).filter(|at| host_of(case, *at) == host);
            let stopped: Vec<usize> = there.collect();
            stopped.iter().try_for_each(|at| signal(pids[*at], Signal::STOP))?;
            hosts.filter(host, "drop")?;
            Ok(stopped)
        }
        Act::Die(at) => Ok(vec![at]),
        Act::Ip(host, commands) => {
            commands.iter().try_for_each(|command| hosts.ip(host, command).map(drop))?;
            Ok(vec![])
        }
        Act::Lose(host, per_mille) => hosts.lose(host, per_mille).map(|()| vec![]),
        Act::Filter(host, rule) => hosts.filter(host, rule).map(|()| vec![]),
    }
}

fn signal(pid: u32, signal: Signal) -> Result<(), String> {
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, signal).map_err(|error| error.to_string())
}

/// The host of a process.
fn host_of(case: &Case, at: usize) -> usize {
    match case.kind {
        Kind::Ends(_) => at,
        Kind::Chain(_) => at % 2,
        Kind::Ranks(_) => at / 2,
        Kind::Shared => 0,
    }
}

/// Reads what the processes say, until all but the silent ones have said what they must.
fn listen(
    case: &Case,
    said: &Receiver<(usize, String)>,
    pids: &[u32],
    silent: &[usize],
    began: Instant,
) -> Outcome {
    let expand = |part: &str| {
        let with_pid = |text: String, (at, pid): (usize, &u32)| {
            text.replace(&format!("PID{at}"), &pid.to_string())
        };
        pids.iter().enumerate().fold(part.to_owned(), with_pid)
    };
    let ends = ["the sender (pid PID0 on ", "the receiver (pid PID1 on "];
    let parts = |at: usize| -> Vec<String> {
        let of_end = |part: &&str| match case.kind {
            Kind::Ends(_) => part.replace("OWN", ends[at]).replace("PEER", ends[1 - at]),
            _ => (*part).to_owned(),
        };
        case.said.iter().map(of_end).map(|part| expand(&part)).collect()
    };
    // A process may enter its last good operation after the fault has begun.
    let deadline = began + STALL + WITHIN;
    let mut is_done: Vec<bool> = (0..pids.len()).map(|at| silent.contains(&at)).collect();
    let (mut last, mut wrong) = (String::new(), None);
    let mut sentences = Vec::new();
    while !is_done.iter().all(|done| *done) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((at, line)) = said.recv_timeout(left) else { break };
        let has = |part: &String| part.split('|').any(|part| line.contains(part));
        let is_right = parts(at).iter().all(has);
        if case.is_none || !is_right && is_verdict(&line) {
            wrong.get_or_insert(line);
        } else if is_right {
            if !is_done[at] {
                sentences.push(without_times(&line));
            }
            is_done[at] = true;
            last = line;
        }
    }
    if case.is_alike && sentences.windows(2).any(|two| two[0] != two[1]) {
        wrong.get_or_insert(format!("two sentences: {}", sentences.join(" | ")));
    }
    let all = is_done.iter().all(|done| *done) || case.is_none;
    let text = wrong.clone().unwrap_or(last);
    Outcome {
        is_right: all && wrong.is_none(),
        is_fatal: wrong.is_some(),
        after: began.elapsed(),
        said: if text.is_empty() { "nothing".to_owned() } else { text },
    }
}

/// The sentence of a verdict: what follows the names of the ends, with `T` for each time.
fn without_times(line: &str) -> String {
    let sentence = line.rsplit_once(": the ").map_or(line, |(_, sentence)| sentence);
    let is_time = |word: &str| word.parse::<f64>().is_ok() && word.contains('.');
    let words = sentence.split(' ').map(|word| if is_time(word) { "T" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a line blames somebody.
fn is_verdict(line: &str) -> bool {
    line.starts_with("invar_core::stall") || line.starts_with("invar::communicator::board")
}

fn names(case: &Case) -> Vec<String> {
    match case.kind {
        Kind::Ends(_) => ["send", "recv"].map(str::to_owned).into(),
        Kind::Chain(_) => ["send", "relay", "last"].map(str::to_owned).into(),
        _ => (0..RANKS).map(|rank| rank.to_string()).collect(),
    }
}

fn start(case: &Case, hosts: &Hosts, dir: &Path, lines: &Sender<(usize, String)>) -> Vec<Killed> {
    let program = std::env::current_exe().expect("this program");
    let names = names(case);
    let start = |(at, name): (usize, &String)| {
        let (what, transport) = match case.kind {
            Kind::Ends(transport) | Kind::Chain(transport) => ("end", transport),
            Kind::Ranks(transport) => ("rank", transport),
            Kind::Shared => ("rank", "soft"),
        };
        let mut command = Command::new(&program);
        command.arg(what).arg(dir).args([name, case.fault]);
        command.env("INVAR_STALL_MS", STALL.as_millis().to_string());
        command.env("INVAR_TRANSPORT", transport).env("NCCL_SOCKET_IFNAME", "=v0");
        if let Kind::Ranks(_) = case.kind {
            command.env("NCCL_SHM_DISABLE", "1");
        }
        command.stderr(Stdio::piped());
        let child = hosts.call(host_of(case, at), || command.spawn()).expect("a process");
        let mut child = Killed(child);
        let (stderr, lines) = (child.stderr.take().expect("a pipe"), lines.clone());
        thread::spawn(move || forward(at, stderr, &lines));
        child
    };
    names.iter().enumerate().map(start).collect()
}

fn forward(at: usize, stderr: ChildStderr, lines: &Sender<(usize, String)>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if lines.send((at, line)).is_err() {
            return;
        }
    }
}

fn hub(dir: &Path) -> Hub {
    let at = (ADDRESSES[0].parse::<std::net::Ipv4Addr>().expect("an address"), 0).into();
    let hub = Hub::listen(at, PortRange::ANY, RANKS, None, Duration::from_secs(60));
    let hub = hub.expect("a hub");
    write_whole(&dir.join("id"), hub.id().as_bytes());
    hub
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_cases_are_counted_apart_from_right_ones_and_say_why() {
        let skipped = BTreeMap::from([
            ("no nft".to_owned(), vec!["5 % lost", "TCP lost"]),
            ("not root".to_owned(), vec!["a wrong tag"]),
        ]);
        let expected = "7 of 8 right, 3 skipped\nskipped 2: no nft: 5 % lost; TCP lost\n\
                        skipped 1: not root: a wrong tag";
        assert_eq!(summary(7, 8, &skipped), expected);
        assert_eq!(summary(8, 8, &BTreeMap::new()), "8 of 8 right, 0 skipped");
    }
}
