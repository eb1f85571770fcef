//! Ranks in processes of their own, which may be killed at any moment.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use invar_linux::abort::Abort;
use invar_linux::proxy::{Service, ServiceSettings, SharedOps};
use invar_testkit::child;
use invar_testkit::wait::watch;

use crate::host::{Gate, op, progress};
use crate::service::{Host, connect};

const ADDRESS: &str = "INVAR_TEST_PROXY";
const RANK: &str = "INVAR_TEST_LOCAL_RANK";
const POSTS: &str = "INVAR_TEST_POSTS";

/// Starts this program again as the rank below, and waits until that has begun.
fn start(service: &Service, rank: u32, posts: bool) -> Child {
    let mut child = child::command("processes::a_rank_that_posts_for_ever")
        .env(ADDRESS, service.address())
        .env(RANK, rank.to_string())
        .env(POSTS, posts.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.lines().any(|line| line.unwrap() == "begun"));
    child
}

/// Kills the process with SIGKILL.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "is the rank's process of another test"]
fn a_rank_that_posts_for_ever() {
    let address = std::env::var(ADDRESS).expect("started by the other test");
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let abort = Abort::default();
    let (_client, id, mut ops) = connect(&address, rank, &abort);
    // The operation takes all free cells.
    ops.append(&op(0, id.0, 1)).unwrap();
    // The test harness writes lines of its own, so begin a new line.
    std::io::stdout().write_all(b"\nbegun\n").unwrap();
    if std::env::var(POSTS).unwrap() != "true" {
        loop {
            std::thread::park();
        }
    }
    for op_count in 1.. {
        ops.append(&op(op_count, id.0, 1)).unwrap();
        if op_count % 3 == 0 {
            ops.post().unwrap();
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_it_posts_does_not_keep_others_from_posting() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(6).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let host = Host::new(progress.connections());
    let service = Service::spawn(ServiceSettings::default(), abort.clone(), host).unwrap();
    let (_client, id, mut ops) = connect(service.address(), 0, &abort);
    for rank in 1..=5 {
        let child = start(&service, rank, true);
        let before = gate.completed();
        watch("slices", || gate.completed() > before + 1000);
        kill(child);
        assert!(!progress.has_ended());
        ops.append(&op(rank.into(), id.0, 1)).unwrap();
        ops.post().unwrap();
    }
    drop(service);
    progress.stop().unwrap();
}

#[test]
fn the_cells_that_a_rank_held_when_it_was_killed_are_its_successors() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let host = Host::new(progress.connections());
    let service = Service::spawn(ServiceSettings::default(), abort, host).unwrap();
    for _ in 0..3 {
        kill(start(&service, 0, false));
        assert_eq!(gate.completed(), 0);
    }
    let child = start(&service, 0, true);
    watch("slices", || gate.completed() > 5000);
    kill(child);
    drop(service);
    progress.stop().unwrap();
}
