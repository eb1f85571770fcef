//! Tests queue pairs without acknowledges: unreliable connections and datagrams.

use invar_core::nic::{
    Access, QpState, QpTransition, QpType, SendOpcode, WcFlags, WcOpcode, WcStatus,
};
use invar_core::roce::qp::{Destination, GRH_BYTES, Transmit};
use invar_core::roce::{Deth, Foreign, Headers, Opcode, Packet};
use invar_testkit::model::roce::{Attr, Memory, Peer};

const QKEY: u32 = 0x1234_5678;
const GRH: [u8; GRH_BYTES] = [0x99; GRH_BYTES];
const OK: WcStatus = WcStatus::SUCCESS;

fn pair(qp_type: QpType) -> [Peer; 2] {
    Attr { qp_type, qkey: QKEY, ..Attr::default() }.pair()
}

fn fill(peer: &mut Peer, with: u8) {
    peer.host.regions[0].bytes.fill(with);
}

/// Hands a datagram to its receiver.
fn hand(peer: &mut Peer, (transmit, payload): &(Transmit, Vec<u8>)) {
    let packet = Packet { headers: transmit.headers, payload, trailer: &[] };
    peer.qp.handle_datagram(&packet, &GRH, &mut peer.host);
}

fn peer_of_datagrams() -> Destination {
    Destination { qp_num: 0x12, qkey: QKEY }
}

#[test]
fn a_datagram_arrives_behind_its_header_with_its_sender_and_nothing_answers() {
    let [mut us, mut peer] = pair(QpType::Ud);
    fill(&mut us, 5);
    for (wr_id, len) in [(1, 0), (2, 7), (3, 1024)] {
        us.post_datagram(wr_id, len, peer_of_datagrams());
        peer.post_receive(wr_id, GRH_BYTES as u32 + len);
        let sent = us.transmit_all(0);
        assert_eq!(sent.len(), 1);
        assert_eq!(us.sends().last(), Some(&(wr_id, OK)), "done once the packet has left");
        hand(&mut peer, &sent[0]);
        let wc = *peer.host.receives.last().unwrap();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, OK, WcOpcode::RECV));
        assert_eq!((wc.byte_len, wc.src_qp), (GRH_BYTES as u32 + len, 0x11));
        assert_eq!((wc.flags, wc.imm_data), (WcFlags::GRH | WcFlags::WITH_IMM, 0xcafe));
        let bytes = &peer.host.regions[0].bytes[..GRH_BYTES + len as usize];
        assert_eq!(bytes[..GRH_BYTES], GRH);
        assert!(bytes[GRH_BYTES..].iter().all(|byte| *byte == 5));
        assert!(peer.transmit_all(0).is_empty());
    }
}

#[test]
fn a_request_completes_only_after_the_adapter_has_taken_its_packet() {
    let [mut us, _] = pair(QpType::Ud);
    us.post_datagram(1, 8, peer_of_datagrams());
    assert!(us.transmit(0).is_some());
    assert!(us.sends().is_empty(), "the adapter may still read the memory");
    assert!(us.transmit(0).is_none());
    assert_eq!(us.sends(), [(1, OK)]);
}

#[test]
fn datagrams_that_a_receiver_must_not_take_leave_its_receives_alone() {
    let [mut us, mut peer] = pair(QpType::Ud);
    us.post_datagram(1, 100, peer_of_datagrams());
    let sent = us.transmit_all(0).remove(0);
    let changed = |change: &dyn Fn(&mut Headers)| {
        let mut packet = sent.clone();
        change(&mut packet.0.headers);
        packet
    };
    let deth = |qkey| Some(Foreign::Datagram(Deth { qkey, resv8: 0, src_qp: 0x11 }));
    peer.post_receive(1, 139);
    hand(&mut peer, &sent);
    let mut long = sent.clone();
    long.1 = vec![0; 1025];
    let packets = [
        changed(&|headers| headers.foreign = deth(QKEY ^ 1)),
        changed(&|headers| headers.foreign = None),
        changed(&|headers| headers.bth.dest_qp += 1),
        changed(&|headers| headers.bth.tver = 1),
        long,
    ];
    packets.iter().for_each(|packet| hand(&mut peer, packet));
    peer.receive(0, &sent);
    assert_eq!(peer.qp.counters().dropped, 7);
    assert!(peer.host.receives.is_empty() && peer.host.regions[0].bytes.iter().all(|b| *b == 0));
    assert_eq!(peer.qp.state(), QpState::Rts);
    // A receive that is too short stays for a shorter datagram.
    us.post_datagram(2, 99, peer_of_datagrams());
    hand(&mut peer, &us.transmit_all(0)[0]);
    assert_eq!(peer.receives(), [(1, OK)]);
    // Without a receive nothing happens.
    hand(&mut peer, &sent);
    assert_eq!((peer.receives().len(), peer.qp.state()), (1, QpState::Rts));
}

#[test]
fn a_qkey_with_the_top_bit_stands_for_the_senders_own() {
    let [mut us, mut peer] = pair(QpType::Ud);
    peer.post_receive(1, 100);
    us.post_datagram(1, 8, Destination { qp_num: 0x12, qkey: 1 << 31 });
    hand(&mut peer, &us.transmit_all(0)[0]);
    assert_eq!(peer.receives(), [(1, OK)]);
}

#[test]
fn a_receive_without_memory_ends_the_queue_pair() {
    let [mut us, mut peer] = pair(QpType::Ud);
    peer.host.regions[0].access = Access::empty();
    peer.post_receive(1, 100);
    us.post_datagram(1, 8, peer_of_datagrams());
    hand(&mut peer, &us.transmit_all(0)[0]);
    assert_eq!(peer.receives(), [(1, WcStatus::LOC_PROT_ERR)]);
    assert_eq!(peer.qp.state(), QpState::Err);
}

#[test]
fn requests_that_a_transport_does_not_have_are_refused() {
    let [mut datagrams, _] = pair(QpType::Ud);
    let [mut connection, _] = pair(QpType::Uc);
    let post = |peer: &mut Peer, opcode, length| {
        let Memory { key, addr, .. } = peer.host.regions[0];
        let sge = invar_core::nic::Sge { addr, length, lkey: key };
        let wr = invar_core::nic::SendWr { opcode, sge, ..Default::default() };
        peer.qp.post_send(&wr, &mut peer.host).map(|_| ()).map_err(|error| error.errno)
    };
    const EINVAL: i32 = 22;
    for opcode in [SendOpcode::RdmaWrite, SendOpcode::RdmaWriteWithImm, SendOpcode::RdmaRead] {
        assert_eq!(post(&mut datagrams, opcode, 8), Err(EINVAL));
    }
    assert_eq!(post(&mut datagrams, SendOpcode::Send, 1025), Err(EINVAL));
    assert_eq!(post(&mut datagrams, SendOpcode::Send, 1024), Ok(()));
    assert_eq!(post(&mut connection, SendOpcode::RdmaRead, 8), Err(EINVAL));
    assert_eq!(post(&mut connection, SendOpcode::RdmaWrite, 8), Ok(()));
}

#[test]
fn messages_of_an_unreliable_connection_arrive_whole_or_not_at_all() {
    const LEN: u32 = 5000;
    for opcode in [SendOpcode::Send, SendOpcode::RdmaWriteWithImm] {
        for lost in 0..=5 {
            let [mut us, mut peer] = pair(QpType::Uc);
            fill(&mut us, 5);
            (1..=2).for_each(|wr_id| peer.post_receive(wr_id, LEN));
            us.post(1, opcode, LEN);
            let mut sent = us.transmit_all(0);
            assert_eq!((sent.len(), us.sends()), (5, vec![(1, OK)]));
            assert!(sent.iter().all(|(transmit, _)| !transmit.headers.bth.ack_req));
            if lost < 5 {
                let _ = sent.remove(lost);
            }
            sent.iter().for_each(|packet| peer.receive(0, packet));
            assert_eq!(peer.receives().len(), usize::from(lost == 5), "{opcode:?} {lost}");
            // The next message is not harmed.
            us.post(2, opcode, LEN);
            us.pass(0, &mut peer);
            assert_eq!(peer.host.receives.last().unwrap().byte_len, LEN, "{opcode:?} {lost}");
            assert!(peer.host.regions[0].bytes[..LEN as usize].iter().all(|byte| *byte == 5));
            assert!(peer.transmit_all(0).is_empty(), "nothing is acknowledged");
        }
    }
}

#[test]
fn requests_that_an_unreliable_connection_must_not_carry_out_are_dropped() {
    let [mut us, mut peer] = pair(QpType::Uc);
    us.post(1, SendOpcode::RdmaWrite, 8);
    let sent = us.transmit_all(0).remove(0);
    assert_eq!(sent.0.headers.bth.opcode, Opcode(0x2a));
    let mut reliable = sent.clone();
    reliable.0.headers.bth.opcode = Opcode::WRITE_ONLY;
    let mut no_key = sent.clone();
    no_key.0.headers.reth.as_mut().unwrap().rkey ^= 1;
    fill(&mut peer, 1);
    for packet in [reliable, no_key] {
        peer.receive(0, &packet);
        assert_eq!(peer.qp.state(), QpState::Rts);
    }
    assert!(peer.host.regions[0].bytes.iter().all(|byte| *byte == 1));
    peer.receive(0, &sent);
    assert_eq!(peer.host.regions[0].bytes[..9], [0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn requests_that_have_not_left_complete_as_flushed() {
    let flushed = WcStatus::WR_FLUSH_ERR;
    // The memory of the first request is gone.
    let [mut us, _] = pair(QpType::Ud);
    (1..=3).for_each(|wr_id| us.post_datagram(wr_id, 8, peer_of_datagrams()));
    us.host.regions[0].key += 1;
    assert!(us.transmit_all(0).is_empty());
    assert_eq!(us.sends(), [(1, WcStatus::LOC_PROT_ERR), (2, flushed), (3, flushed)]);
    // The queue pair was stopped before.
    let [mut us, _] = pair(QpType::Ud);
    us.qp.modify(&QpTransition::Err, &mut us.host).unwrap();
    (1..=3).for_each(|wr_id| us.post_datagram(wr_id, 8, peer_of_datagrams()));
    assert_eq!(us.sends(), [(1, flushed), (2, flushed), (3, flushed)]);
}
