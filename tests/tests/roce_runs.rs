//! Packets that leave by one call are those that would leave one by one.

use invar_core::nic::{SendOpcode, WcStatus};
use invar_testkit::model::roce::{Attr, Peer};

const MESSAGE_BYTES: u32 = 16_000;
const MESSAGES: u64 = 6;

#[test]
fn a_run_is_the_packets_that_come_one_by_one() {
    for adaptive in [false, true] {
        for operation in [SendOpcode::RdmaWrite, SendOpcode::RdmaWriteWithImm, SendOpcode::Send] {
            for packets_max in [2, 3, 7, 64] {
                transfer(&Attr { adaptive, ..Attr::default() }, operation, packets_max);
            }
        }
    }
}

/// Two ends that do the same, one of them by runs, and hear the same answers; of the packets to the
/// other end one is lost.
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
