//! A process that is gone is noticed, and takes nobody with it but its child.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::*;

/// The process that is left reports the loss within this time.
const SOON: Duration = Duration::from_secs(20);
/// A measurement that would not end by itself, nor is anything else once it is connected.
const ENDLESS: [&str; 7] = ["--no-check", "-b", "64K", "-e", "64K", "-n", "100000000"];

fn signal(run: &Run, signal: Signal) {
    let pid = Pid::from_child(&run.0);
    kill_process(pid, signal).unwrap();
}

/// Waits until a client is at it: it has printed the head of the table, and computed for a while.
fn let_it_begin(run: &mut Run) {
    let line = run.line();
    assert!(line.starts_with("# invar perf"), "{line}");
    let connected = ticks(run);
    watch("computing", || ticks(run) >= connected + 20);
}

/// Clock ticks that a process has computed for, of which a second has 100 (`proc_pid_stat(5)`).
fn ticks(run: &Run) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", run.0.id())).unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

fn soon(run: Run) -> Outcome {
    let start = Instant::now();
    let outcome = run.wait();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    outcome
}

#[test]
fn a_client_says_that_its_server_was_killed() {
    let (server, addr) = server(&mut invar(&["perf", "--server", "[::1]:0"]));
    let mut client = Run::start(invar(&["perf", "--connect", &addr]).args(ENDLESS));
    let_it_begin(&mut client);
    signal(&server, Signal::KILL);
    let outcome = soon(client);
    outcome.ended(FAILED, "to peer [::1]:");
    outcome.ended(FAILED, "the peer has closed or is dead");
}

#[test]
fn a_server_says_that_its_client_was_killed_and_serves_the_next() {
    let (server, addr) = server(&mut invar(&["perf", "--server", "[::1]:0", "--keep"]));
    let mut client = Run::start(invar(&["perf", "--connect", &addr]).args(ENDLESS));
    let_it_begin(&mut client);
    signal(&client, Signal::KILL);
    drop(client);
    let start = Instant::now();
    run(&["perf", "--connect", &addr, "-e", "8", "-n", "2"]).ok();
    assert!(start.elapsed() < SOON);
    signal(&server, Signal::TERM);
    let outcome = server.wait();
    assert!(outcome.line().contains("the peer has closed or is dead"), "{}", outcome.stderr);
}

/// The children of a process, as the kernel knows them.
fn children(run: &Run) -> Vec<u32> {
    let pid = run.0.id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn the_second_process_never_outlives_the_first() {
    for ending in [Signal::INT, Signal::KILL] {
        let mut parent = Run::start(invar(&["perf"]).args(ENDLESS));
        let_it_begin(&mut parent);
        let children = children(&parent);
        assert_eq!(children.len(), 1);
        signal(&parent, ending);
        assert_eq!(soon(parent).status, None, "ended by the signal");
        watch("the end of the second process", || !is_running(children[0]));
    }
}

#[test]
fn processes_are_waited_for_though_the_parent_ignores_the_signal_of_their_end() {
    for args in [&["perf", "-e", "8", "-n", "2"][..], &["coll", "all_reduce", "-e", "8", "-n", "2"]]
    {
        let mut bash = bare(Command::new("bash"), &["-c", "trap '' CHLD; exec \"$0\" \"$@\""]);
        let outcome = Run::start(bash.arg(env!("CARGO_BIN_EXE_invar")).args(args)).wait();
        assert_eq!(outcome.ok().stderr, "", "{args:?}");
    }
}

/// Whether a process is there and is not a zombie that nobody has waited for.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn the_first_process_says_that_the_second_was_killed() {
    let mut parent = Run::start(invar(&["perf"]).args(ENDLESS));
    let_it_begin(&mut parent);
    let child = children(&parent)[0];
    kill_process(Pid::from_raw(child as i32).unwrap(), Signal::KILL).unwrap();
    soon(parent).ended(FAILED, "the peer has closed or is dead");
}
