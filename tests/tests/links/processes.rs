//! A rank runs in a process of its own, which is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};

use invar::Handle;
use invar::net::{LinkEnds, Network, wait_for_links};
use invar_linux::abort::Abort;
use invar_testkit::child;
use invar_testkit::wait::LIMIT;

use crate::rig::{DEVICES, Rank, open, settings};

const DEVICE: &str = "INVAR_TEST_LINK_DEVICE";

/// Creates the links of rank `number` with the other rank. Each rank writes its address and reads the
/// other's.
fn connect(
    network: &Network,
    number: u32,
    theirs: &mut dyn BufRead,
    ours: &mut dyn Write,
) -> LinkEnds {
    let (receiving, handle) = network.listen(1 - number, 0, 0).unwrap();
    // The test harness writes on the current line, so begin a new one.
    writeln!(ours, "\naddress {}", handle.hex()).unwrap();
    ours.flush().unwrap();
    let mut lines = theirs.lines().map(Result::unwrap);
    let line = lines.find_map(|line| line.strip_prefix("address ").map(str::to_owned)).unwrap();
    let handle = Handle::from_hex(&line).unwrap();
    let sending = network.connect(1 - number, 0, 0, &handle).unwrap();
    let mut ends = wait_for_links(vec![sending, receiving], LIMIT).unwrap().into_iter();
    let (sending, receiving) = (ends.next().unwrap(), ends.next().unwrap());
    LinkEnds { send: sending.send, recv: receiving.recv }
}

fn rank(device: &str, number: u32, theirs: &mut dyn BufRead, ours: &mut dyn Write) -> Rank {
    let abort = Abort::default();
    let network = Network::open(vec![open(device)], &settings(), abort.clone()).unwrap();
    let LinkEnds { send, recv } = connect(&network, number, theirs, ours);
    let (sends, recvs) = (send.into_iter().collect(), recv.into_iter().collect());
    Rank { sends, recvs, network, abort, number }
}

#[test]
#[ignore = "is the other rank's process of another test"]
fn a_rank_that_exchanges_until_it_is_killed() {
    let device = std::env::var(DEVICE).expect("started by the other test");
    let mut rank = rank(&device, 1, &mut std::io::stdin().lock(), &mut std::io::stdout());
    rank.exchange(1, 100).unwrap();
    rank.exchange(2, 1 << 40).unwrap();
}

fn start(device: &str) -> (Child, ChildStdin, impl BufRead) {
    let mut child = child::command("processes::a_rank_that_exchanges_until_it_is_killed")
        .env(DEVICE, device)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, stdin, BufReader::new(stdout))
}

#[test]
fn two_processes_exchange_and_one_that_is_killed_is_named_to_the_other() {
    for device in DEVICES {
        let (mut child, mut stdin, mut stdout) = start(device);
        let mut rank = rank(device, 0, &mut stdout, &mut stdin);
        rank.exchange(1, 100).expect(device);
        let text = std::thread::scope(|scope| {
            let survivor = scope.spawn(|| rank.exchange(2, 1 << 40).unwrap_err());
            // `kill` sends SIGKILL.
            child.kill().unwrap();
            child.wait().unwrap();
            survivor.join().unwrap().to_string()
        });
        assert!(text.starts_with("rank 1: ") && text.contains("to peer "), "{text}");
    }
}
