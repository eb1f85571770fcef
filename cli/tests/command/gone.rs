//! A process that is gone is noticed, and takes nobody with it but its child.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::*;

/// Within this whoever is left says so.
const SOON: Duration = Duration::from_secs(5);
/// A measurement that would not end by itself.
const ENDLESS: [&str; 6] = ["-b", "64K", "-e", "64K", "-n", "100000000"];

fn signal(run: &Run, signal: Signal) {
    let pid = Pid::from_child(&run.0);
    kill_process(pid, signal).unwrap();
}

/// Lets the timed pass begin. Where it has not yet, the peer is gone just earlier.
fn let_it_begin() {
    thread::sleep(Duration::from_millis(700));
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
    let client = Run::start(invar(&["perf", "--connect", &addr]).args(ENDLESS));
    let_it_begin();
    signal(&server, Signal::KILL);
    let outcome = soon(client);
    assert_eq!(outcome.status, Some(3), "{}", outcome.stderr);
    assert!(outcome.line().contains("to peer [::1]:"), "{}", outcome.stderr);
    assert!(outcome.line().contains("the peer has closed or is dead"), "{}", outcome.stderr);
}

#[test]
fn a_server_says_that_its_client_was_killed_and_serves_the_next() {
    let (server, addr) = server(&mut invar(&["perf", "--server", "[::1]:0", "--keep"]));
    let client = Run::start(invar(&["perf", "--connect", &addr]).args(ENDLESS));
    let_it_begin();
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
        let parent = Run::start(invar(&["perf"]).args(ENDLESS));
        let_it_begin();
        let children = children(&parent);
        assert_eq!(children.len(), 1);
        signal(&parent, ending);
        assert_eq!(soon(parent).status, None, "ended by the signal");
        let start = Instant::now();
        while is_running(children[0]) {
            assert!(start.elapsed() < SOON, "the second process is still there");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Whether a process is there and is not a zombie that nobody has waited for.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn the_first_process_says_that_the_second_was_killed() {
    let parent = Run::start(invar(&["perf"]).args(ENDLESS));
    let_it_begin();
    let child = children(&parent)[0];
    kill_process(Pid::from_raw(child as i32).unwrap(), Signal::KILL).unwrap();
    let outcome = soon(parent);
    assert_eq!(outcome.status, Some(3));
    assert!(outcome.line().contains("the peer has closed or is dead"), "{}", outcome.stderr);
}
