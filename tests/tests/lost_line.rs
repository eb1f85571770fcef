//! The TCP connection beside queue pairs is made anew where it is lost.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use invar::{Device, Listener, MemoryRegion, RecvComm, SendComm};
use invar_testkit::library::{self, connect, content};
use invar_testkit::namespaces::{Hosts, IPV4};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::{LIMIT, until, watch};
use invar_testkit::warnings;

const BYTES: usize = 100_000;
/// The time for which the network is out: longer than all retries of a queue pair.
const OUTAGE: Duration = Duration::from_millis(1500);

/// The ports of all TCP connections of the host.
fn connections(hosts: &Hosts) -> BTreeSet<String> {
    let output = hosts.program(0, "ss").args(["-Htn", "state", "established"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect()
}

fn abort_connections(hosts: &Hosts) -> BTreeSet<String> {
    let before = connections(hosts);
    assert_eq!(before.len(), 2, "two ends of a connection: {before:?}");
    let status = hosts.program(0, "ss").args(["-Ktn", "state", "established"]).output();
    assert!(status.unwrap().status.success(), "ss -K");
    before
}

struct Pair {
    memory: MemoryRegion,
    send: SendComm,
    recv: RecvComm,
}

impl Pair {
    fn pass_message(&mut self, seed: usize) {
        let Pair { memory, send, recv } = self;
        memory.write_at(0, &pattern(seed, BYTES)).unwrap();
        let receive = recv.irecv(&[(memory, BYTES..2 * BYTES, 7)]).unwrap();
        let receive = receive.unwrap_or_else(|| {
            until("a request", || recv.irecv(&[(memory, BYTES..2 * BYTES, 7)]).unwrap())
        });
        send.send(memory, 0..BYTES, 7, LIMIT).unwrap();
        assert_eq!(recv.wait(&receive, LIMIT).unwrap().sizes(), [BYTES]);
        assert_eq!(content(memory, 2 * BYTES)[BYTES..], pattern(seed, BYTES)[..]);
    }
}

#[test]
fn a_connection_outlives_its_tcp_connection_and_still_learns_that_its_peer_is_gone() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    warnings::keep();
    hosts.call(0, || {
        let settings = library::settings(&[("INVAR_TRANSPORT", "soft"), ("NCCL_IB_TIMEOUT", "13")]);
        let device = Device::open_at_for(IPV4[0].parse::<IpAddr>().unwrap(), &settings).unwrap();
        let listener = Listener::bind(&device, &settings).unwrap();
        let (send, recv) = connect(&device, &listener, &settings);
        // Whoever took the first call need not be there any more.
        drop(listener);
        let memory = MemoryRegion::new(&device, 2 * BYTES).unwrap();
        let mut pair = Pair { memory, send, recv };
        pair.pass_message(0);
        for round in 1..4 {
            let before = abort_connections(&hosts);
            pair.pass_message(round);
            watch("both ends' use of a new connection", || {
                warnings::with(&["the TCP connection was made anew"]).len() == 2 * round
            });
            assert_ne!(connections(&hosts), before);
        }
        // Both the queue pairs and the TCP connection are lost, and neither end hears of the other's loss.
        hosts.ip(0, "link set lo down").unwrap();
        let before = abort_connections(&hosts);
        let memory = &pair.memory;
        let receive = pair.recv.irecv(&[(memory, BYTES..2 * BYTES, 7)]).unwrap().unwrap();
        thread::sleep(OUTAGE);
        hosts.ip(0, "link set lo up").unwrap();
        pair.send.send(memory, 0..BYTES, 7, LIMIT).unwrap();
        assert_eq!(pair.recv.wait(&receive, LIMIT).unwrap().sizes(), [BYTES]);
        assert_ne!(connections(&hosts), before);
        pair.pass_message(9);

        let Pair { memory, send, mut recv } = pair;
        drop(send);
        let error =
            recv.recv(&memory, 0..BYTES, 7, LIMIT).expect_err("the peer has closed").to_string();
        assert!(error.contains("the peer has closed or is dead"), "{error}");
    });
}
