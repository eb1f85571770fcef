//! Tests what a responder refuses, and how: malformed requests, memory out of reach, wrong states.

use invar_core::nic::{Access, Mtu, QpState, QpTransition, WcStatus};
use invar_core::roce::{Headers, ImmDt, NakCode, Opcode, Psn, Reth, Syndrome};
use invar_testkit::model::roce::{ADDR, Attr, KEY, Memory, Peer};

/// A request packet of the peer: opcode, RETH and payload bytes. PSNs count from the peer's first one.
type Request = (Opcode, Option<(u64, u32, u32)>, usize);

/// The answer of the responder to the last request, and the status of its first receive.
fn refused(attr: &Attr, requests: &[Request]) -> (Option<Syndrome>, Option<WcStatus>) {
    let mut us = Peer::with_memory(attr);
    us.post_receive(1, 2048);
    let mut last = None;
    for (psn, &(opcode, reth, len)) in (attr.psns[1]..).zip(requests) {
        let change = |headers: &mut Headers| {
            headers.reth = reth.map(|(va, rkey, dma_len)| Reth { va, rkey, dma_len });
            let imm = matches!(opcode, Opcode::WRITE_ONLY_IMM | Opcode::WRITE_LAST_IMM);
            headers.imm = imm.then_some(ImmDt([1; 4]));
        };
        us.take(0, opcode, psn, change, &vec![7; len]);
        last = us.transmit_all(0).last().map(|(transmit, _)| transmit.headers);
    }
    let syndrome = last.and_then(|headers| headers.aeth).map(|aeth| aeth.syndrome);
    (syndrome, us.host.receives.first().map(|wc| wc.status))
}

#[test]
fn a_malformed_request_is_refused() {
    let whole = |dma_len| Some((ADDR, KEY, dma_len));
    let cases: [&[Request]; 17] = [
        // Packets in the wrong order within a message.
        &[(Opcode::SEND_MIDDLE, None, 1024)],
        &[(Opcode::SEND_LAST, None, 4)],
        &[(Opcode::WRITE_MIDDLE, None, 1024)],
        &[(Opcode::WRITE_LAST, None, 4)],
        &[(Opcode::SEND_FIRST, None, 1024), (Opcode::SEND_ONLY, None, 4)],
        &[(Opcode::SEND_FIRST, None, 1024), (Opcode::WRITE_LAST, None, 4)],
        &[(Opcode::WRITE_FIRST, whole(2000), 1024), (Opcode::READ_REQUEST, whole(4), 0)],
        // Wrong sizes.
        &[(Opcode::SEND_FIRST, None, 1023)],
        &[(Opcode::SEND_ONLY, None, 1025)],
        &[(Opcode::SEND_FIRST, None, 1024), (Opcode::SEND_LAST, None, 0)],
        &[(Opcode::WRITE_FIRST, whole(1024), 1024)],
        &[(Opcode::WRITE_ONLY, whole(5), 4)],
        &[(Opcode::WRITE_FIRST, whole(2000), 1024), (Opcode::WRITE_LAST, None, 975)],
        &[(Opcode::READ_REQUEST, whole((1 << 31) + 1), 0)],
        // Operations without their header, and an unknown one.
        &[(Opcode::FETCH_ADD, None, 0)],
        &[(Opcode::SEND_ONLY_INV, None, 0)],
        &[(Opcode(0x1f), None, 0)],
    ];
    for case in cases {
        let (syndrome, status) = refused(&Attr::default(), case);
        assert_eq!(syndrome, Some(Syndrome::Nak(NakCode::InvalidRequest)), "{case:?}");
        assert!(status.is_some_and(|status| status != WcStatus::SUCCESS), "{case:?}");
    }
}

#[test]
fn memory_is_reached_only_as_far_as_it_is_registered_and_permitted() {
    let (end, len) = (ADDR + 16 * 1024, 100);
    let no_access = Some(Syndrome::Nak(NakCode::RemoteAccessError));
    for (va, rkey) in [(ADDR - 1, KEY), (end - 99, KEY), (ADDR, KEY + 1), (u64::MAX - 50, KEY)] {
        for (opcode, sent) in [(Opcode::WRITE_ONLY, 100), (Opcode::READ_REQUEST, 0)] {
            let request = (opcode, Some((va, rkey, len)), sent);
            assert_eq!(refused(&Attr::default(), &[request]).0, no_access, "{va:x}");
        }
    }
    // The first packet is checked against the range of the whole message.
    let first = (Opcode::WRITE_FIRST, Some((end - 2000, KEY, 2001)), 1024);
    assert_eq!(refused(&Attr::default(), &[first]).0, no_access);
    // Neither key nor address of an empty message is checked.
    let empty = (Opcode::WRITE_ONLY_IMM, Some((0, 0, 0)), 0);
    assert_eq!(refused(&Attr::default(), &[empty]), (None, Some(WcStatus::SUCCESS)));
    // The permissions of the queue pair come first. A violation makes the request invalid.
    let closed = Attr { access: Access::REMOTE_READ, ..Attr::default() };
    let write = (Opcode::WRITE_ONLY, Some((ADDR, KEY, 4)), 4);
    let invalid = Some(Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(refused(&closed, &[write]).0, invalid);
    let closed = Attr { access: Access::REMOTE_WRITE, ..Attr::default() };
    let read = (Opcode::READ_REQUEST, Some((ADDR, KEY, 4)), 0);
    assert_eq!(refused(&closed, &[read]).0, invalid);
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut us = Peer::with_memory(&Attr { rd_atomic: 2, ..Attr::default() });
    let reth = |headers: &mut Headers| {
        headers.reth = Some(Reth { va: ADDR, rkey: KEY, dma_len: 4 });
    };
    for psn in 0x100..0x103 {
        us.take(0, Opcode::READ_REQUEST, psn, reth, &[]);
    }
    // The two READs that were accepted are answered nevertheless.
    let answers = us.transmit_all(0);
    let opcodes: Vec<_> = answers.iter().map(|(transmit, _)| transmit.headers.bth.opcode).collect();
    let response = Opcode::READ_RESPONSE_ONLY;
    assert_eq!(opcodes, [response, response, Opcode::ACKNOWLEDGE]);
    let last = answers[2].0.headers;
    assert_eq!(last.bth.psn, Psn::new(0x102));
    assert_eq!(last.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(us.qp.state(), QpState::Err);
}

#[test]
fn memory_that_goes_away_within_a_message_is_missed_at_once() {
    let reth = |headers: &mut Headers| {
        headers.reth = Some(Reth { va: ADDR, rkey: KEY, dma_len: 3000 });
    };
    let no_access = Syndrome::Nak(NakCode::RemoteAccessError);
    for opcode in [Opcode::WRITE_FIRST, Opcode::READ_REQUEST] {
        let mut us = Peer::with_memory(&Attr::default());
        us.take(0, opcode, 0x100, reth, &[0; 1024][..if opcode.0 == 6 { 1024 } else { 0 }]);
        let _ = us.transmit(0);
        us.host.regions.clear();
        if opcode == Opcode::WRITE_FIRST {
            us.take(0, Opcode::WRITE_MIDDLE, 0x101, |_| {}, &[0; 1024]);
        }
        let (nak, _) = us.transmit(0).unwrap();
        assert_eq!(nak.headers.aeth.unwrap().syndrome, no_access);
        assert_eq!(nak.headers.bth.psn, Psn::new(0x101));
        assert_eq!(us.qp.state(), QpState::Err);
    }
}

#[test]
fn packets_count_only_in_states_that_take_them() {
    let attr = Attr { mtu: Mtu::Mtu256, ..Attr::default() };
    let answers = |moves: &[QpTransition]| {
        let mut us = Peer::reset(&attr, vec![Memory::open()]);
        for move_ in moves {
            us.qp.modify(move_, &mut us.host).unwrap();
        }
        let write = |headers: &mut Headers| {
            headers.bth.ack_req = true;
            headers.reth = Some(Reth { va: ADDR, rkey: KEY, dma_len: 1 });
        };
        us.take(0, Opcode::WRITE_ONLY, attr.psns[1], write, &[1]);
        us.transmit_all(0).len()
    };
    let [init, rtr, rts] = attr.moves();
    assert_eq!(answers(&[]), 0);
    assert_eq!(answers(&[init]), 0);
    assert_eq!(answers(&[init, rtr]), 1);
    assert_eq!(answers(&[init, rtr, rts]), 1);
    assert_eq!(answers(&[init, rtr, rts, QpTransition::Sqd]), 1);
    assert_eq!(answers(&[init, rtr, rts, QpTransition::Err]), 0);
}

#[test]
fn an_end_that_was_moved_to_err_says_nothing_more() {
    let mut us = Peer::with_memory(&Attr::default());
    let read = |headers: &mut Headers| {
        headers.reth = Some(Reth { va: ADDR, rkey: KEY, dma_len: 3000 });
    };
    us.take(0, Opcode::READ_REQUEST, 0x100, read, &[]);
    us.take(0, Opcode::SEND_ONLY, 0x200, |_| {}, &[]);
    us.qp.modify(&QpTransition::Err, &mut us.host).unwrap();
    assert!(us.transmit_all(0).is_empty());
}
