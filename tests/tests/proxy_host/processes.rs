//! Ranks in processes of their own, which may be killed at any moment.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use invar_linux::proxy::{Abort, Service, ServiceSettings, SharedOps};

use crate::host::{Gate, op, progress, until};
use crate::service::{Host, connect};

const ADDRESS: &str = "INVAR_TEST_PROXY";
const RANK: &str = "INVAR_TEST_LOCAL_RANK";

/// Starts this program again, to be the rank below.
fn start(service: &Service, rank: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "processes::a_rank_that_posts_for_ever"])
        .env(ADDRESS, service.address())
        .env(RANK, rank.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "is the rank's process of another test"]
fn a_rank_that_posts_for_ever() {
    let address = std::env::var(ADDRESS).expect("started by the other test");
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let abort = Abort::default();
    let (_client, id, mut ops) = connect(&address, rank, &abort);
    // The test harness writes lines of its own.
    std::io::stdout().write_all(b"\nposting\n").unwrap();
    for op_count in 1.. {
        ops.append(&op(op_count, id.0, 1)).unwrap();
        if op_count % 3 == 0 {
            ops.post().unwrap();
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_it_posts_keeps_nobody_from_posting_not_even_its_successor() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(2).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let host = Host::new(progress.connections());
    let service = Service::spawn(ServiceSettings::default(), abort.clone(), host).unwrap();
    let (_client, id, mut ops) = connect(service.address(), 0, &abort);
    for round in 1..=5 {
        let mut child = start(&service, 1);
        let out = BufReader::new(child.stdout.take().unwrap());
        assert!(out.lines().any(|line| line.unwrap() == "posting"));
        let before = gate.completed();
        until(|| gate.completed() > before + 1000);
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!progress.has_ended());
        ops.append(&op(round, id.0, 1)).unwrap();
        ops.post().unwrap();
    }
    drop(service);
    progress.stop().unwrap();
}
