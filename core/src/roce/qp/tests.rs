use super::*;
use crate::nic::{Access, RtrAttr, RtsAttr, Sge, Wc, WcStatus};
use crate::roce::{Aeth, Bth, Headers, Opcode, Syndrome};

extern crate std;
use std::vec::Vec;

/// A host without memory that keeps completions.
#[derive(Default)]
struct Host(Vec<(Queue, u64, WcStatus)>);

impl Env for Host {
    fn resolve(
        &mut self,
        _: u32,
        _: u64,
        _: u32,
        _: Access,
        _: QpSide,
    ) -> Result<Region, AccessFault> {
        Err(AccessFault)
    }

    fn place(&mut self, _: Region, _: &[u8]) {
        unreachable!("nothing resolves");
    }

    fn complete(&mut self, queue: Queue, wc: Wc, _: bool) {
        self.0.push((queue, wc.wr_id, wc.status));
    }
}

fn qp(moves: usize) -> Qp<8, 8> {
    let cap = QpCap { max_send_wr: 3, max_recv_wr: 2, max_inline_data: 16 };
    let mut qp = Qp::new(0x11, cap).unwrap();
    let init = QpTransition::Init { pkey_index: 0, port_num: 1, access: Access::empty() };
    let rtr = QpTransition::Rtr(RtrAttr::default());
    let rts = QpTransition::Rts(RtsAttr { max_rd_atomic: 1, ..RtsAttr::default() });
    for move_ in [init, rtr, rts, QpTransition::Sqd].iter().take(moves) {
        qp.modify(move_, &mut Host::default()).unwrap();
    }
    qp
}

fn send(wr_id: u64) -> SendWr {
    SendWr { wr_id, opcode: SendOpcode::Send, ..SendWr::default() }
}

#[test]
fn memory_for_each_queue_pair_is_as_documented() {
    let one = size_of::<Qp<1, 1>>();
    let (sends, receives) = (size_of::<Qp<1024, 1>>() - one, size_of::<Qp<1, 1024>>() - one);
    assert_eq!(sends.div_ceil(1023), 64);
    assert_eq!(receives.div_ceil(1023), 32);
    assert!((3000..3300).contains(&one), "{one}");
}

#[test]
fn capabilities_beyond_the_queues_are_refused() {
    let new = |qpn, max_send_wr, max_recv_wr| {
        let cap = QpCap { max_send_wr, max_recv_wr, max_inline_data: 0 };
        Qp::<8, 4>::new(qpn, cap).map_err(|error| (error.verb, error.errno))
    };
    assert!(new(0xff_ffff, 8, 4).is_ok());
    for refused in [new(1 << 24, 8, 4), new(1, 9, 4), new(1, 8, 5)] {
        assert_eq!(refused.err(), Some((Verb::CreateQp, EINVAL)));
    }
}

#[test]
fn retries_and_reads_change_only_in_sqd() {
    let changed = RtsAttr { timeout: 9, retry_cnt: 3, max_rd_atomic: 0, ..RtsAttr::default() };
    let sends = QpUpdate { sends: Some(changed), ..QpUpdate::default() };
    let reads = QpUpdate { max_dest_rd_atomic: Some(16), ..QpUpdate::default() };
    for moves in 0..4 {
        for update in [sends, reads] {
            let error = qp(moves).update(&update).unwrap_err();
            assert_eq!((error.verb, error.errno), (Verb::ModifyQp, EINVAL));
        }
    }
    let (mut qp, mut host) = (qp(4), Host::default());
    let read = SendWr { opcode: SendOpcode::RdmaRead, ..send(1) };
    assert_eq!(qp.retry_time_ns(), None);
    qp.post_send(&read, &mut host).unwrap();
    assert!(qp.update(&sends).is_err(), "a READ is posted");
    for wrong in [
        QpUpdate { sends: Some(RtsAttr { retry_cnt: 8, ..changed }), ..reads },
        QpUpdate { max_dest_rd_atomic: Some(17), ..QpUpdate::default() },
        QpUpdate { min_rnr_timer: Some(32), ..reads },
    ] {
        qp.update(&wrong).unwrap_err();
    }
    assert_eq!(qp.retry_time_ns(), None);
    qp.withdraw_sends(1);
    qp.update(&sends).unwrap();
    qp.update(&reads).unwrap();
    assert_eq!(qp.retry_time_ns(), Some(4 * (4096 << 9)));
    assert!(qp.post_send(&read, &mut host).is_err(), "no READ may be outstanding");
    assert!(qp.is_drained());
}

#[test]
fn sends_are_taken_from_rts_on_and_receives_from_init_on() {
    for (moves, sends, receives) in
        [(0, false, false), (1, false, true), (2, false, true), (3, true, true), (4, true, true)]
    {
        let (mut qp, mut host) = (qp(moves), Host::default());
        let sent = qp.post_send(&send(1), &mut host).map_err(|error| error.errno);
        assert_eq!(sent, if sends { Ok(0) } else { Err(EINVAL) });
        let received = qp.post_recv(&RecvWr::default(), &mut host).map_err(|error| error.errno);
        assert_eq!(received, if receives { Ok(()) } else { Err(EINVAL) });
    }
}

#[test]
fn queues_hold_what_was_asked_for_and_no_more() {
    let (mut qp, mut host) = (qp(3), Host::default());
    for slot in 0..3 {
        assert_eq!(qp.post_send(&send(0), &mut host), Ok(slot));
    }
    let full = qp.post_send(&send(0), &mut host).unwrap_err();
    assert_eq!((full.errno, full.cause), (ENOMEM, "send queue full"));
    for _ in 0..2 {
        qp.post_recv(&RecvWr::default(), &mut host).unwrap();
    }
    let full = qp.post_recv(&RecvWr::default(), &mut host).unwrap_err();
    assert_eq!((full.errno, full.cause), (ENOMEM, "receive queue full"));
}

#[test]
fn requests_that_cannot_be_carried_out_are_refused() {
    let sge = |length| Sge { addr: 0, length, lkey: 0 };
    let inline = SendFlags::INLINE;
    let read = SendWr { opcode: SendOpcode::RdmaRead, ..send(0) };
    let refused = [
        SendWr { sge: sge(MESSAGE_BYTES_MAX + 1), ..send(0) },
        SendWr { sge: sge(17), flags: inline, ..send(0) },
        SendWr { flags: inline, ..read },
    ];
    let (mut qp, mut host) = (qp(3), Host::default());
    for wr in refused {
        assert_eq!(qp.post_send(&wr, &mut host).unwrap_err().errno, EINVAL, "{wr:?}");
    }
    for wr in [SendWr { sge: sge(MESSAGE_BYTES_MAX), ..send(0) }, read] {
        assert!(qp.post_send(&wr, &mut host).is_ok());
    }
    let mut without_reads = self::qp(2);
    without_reads.modify(&QpTransition::Rts(RtsAttr::default()), &mut host).unwrap();
    assert_eq!(without_reads.post_send(&read, &mut host).unwrap_err().errno, EINVAL);
}

#[test]
fn an_error_completes_all_work_as_flushed_and_later_work_too() {
    let (mut qp, mut host) = (qp(3), Host::default());
    for wr_id in [1, 2] {
        qp.post_send(&send(wr_id), &mut host).unwrap();
        qp.post_recv(&RecvWr { wr_id: 10 + wr_id, ..RecvWr::default() }, &mut host).unwrap();
    }
    qp.modify(&QpTransition::Err, &mut host).unwrap();
    qp.post_send(&send(3), &mut host).unwrap();
    qp.post_recv(&RecvWr { wr_id: 13, ..RecvWr::default() }, &mut host).unwrap();
    let flushed = |queue, wr_id| (queue, wr_id, WcStatus::WR_FLUSH_ERR);
    let expected = [
        flushed(Queue::Send, 1),
        flushed(Queue::Send, 2),
        flushed(Queue::Recv, 11),
        flushed(Queue::Recv, 12),
        flushed(Queue::Send, 3),
        flushed(Queue::Recv, 13),
    ];
    assert_eq!(host.0, expected);
    assert_eq!((qp.state(), qp.deadline_ns()), (QpState::Err, None));
}

#[test]
fn reset_drops_all_work_and_keeps_the_tuning() {
    let (mut qp, mut host) = (qp(3), Host::default());
    qp.set_tuning(Tuning { probe_ns: 5, ..Tuning::default() });
    qp.post_send(&send(1), &mut host).unwrap();
    qp.post_recv(&RecvWr::default(), &mut host).unwrap();
    let _ = qp.poll_transmit(0, &mut host);
    assert!(qp.deadline_ns().is_some());
    qp.modify(&QpTransition::Reset, &mut host).unwrap();
    assert!(host.0.is_empty());
    assert_eq!((qp.state(), qp.deadline_ns()), (QpState::Reset, None));
    let init = QpTransition::Init { pkey_index: 0, port_num: 1, access: Access::empty() };
    let rtr = QpTransition::Rtr(RtrAttr::default());
    for move_ in [init, rtr, QpTransition::Rts(RtsAttr::default())] {
        qp.modify(&move_, &mut host).unwrap();
    }
    assert_eq!(qp.poll_transmit(0, &mut host), None);
    qp.post_send(&send(2), &mut host).unwrap();
    assert!(qp.poll_transmit(0, &mut host).is_some());
    assert_eq!(qp.deadline_ns(), Some(5));
}

#[test]
fn unknown_local_memory_fails_in_its_turn() {
    for (opcode, answer) in [
        (SendOpcode::Send, Opcode::ACKNOWLEDGE),
        (SendOpcode::RdmaRead, Opcode::READ_RESPONSE_ONLY),
    ] {
        let (mut qp, mut host) = (qp(3), Host::default());
        let flags = SendFlags::SIGNALED;
        qp.post_send(&SendWr { opcode, flags, ..send(1) }, &mut host).unwrap();
        let sge = Sge { addr: 0, length: 5, lkey: 9 };
        qp.post_send(&SendWr { sge, ..send(2) }, &mut host).unwrap();
        qp.post_send(&send(3), &mut host).unwrap();
        let first = qp.poll_transmit(0, &mut host).unwrap();
        assert_eq!(qp.poll_transmit(0, &mut host), None);
        assert_eq!((qp.state(), host.0.len()), (QpState::Rts, 0));

        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
        let bth = Bth { opcode: answer, dest_qp: 0x11, ..first.headers.bth };
        let headers = Headers { bth, aeth: Some(aeth), ..Headers::default() };
        qp.handle_packet(1, &Packet { headers, payload: &[], trailer: &[] }, &mut host);
        let expected = [
            (Queue::Send, 1, WcStatus::SUCCESS),
            (Queue::Send, 2, WcStatus::LOC_PROT_ERR),
            (Queue::Send, 3, WcStatus::WR_FLUSH_ERR),
        ];
        assert_eq!(host.0, expected, "{opcode:?}");
        assert_eq!(qp.state(), QpState::Err);
    }
}
