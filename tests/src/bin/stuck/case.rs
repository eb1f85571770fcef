//! The cases: each fault, and what all processes must say.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use invar::{Hub, PortRange};
use invar_testkit::namespaces::Hosts;
use rustix::process::{Pid, Signal, kill_process};

use crate::family::{ADDRESSES, is_there, write_whole};
use crate::rank::{CULPRIT, RANKS};

/// Time after which the processes report a stall.
const STALL: Duration = Duration::from_secs(2);
/// Time after that in which all must have named the culprit.
const WITHIN: Duration = Duration::from_secs(5);
/// Share of the cases that must be judged right.
const RIGHT_MIN: f64 = 0.95;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Two ends of a connection over the software NIC or TCP, on two hosts.
    Ends(&'static str),
    /// Four ranks over the software NIC or TCP, two on each of two hosts.
    Ranks(&'static str),
    /// Four ranks of one host, which share memory.
    Shared,
}

/// What the orchestrator does, beside the fault that the processes know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    /// Stops a process.
    Stop(usize),
    /// Runs `ip` on a host.
    Ip(usize, &'static [&'static str]),
}

struct Case {
    name: &'static str,
    kind: Kind,
    fault: &'static str,
    act: Act,
    /// The text that a line of each process must contain. `PID0` stands for the number of process 0, and so on,
    /// `OWN` and `PEER` for the end of the process and for the other one, and `|` parts alternatives.
    said: &'static [&'static str],
    /// Whether both ends must say the same, but for the times.
    is_alike: bool,
    /// Whether the fault is one that no process must report.
    is_none: bool,
}

const fn case(
    name: &'static str,
    kind: Kind,
    fault: &'static str,
    said: &'static [&'static str],
) -> Case {
    let is_alike = matches!(kind, Kind::Ends(_));
    Case { name, kind, fault, act: Act::Nothing, said, is_alike, is_none: false }
}

const fn acted(name: &'static str, kind: Kind, act: Act, said: &'static [&'static str]) -> Case {
    Case { name, kind, fault: "none", act, said, is_alike: false, is_none: false }
}

const NIC_ENDS: Kind = Kind::Ends("soft");
const TCP_ENDS: Kind = Kind::Ends("socket");
const SOFT: Kind = Kind::Ranks("soft");
const TCP: Kind = Kind::Ranks("socket");
/// The culprit among the ranks, as processes name it.
const RANK: &str = "rank 2 (pid PID2 on ";
const STOPPED: &[&str] = &["pid PID2 on ", "does not answer"];
const ROOTS: &[&str] = &[RANK, "from rank 1, but rank", "from rank 2"];
/// These faults are mostly errors at once, since messages of other lengths meet.
const UNEQUAL: &[&str] = &[
    "error: rank 1|error: rank 2|error: rank 3|rank 2 (pid PID2 on ",
    "all ranks make the same calls|all ranks must make the same calls",
];
/// Packets go to an address that nobody has.
const LOSE_UDP: &[&str] = &[
    "neigh replace 192.0.2.99 lladdr 02:00:00:00:00:99 dev v0 nud permanent",
    "route add default via 192.0.2.99 dev v0 table 77",
    "rule add pref 1 ipproto udp lookup 77",
    "route flush cache",
];
const LOSE_ALL: [&[&str]; 2] = [
    &["neigh replace 192.0.2.2 lladdr 02:00:00:00:00:99 dev v0 nud permanent"],
    &["neigh replace 192.0.2.1 lladdr 02:00:00:00:00:99 dev v0 nud permanent"],
];

const CASES: &[Case] = &[
    case(
        "a receive is never posted",
        NIC_ENDS,
        "no receive",
        &["the receiver (pid PID1 on ", "has posted no receive"],
    ),
    case(
        "a receiver never tests",
        NIC_ENDS,
        "no test",
        &["the receiver (pid PID1 on ", "has not called test"],
    ),
    case(
        "a receiver in an endless loop",
        NIC_ENDS,
        "endless loop",
        &["the receiver (pid PID1 on ", "has posted no receive", "last call was"],
    ),
    case(
        "a sender never sends",
        NIC_ENDS,
        "no send",
        &["the sender (pid PID0 on ", "has sent nothing"],
    ),
    case(
        "a sender never tests",
        NIC_ENDS,
        "no test of sends",
        &["the sender (pid PID0 on ", "has not called test"],
    ),
    case("a wrong tag", NIC_ENDS, "other tag", &["sends with tag 0x51", "has tag 0x52"]),
    case("a group without one of its sends", NIC_ENDS, "group", &["lacks 1 of the sends", "PID0"]),
    acted(
        "SIGSTOP of the receiver",
        NIC_ENDS,
        Act::Stop(1),
        &["the receiver (pid PID1 on ", "it is stopped"],
    ),
    acted(
        "SIGSTOP of the sender",
        NIC_ENDS,
        Act::Stop(0),
        &["the sender (pid PID0 on ", "it is stopped"],
    ),
    acted(
        "UDP lost towards the receiver",
        NIC_ENDS,
        Act::Ip(0, LOSE_UDP),
        &["the network from the sender"],
    ),
    acted(
        "UDP lost towards the sender",
        NIC_ENDS,
        Act::Ip(1, LOSE_UDP),
        &["the network from the receiver"],
    ),
    acted(
        "all lost towards the receiver",
        NIC_ENDS,
        Act::Ip(0, LOSE_ALL[0]),
        &["the host of PEER|the network from the sender"],
    ),
    acted(
        "port down at the receiver",
        NIC_ENDS,
        Act::Ip(1, &["link set v0 down"]),
        // The end of a veth pair whose other end is down has no carrier.
        &["the port of OWN|the host of the receiver (pid PID1 on "],
    ),
    case(
        "a receive is never posted, TCP",
        TCP_ENDS,
        "no receive",
        &["the receiver (pid PID1 on ", "has posted no receive"],
    ),
    case(
        "a receiver never tests, TCP",
        TCP_ENDS,
        "no test",
        &["the receiver (pid PID1 on ", "has made no call"],
    ),
    case(
        "a sender never sends, TCP",
        TCP_ENDS,
        "no send",
        &["the sender (pid PID0 on ", "has sent nothing"],
    ),
    case(
        "a sender never tests, TCP",
        TCP_ENDS,
        "no test of sends",
        &["the sender (pid PID0 on ", "has not called test"],
    ),
    case("a wrong tag, TCP", TCP_ENDS, "other tag", &["sends with tag 0x51", "has tag 0x52"]),
    acted(
        "SIGSTOP of the receiver, TCP",
        TCP_ENDS,
        Act::Stop(1),
        &["the receiver (pid PID1 on ", "it is stopped"],
    ),
    acted(
        "SIGSTOP of the sender, TCP",
        TCP_ENDS,
        Act::Stop(0),
        &["the sender (pid PID0 on ", "it is stopped"],
    ),
    acted(
        "all lost towards the receiver, TCP",
        TCP_ENDS,
        Act::Ip(0, LOSE_ALL[0]),
        &["the host of PEER|the network from the sender"],
    ),
    Case { is_none: true, ..case("a slow receiver, TCP", TCP_ENDS, "slow receiver", &[]) },
    Case { is_none: true, ..case("a slow receiver", NIC_ENDS, "slow receiver", &[]) },
    case(
        "a rank does not enter, shared memory",
        Kind::Shared,
        "not entered",
        &[RANK, "has not entered"],
    ),
    case("a rank does not enter, NIC", SOFT, "not entered", &[RANK, "has not entered"]),
    case("a rank does not enter, TCP", TCP, "not entered", &[RANK, "has not entered"]),
    case("a rank in an endless loop", SOFT, "endless loop", &[RANK, "has not entered"]),
    acted("SIGSTOP of a rank, shared memory", Kind::Shared, Act::Stop(2), STOPPED),
    acted("SIGSTOP of a rank, NIC", SOFT, Act::Stop(2), STOPPED),
    acted("SIGSTOP of a rank, TCP", TCP, Act::Stop(2), STOPPED),
    case("unequal roots, shared memory", Kind::Shared, "other root", ROOTS),
    case("unequal roots, NIC", SOFT, "other root", ROOTS),
    case("unequal counts", SOFT, "other count", UNEQUAL),
    case("unequal order", TCP, "other order", UNEQUAL),
    case("a send without its receive", Kind::Shared, "send without recv", &[RANK]),
    acted(
        "UDP lost between ranks",
        SOFT,
        Act::Ip(0, LOSE_UDP),
        &["the network from |does not arrive at rank"],
    ),
];

/// Runs the cases whose names contain a text, and prints the table.
pub(crate) fn run_all(only: &str) -> ExitCode {
    println!("{:<42} {:>8}  said", "fault", "seconds");
    let (mut right, mut count, mut is_wrong) = (0, 0, false);
    for case in CASES.iter().filter(|case| case.name.contains(only)) {
        let outcome = match run(case) {
            Ok(outcome) => outcome,
            Err(error) => {
                println!("{:<42} skipped: {error}", case.name);
                continue;
            }
        };
        count += 1;
        right += u32::from(outcome.is_right);
        is_wrong |= outcome.blames_wrongly;
        let mark = if outcome.is_right { "" } else { " WRONG" };
        println!("{:<42} {:>8.1} {mark} {}", case.name, outcome.after.as_secs_f64(), outcome.said);
    }
    println!("{right} of {count} right");
    match count > 0 && !is_wrong && f64::from(right) >= RIGHT_MIN * f64::from(count) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

struct Outcome {
    is_right: bool,
    blames_wrongly: bool,
    /// Time from the fault until all had said so.
    after: Duration,
    said: String,
}

/// The processes of a case. They are killed when this value is dropped.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A directory that goes with the case.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(case: &Case) -> Result<Outcome, String> {
    let hosts = Hosts::new(1500)?;
    let dir = Dir(std::env::temp_dir().join(format!("stuck-{}", std::process::id())));
    let _ = fs::remove_dir_all(&dir.0);
    fs::create_dir(&dir.0).map_err(|error| error.to_string())?;
    let (lines, said) = channel();
    let hub = match case.kind {
        Kind::Ends(_) => None,
        _ => Some(hosts.call(0, || hub(&dir.0))),
    };
    let processes = Processes(start(case, &hosts, &dir.0, &lines));
    for name in names(case) {
        if !is_there(&dir.0.join(format!("works-{name}"))) {
            let lines: Vec<String> =
                said.try_iter().map(|(at, line)| format!("{at}: {line}")).collect();
            let said = format!("{name} does not come to work: {}", lines.join("; "));
            return Ok(Outcome {
                is_right: false,
                blames_wrongly: false,
                after: Duration::ZERO,
                said,
            });
        }
    }
    let pids: Vec<u32> = processes.0.iter().map(Child::id).collect();
    write_whole(&dir.0.join("fault"), b"");
    let began = Instant::now();
    let mut stopped = None;
    match case.act {
        Act::Nothing => {}
        Act::Stop(at) => {
            // The processes work at full speed, so the stop hits any place of their code.
            thread::sleep(Duration::from_millis(100));
            let pid = Pid::from_raw(pids[at] as i32).expect("a process");
            kill_process(pid, Signal::STOP).map_err(|error| error.to_string())?;
            stopped = Some(at);
        }
        Act::Ip(host, commands) => {
            for command in commands {
                hosts.ip(host, command)?;
            }
        }
    }
    let outcome = listen(case, &said, &pids, stopped, began);
    if let Some(pid) = stopped.and_then(|at| Pid::from_raw(pids[at] as i32)) {
        let _ = kill_process(pid, Signal::CONT);
    }
    drop(processes);
    drop(hub);
    Ok(outcome)
}

/// Reads what the processes say, until all but the stopped one have said what they must.
fn listen(
    case: &Case,
    said: &Receiver<(usize, String)>,
    pids: &[u32],
    stopped: Option<usize>,
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
    let mut is_done: Vec<bool> = (0..pids.len()).map(|at| stopped == Some(at)).collect();
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
        blames_wrongly: wrong.is_some(),
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
        _ => (0..RANKS).map(|rank| rank.to_string()).collect(),
    }
}

fn start(case: &Case, hosts: &Hosts, dir: &Path, lines: &Sender<(usize, String)>) -> Vec<Child> {
    let program = std::env::current_exe().expect("this program");
    let names = names(case);
    let start = |(at, name): (usize, &String)| {
        let (host, what, transport) = match case.kind {
            Kind::Ends(transport) => (at, "end", transport),
            Kind::Ranks(transport) => (at / 2, "rank", transport),
            Kind::Shared => (0, "rank", "soft"),
        };
        let mut command = Command::new(&program);
        command.arg(what).arg(dir).args([name, case.fault]);
        command.env("INVAR_STALL_MS", STALL.as_millis().to_string());
        command.env("INVAR_TRANSPORT", transport).env("NCCL_SOCKET_IFNAME", "=v0");
        if let Kind::Ranks(_) = case.kind {
            command.env("NCCL_SHM_DISABLE", "1");
        }
        command.stderr(Stdio::piped());
        let mut child = hosts.call(host, || command.spawn()).expect("a process");
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

const _: () = assert!(CULPRIT == 2, "the cases name rank 2");
