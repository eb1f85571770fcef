//! Nothing that a peer or a NIC does causes more harm than an error that names it.

use invar_core::auth::Session;
use invar_core::comm::{RecvBuf, RecvComm, Request, SendBuf, SendComm};
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream, Wire};
use invar_core::error::{Error, ErrorKind};
use invar_core::nic::{Nic, QpCap, SendOpcode, SendWr, Sge, Wc, WcOpcode, WcStatus};
use invar_testkit::duo::{Buffer, Duo};
use invar_testkit::end::{End, Link};
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;
use proptest::prelude::*;

use crate::line::Line;
use crate::meddler::Meddler;
use crate::raw_peer::{RawPeer, RawSlot};

fn settings() -> CommSettings {
    CommSettings { wire: Wire::Nccl214, ..CommSettings::default() }
}

/// A sender whose receiver is a hand-written peer.
fn sender() -> (SendComm<NullNic, Pipe>, RawPeer) {
    let [ours, theirs]: [NullNic; 2] = NullNic::ports();
    let pd = ours.alloc_pd().expect("a domain");
    let (here, there) = Pipe::pair();
    let mut send = Connector::new(ours, pd, here, None, settings(), 0).poll(0).expect("no error");
    let mut peer = RawPeer::new(theirs, there, 1);
    peer.take_info();
    peer.send_info(false);
    let send_comm = send.as_mut().expect("a comm");
    assert_eq!(send_comm.isend(&SendBuf::default(), 0), Ok(None));
    (send.expect("a comm"), peer)
}

/// A receiver whose sender is a hand-written peer, and memory to receive into.
fn receiver() -> (RecvComm<NullNic, Pipe>, RawPeer, Buffer<NullNic>) {
    let [ours, theirs]: [NullNic; 2] = NullNic::ports();
    let pd = ours.alloc_pd().expect("a domain");
    let (here, there) = Pipe::pair();
    let mut acceptor = Acceptor::new(ours.clone(), pd, here, Session::UNKNOWN_PEER, settings(), 0);
    let mut peer = RawPeer::new(theirs, there, 1);
    peer.send_info(true);
    let recv = acceptor.poll(0).expect("no error").expect("a comm");
    peer.take_info();
    peer.send_ready();
    (recv, peer, Buffer::new(&ours, &pd, 64))
}

const SOUND: RawSlot = RawSlot { addr: 4096, size: 16, rkey: 1, nreqs: 1, tag: 0, idx: 1 };

#[test]
fn a_slot_that_cannot_be_is_an_error_that_names_the_field_and_stays() {
    let cases = [
        (RawSlot { nreqs: 0, ..SOUND }, "a group of 0x0"),
        (RawSlot { nreqs: 9, ..SOUND }, "a group of 0x9"),
        (RawSlot { nreqs: u32::MAX, ..SOUND }, "a group of 0xffffffff"),
        (RawSlot { size: -1, ..SOUND }, "a negative size 0xffffffff"),
        (RawSlot { size: i32::MIN, ..SOUND }, "a negative size 0x80000000"),
        (RawSlot { addr: 0, ..SOUND }, "address 0x0"),
        (RawSlot { rkey: 0, ..SOUND }, "rkey 0x0"),
    ];
    for (slot, what) in cases {
        for grouped in [false, true] {
            if grouped && slot.nreqs != 1 {
                continue;
            }
            let (mut send, peer) = sender();
            if grouped {
                let slot = RawSlot { nreqs: 2, ..slot };
                peer.post_row(0, &[slot, RawSlot { tag: 1, nreqs: 2, ..SOUND }]);
            } else {
                peer.post_row(0, &[slot]);
            }
            let error = send.isend(&SendBuf::default(), 0).expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Peer);
            assert_eq!(error.to_string(), format!("the peer posted receive 1 with {what}"));
            for _ in 0..2 {
                assert_eq!(send.isend(&SendBuf::default(), 0), Err(error));
                assert_eq!(send.check_peer(0), Err(error));
            }
        }
    }
}

#[test]
fn a_slot_of_another_receive_or_tag_is_no_slot() {
    for slot in [
        RawSlot { idx: 0, ..SOUND },
        RawSlot { idx: 2, ..SOUND },
        RawSlot { idx: u64::MAX, ..SOUND },
        RawSlot { tag: 1, ..SOUND },
        RawSlot { tag: 1, size: -1, addr: 0, ..SOUND },
    ] {
        let (mut send, peer) = sender();
        peer.post_row(0, &[slot]);
        assert_eq!(send.isend(&SendBuf::default(), 0), Ok(None));
    }
}

#[test]
fn a_group_is_awaited_until_all_its_slots_are_there() {
    let (mut send, peer) = sender();
    let slot = |tag, size, idx| RawSlot { nreqs: 4, tag, size, idx, ..SOUND };
    let row = |idx| [slot(0, 10, 1), slot(5, 20, idx), slot(5, 30, 1), slot(6, 40, 1)];
    peer.post_row(0, &row(0));
    for tag in [0, 5, 6] {
        assert_eq!(send.room(tag), Ok(None));
        assert_eq!(send.isend(&SendBuf::default(), tag), Ok(None));
    }
    peer.post_row(0, &row(1));
    for (tag, size) in [(5, 20), (6, 40), (5, 30), (0, 10)] {
        assert_eq!(send.room(tag), Ok(Some(size)));
        let _ = send.isend(&SendBuf::default(), tag).expect("isend").expect("a request");
    }
}

#[test]
fn more_bytes_than_were_asked_for_are_an_overrun() {
    let (mut recv, peer, to) = receiver();
    let room = to.room(0, 10, 0);
    let received = recv.irecv(&[room]).expect("irecv").expect("a request");
    peer.write_with_imm(0, Sge::default(), (0, 0), 11);
    let overrun = Error::Overrun { got: 11, posted: 10 };
    assert_eq!(recv.test(&received).err(), Some(overrun));
    assert_eq!(overrun.kind(), ErrorKind::Peer);
    assert_eq!(recv.irecv(&[room]), Err(overrun), "it stays");
}

/// The result of `test` for a group of buffers of ten bytes. The peer writes the sizes `told`.
fn told_sizes<const N: usize>(told: &[u32]) -> Result<Option<Vec<u32>>, Error> {
    let Line { nics, mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    let [a, b] = &nics;
    let rooms: [RecvBuf; N] = std::array::from_fn(|tag| to.room(0, 10, tag as u32));
    let received = duo.irecv(&rooms);
    for tag in 0..N as u32 {
        let _ = duo.isend(&SendBuf::default(), tag);
    }
    // The sender's last request went to the place of the sizes. Another request with this target
    // follows.
    let (_, sizes) = *a.plan.posted.borrow().last().expect("a request");
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_inline_data: 0 };
    let ends =
        [(a, duo.send_pd), (b, duo.recv_pd)].map(|(nic, pd)| End::with(nic, pd, &cap, 8, 32));
    ends[0].connect(&ends[1], &Link::default());
    ends[1].connect(&ends[0], &Link::default());
    let bytes: Vec<u8> = told.iter().flat_map(|size| size.to_le_bytes()).collect();
    ends[0].buffer.write(0, &bytes);
    let write = ends[0].work(SendOpcode::RdmaWrite, bytes.len(), &ends[1]);
    ends[0].post(&SendWr { remote_addr: sizes.remote_addr, rkey: sizes.rkey, ..write });
    assert_eq!(ends[0].wait().status, WcStatus::SUCCESS);
    duo.recv.test(&received).map(|sizes| sizes.map(<[u32]>::to_vec))
}

#[test]
fn sizes_of_a_group_beyond_what_was_asked_for_are_an_overrun() {
    let overrun = Err(Error::Overrun { got: 11, posted: 10 });
    assert_eq!(told_sizes::<2>(&[10, 11]), overrun);
    assert_eq!(told_sizes::<3>(&[10, 9, 11]), overrun);
}

#[test]
fn sizes_of_buffers_that_a_group_does_not_have_say_nothing() {
    assert_eq!(told_sizes::<3>(&[10, 9, 8, 11]), Ok(Some(vec![10, 9, 8])));
}

#[test]
fn bytes_after_the_handshake_are_unexpected() {
    let (mut recv, mut peer, to) = receiver();
    let room = to.room(0, 10, 0);
    let _ = recv.irecv(&[room]).expect("irecv").expect("a request");
    assert_eq!(recv.check_peer(0), Ok(()));
    assert_eq!(peer.pipe.send(b"x"), Ok(1));
    assert_eq!(recv.check_peer(0), Err(Error::Unexpected));
    assert_eq!(recv.irecv(&[room]), Err(Error::Unexpected), "it stays");
}

/// Two comms whose NICs' completions the test fakes. Two receives are posted, and the first has its
/// message.
fn meddled() -> (Duo<Meddler>, [Meddler; 2]) {
    let Line { nics, mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    for _ in 0..2 {
        let _ = duo.irecv(&[to.room(0, 10, 0)]);
    }
    let _ = duo.isend(&SendBuf::default(), 0);
    (duo, nics)
}

#[test]
fn a_completion_of_no_request_is_an_error() {
    let (mut duo, [a, b]) = meddled();
    let stray = Wc { wr_id: 200, qp_num: 0x33, ..Wc::default() };
    let unknown = Error::UnknownCompletion { wr_id: 200, qpn: 0x33 };
    assert_eq!(unknown.kind(), ErrorKind::Local);
    let first = Request::from_raw(0);

    a.plan.made_up.borrow_mut().push(stray);
    assert_eq!(duo.send.test(&first), Err(unknown));
    assert_eq!(duo.send.isend(&SendBuf::default(), 0), Err(unknown), "it stays");

    b.plan.made_up.borrow_mut().push(Wc { opcode: WcOpcode::RECV_RDMA_WITH_IMM, ..stray });
    assert_eq!(duo.recv.test(&first).err(), Some(unknown));
    assert_eq!(duo.recv.irecv(&[]).err(), Some(unknown), "it stays");
}

#[test]
fn a_completion_too_many_is_an_error() {
    let (mut duo, [a, _]) = meddled();
    let first = Request::from_raw(0);
    let twice = Wc { wr_id: 0, qp_num: 1, ..Wc::default() };
    a.plan.made_up.borrow_mut().extend([twice, twice]);
    let _ = duo.send.test(&first);
    let error = duo.send.isend(&SendBuf::default(), 0).expect_err("one too many");
    assert!(matches!(error, Error::UnknownCompletion { wr_id: 0, .. }), "{error}");
}

#[test]
fn a_completion_of_a_request_that_is_over_is_an_error() {
    let (mut duo, [a, b]) = meddled();
    let first = Request::from_raw(0);
    assert_eq!(duo.send.test(&first), Ok(Some(0)));
    assert_eq!(duo.recv.test(&first), Ok(Some(&[0][..])));

    let again = Wc { wr_id: 0, qp_num: 1, ..Wc::default() };
    let unknown = Error::UnknownCompletion { wr_id: 0, qpn: 1 };
    let second = duo.isend(&SendBuf::default(), 0);
    a.plan.made_up.borrow_mut().push(again);
    assert_eq!(duo.send.test(&second), Err(unknown));

    b.plan.made_up.borrow_mut().push(Wc { opcode: WcOpcode::RECV_RDMA_WITH_IMM, ..again });
    let second = Request::from_raw(1);
    assert_eq!(duo.recv.test(&second).err(), Some(unknown));
}

proptest! {
    #[test]
    fn no_completions_make_a_comm_panic(
        wcs in prop::collection::vec(
            (any::<u64>(), 0u32..3, any::<u32>(), prop::sample::select(vec![
                WcOpcode::SEND, WcOpcode::RDMA_WRITE, WcOpcode::RDMA_READ, WcOpcode::RECV,
                WcOpcode::RECV_RDMA_WITH_IMM,
            ])),
            1..20,
        ),
        near: bool,
    ) {
        let (mut duo, nics) = meddled();
        for nic in &nics {
            let wc = |&(wr_id, status, imm_data, opcode)| Wc {
                wr_id: if near { wr_id & 0x0303_0303 } else { wr_id },
                status: WcStatus(status / 2),
                imm_data: if near { imm_data & 15 } else { imm_data },
                opcode,
                ..Wc::default()
            };
            nic.plan.made_up.borrow_mut().extend(wcs.iter().map(wc));
        }
        for raw in [0, 1, 2, 0, 1, 2] {
            let request = Request::from_raw(raw);
            let _ = duo.send.test(&request);
            let _ = duo.recv.test(&request);
        }
    }
}
