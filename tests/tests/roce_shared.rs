//! Tests a queue pair that takes its receives from a shared queue.

use invar_core::nic::{RecvWr, Sge, WcStatus};
use invar_core::roce::{Headers, ImmDt, Opcode, Reth, Syndrome};
use invar_testkit::model::roce::{ADDR, Attr, KEY, Peer};

#[test]
fn a_message_takes_one_shared_receive_when_it_needs_one() {
    let mut us = Peer::with_memory(&Attr::default());
    let sge = Sge { addr: ADDR, length: 4096, lkey: KEY };
    us.host.shared.extend((1..=2).map(|wr_id| RecvWr { wr_id, sge, ..RecvWr::default() }));
    let reth = |headers: &mut Headers| {
        headers.reth = Some(Reth { va: ADDR, rkey: KEY, dma_len: 4 });
    };
    us.take(0, Opcode::SEND_FIRST, 0x100, |_| {}, &[7; 1024]);
    assert_eq!((us.host.shared.len(), us.receives().len()), (1, 0));
    us.take(0, Opcode::SEND_LAST, 0x101, |_| {}, &[8; 4]);
    assert_eq!(us.receives(), [(1, WcStatus::SUCCESS)]);
    us.take(0, Opcode::WRITE_ONLY, 0x102, reth, &[9; 4]);
    assert_eq!(us.host.shared.len(), 1, "a WRITE needs none");
    let with_imm = |headers: &mut Headers| {
        reth(headers);
        headers.imm = Some(ImmDt([1; 4]));
    };
    us.take(0, Opcode::WRITE_ONLY_IMM, 0x103, with_imm, &[9; 4]);
    assert_eq!(us.receives(), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    // The queue is empty. The peer repeats the message later, and then there is a receive.
    us.take(0, Opcode::SEND_ONLY, 0x104, |_| {}, &[]);
    let (nak, _) = us.transmit_all(0).pop().unwrap();
    assert!(matches!(nak.headers.aeth.unwrap().syndrome, Syndrome::RnrNak { .. }));
    us.host.shared.push_back(RecvWr { wr_id: 3, ..RecvWr::default() });
    us.take(0, Opcode::SEND_ONLY, 0x104, |_| {}, &[]);
    assert_eq!(us.receives()[2], (3, WcStatus::SUCCESS));
}

#[test]
fn a_shared_receive_whose_message_fails_completes_with_the_failure() {
    let mut us = Peer::with_memory(&Attr::default());
    let sge = Sge { addr: ADDR, length: 3, lkey: KEY };
    us.host.shared.extend((1..=2).map(|wr_id| RecvWr { wr_id, sge, ..RecvWr::default() }));
    us.take(0, Opcode::SEND_ONLY, 0x100, |_| {}, &[7; 4]);
    assert_eq!(us.receives(), [(1, WcStatus::LOC_QP_OP_ERR)]);
    assert_eq!(us.host.shared.len(), 1, "the other one stays for other queue pairs");
}
