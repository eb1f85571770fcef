//! Packets that leave by one call equal the packets that would leave one by one, and requests take turns with
//! answers.

use invar_core::nic::{SendOpcode, WcStatus};
use invar_core::roce::qp::Transmit;
use invar_core::roce::{HEADERS_BYTES_MAX, Opcode};
use invar_testkit::model::roce::{Attr, Peer};

const MESSAGE_BYTES: u32 = 16_000;
const MESSAGES: u64 = 6;

#[test]
fn a_run_is_the_packets_that_come_one_by_one() {
    for (adaptive, long_mtu_bytes) in [(false, 0), (true, 0), (false, 1408), (true, 1408)] {
        let attr = Attr { adaptive, long_mtu_bytes, ..Attr::default() };
        for operation in [SendOpcode::RdmaWrite, SendOpcode::RdmaWriteWithImm, SendOpcode::Send] {
            for packets_max in [2, 3, 7, 64] {
                transfer(&attr, operation, packets_max);
            }
        }
    }
}

#[test]
fn all_long_packets_of_a_write_but_the_last_are_equally_long() {
    for (long_mtu_bytes, first, middle) in [(0, 28 + 1024, 12 + 1024), (1408, 12 + 1408, 12 + 1408)]
    {
        let [mut near, mut far] = Attr { long_mtu_bytes, ..Attr::default() }.pair();
        near.post(1, SendOpcode::RdmaWrite, MESSAGE_BYTES);
        let packets = near.transmit_all(0);
        let lengths: Vec<usize> = packets.iter().map(bytes).collect();
        let (last, full) = lengths.split_last().unwrap();
        assert_eq!(full, [vec![first], vec![middle; full.len() - 1]].concat());
        assert!(*last < middle);
        packets.iter().for_each(|packet| far.receive(0, packet));
        far.pass(0, &mut near);
        assert_eq!(near.sends(), [(1, WcStatus::SUCCESS)]);
    }
}

/// The bytes of headers and payload.
fn bytes((transmit, payload): &(Transmit, Vec<u8>)) -> usize {
    transmit.headers.encode(&mut [0; HEADERS_BYTES_MAX]) + payload.len()
}

/// Runs two ends side by side, one of which sends by runs. Both get the same answers. One of the
/// packets to the other end is lost.
fn transfer(attr: &Attr, operation: SendOpcode, packets_max: u32) {
    let [mut single, mut runs] = [(); 2].map(|()| Peer::with_memory(attr));
    let mut far = Peer::with_memory(&attr.peer());
    for wr_id in 0..MESSAGES {
        far.post_receive(wr_id, MESSAGE_BYTES);
        for near in [&mut single, &mut runs] {
            near.post(wr_id, operation, MESSAGE_BYTES);
        }
    }
    let (mut now, mut packets, mut calls, mut lost) = (0, 0, 0, false);
    while single.sends().len() < MESSAGES as usize {
        let expected = single.transmit_all(now);
        let mut sent = Vec::new();
        loop {
            let run = runs.transmit_run(now, packets_max);
            assert!(run.len() <= packets_max as usize);
            if run.is_empty() {
                break;
            }
            (packets, calls) = (packets + run.len(), calls + 1);
            sent.extend(run);
        }
        assert_eq!(sent, expected, "{attr:?} {operation:?} {packets_max}");
        for (i, packet) in sent.iter().enumerate() {
            let lose = !lost && i == 9;
            lost |= lose;
            if !lose {
                far.receive(now, packet);
            }
        }
        now += attr.tuning.hole_age_ns;
        far.qp.handle_timeout(now, &mut far.host);
        for answer in far.transmit_all(now) {
            single.receive(now, &answer);
            runs.receive(now, &answer);
        }
        assert!(now < 100 * attr.tuning.hole_age_ns, "nothing moves");
    }
    assert!(lost && calls < packets * 3 / 4, "{calls} calls for {packets} packets");
    assert_eq!(runs.sends(), single.sends());
    assert!(single.sends().iter().all(|(_, status)| *status == WcStatus::SUCCESS));
    assert_eq!(runs.qp.counters(), single.qp.counters());
}

#[test]
fn requests_leave_between_the_answers_to_a_peer_that_always_reads() {
    let [mut us, mut peer] = Attr::default().pair();
    let ask = |us: &mut Peer, peer: &mut Peer| {
        peer.post(1, SendOpcode::RdmaRead, 16 << 10);
        peer.pass(0, us);
    };
    ask(&mut us, &mut peer);
    us.post(2, SendOpcode::RdmaWrite, 8);
    for sent in 0..1000 {
        let (transmit, payload) = us.transmit(0).expect("a READ is to be answered");
        if transmit.headers.bth.opcode == Opcode::WRITE_ONLY {
            return assert!(sent <= 64, "after {sent} packets");
        }
        peer.receive(0, &(transmit, payload));
        ask(&mut us, &mut peer);
    }
    panic!("the request waits for ever");
}
