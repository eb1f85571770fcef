//! On the wire of NCCL 2.14 both ends work with a peer that sends NCCL's bare struct, whatever it
//! leaves uninitialised. They finish the handshake in their first calls, without blocking.

use invar_core::auth::Session;
use invar_core::comm::{Flush, RecvBuf, RecvComm, SendBuf};
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream, StreamError, Wire};
use invar_core::error::{Error, ErrorKind};
use invar_core::nic::{Nic, Sge, WcOpcode};
use invar_testkit::duo::Buffer;
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;

use crate::raw_peer::{RawPeer, RawSlot};

fn settings(qps: u16) -> CommSettings {
    CommSettings { wire: Wire::Nccl214, qps, ..CommSettings::default() }
}

/// A receiver whose peer has not started, with the receiver's NIC. Both have each other's info.
fn unstarted() -> (NullNic, RecvComm<NullNic, Pipe>, RawPeer) {
    let [ours, theirs]: [NullNic; 2] = NullNic::ports();
    let (here, there) = Pipe::pair();
    let mut acceptor = Acceptor::new(ours.clone(), 1, here, Session::UNKNOWN_PEER, settings(1), 0);
    let mut peer = RawPeer::new(theirs, there, 1);
    peer.send_info(true);
    let recv = acceptor.poll(0).expect("no error").expect("a comm");
    peer.take_info();
    (ours, recv, peer)
}

#[test]
fn a_connector_sends_to_nccls_acceptor() {
    for qps in [1, 3] {
        let [ours, theirs]: [NullNic; 2] = NullNic::ports();
        let pd = ours.alloc_pd().expect("a domain");
        let (here, there) = Pipe::pair();
        let mut connector = Connector::new(ours.clone(), pd, here, None, settings(qps), 0);
        let mut send = connector.poll(0).expect("no error").expect("a comm once its info is sent");
        let from = Buffer::new(&ours, &pd, 4096);
        from.write(0, &[0x5c; 4096]);
        let message = |len| from.message(0, len);

        let mut peer = RawPeer::new(theirs, there, qps.into());
        assert_eq!(send.isend(&message(300), 4), Ok(None), "no info has come");
        assert_eq!(peer.take_info(), 5, "the NIC's MTU");
        peer.send_info(false);
        assert!(!peer.take_ready());
        assert_eq!(send.isend(&message(300), 4), Ok(None), "no receive has come");
        assert!(peer.take_ready());

        let to = Buffer::new(&peer.nic, &peer.pd, 4096);
        let slot =
            RawSlot { addr: to.addr(0), size: 512, rkey: to.rkey(), nreqs: 1, tag: 4, idx: 1 };
        peer.post_row(0, &[slot]);
        let sent = send.isend(&message(300), 4).expect("isend").expect("a request");
        assert_eq!(send.test(&sent), Ok(Some(300)));
        for _ in 0..qps {
            let wc = peer.poll().expect("poll").expect("a completion");
            assert_eq!((wc.opcode, wc.imm_data), (WcOpcode::RECV_RDMA_WITH_IMM, 300));
        }
        assert_eq!(peer.poll(), Ok(None));
        assert_eq!(to.read(0, 301), [vec![0x5c; 300], vec![0]].concat());

        // In a group each bit of the immediate stands for a buffer that got bytes.
        let slots = [5, 6].map(|tag| RawSlot { nreqs: 2, tag, idx: 2, ..slot });
        peer.post_row(1, &slots);
        let empty = send.isend(&message(0), 5).expect("isend").expect("a request");
        assert_eq!(peer.poll(), Ok(None), "the group is not complete");
        let full = send.isend(&message(9), 6).expect("isend").expect("a request");
        assert_eq!(send.test(&full), Ok(Some(9)));
        assert_eq!(send.test(&empty), Ok(Some(0)));
        for _ in 0..qps {
            let wc = peer.poll().expect("poll").expect("a completion");
            assert_eq!((wc.imm_data, wc.byte_len), (2, 0));
        }
    }
}

#[test]
fn an_acceptor_receives_from_nccls_connector() {
    for qps in [1, 3] {
        let [ours, theirs]: [NullNic; 2] = NullNic::ports();
        let pd = ours.alloc_pd().expect("a domain");
        let (here, there) = Pipe::pair();
        let mut acceptor =
            Acceptor::new(ours.clone(), pd, here, Session::UNKNOWN_PEER, settings(qps), 0);
        assert!(acceptor.poll(0).expect("no error").is_none());
        let mut peer = RawPeer::new(theirs, there, qps.into());
        peer.send_info(true);
        let mut recv = acceptor.poll(0).expect("no error").expect("a comm once its info is sent");
        let to = Buffer::new(&ours, &pd, 4096);
        let room = |tag| to.room(64, 100, tag);
        assert_eq!(recv.irecv(&[room(8)]), Ok(None), "no ready word has come");
        assert_eq!(peer.take_info(), 3, "the smaller MTU of both");
        assert_eq!(recv.irecv(&[room(8)]), Ok(None), "no ready word has come");
        peer.send_ready();
        let received = recv.irecv(&[room(8)]).expect("irecv").expect("a request");

        let slot = peer.slot(0, 0);
        assert_eq!((slot.addr, slot.rkey), (to.addr(64), to.rkey()));
        assert_eq!((slot.size, slot.nreqs, slot.tag, slot.idx), (100, 1, 8, 1));
        assert_eq!(recv.test(&received), Ok(None));
        // NCCL gives each queue pair a share of the bytes, and puts the size into each immediate.
        peer.fifo.write(8192, &[0x77; 60]);
        for q in 0..qps {
            let length = if q == 0 { 60 } else { 0 };
            let sge = Sge { addr: peer.fifo.addr(8192), length, lkey: peer.fifo.lkey() };
            assert_eq!(recv.test(&received), Ok(None), "{q} of {qps} are here");
            peer.write_with_imm(q.into(), sge, (slot.addr, slot.rkey), 60);
        }
        assert_eq!(recv.test(&received), Ok(Some(&[60][..])));
        assert_eq!(to.read(64, 61), [vec![0x77; 60], vec![0]].concat());

        // The next row is the next of 64. Each row has eight slots.
        let group = recv.irecv(&[room(1), room(2), room(3)]).expect("irecv").expect("a request");
        let slots: Vec<_> = (0..3).map(|r| peer.slot(1, r)).collect();
        assert!(slots.iter().all(|slot| (slot.nreqs, slot.idx) == (3, 2)));
        assert_eq!(slots.iter().map(|slot| slot.tag).collect::<Vec<_>>(), [1, 2, 3]);
        for q in 0..qps {
            peer.write_with_imm(q.into(), Sge::default(), (0, 0), 0b101);
        }
        assert_eq!(recv.test(&group), Ok(Some(&[1, 0, 1][..])));
    }
}

#[test]
fn a_ready_word_in_pieces_is_awaited() {
    let (ours, mut recv, mut peer) = unstarted();
    let to = Buffer::new(&ours, &1, 64);
    let room = to.room(0, 1, 0);
    let early = recv.iflush(&[]).expect_err("nothing was received");
    assert_eq!((early.kind(), early.is_fatal()), (ErrorKind::Usage, false));
    assert!(early.to_string().starts_with("iflush in stage PendingReady: "), "{early}");
    for byte in 1u32.to_ne_bytes() {
        assert_eq!(recv.irecv(&[room]), Ok(None));
        assert_eq!(recv.check_peer(0), Ok(()), "the peer is there");
        assert_eq!(peer.pipe.send(&[byte]), Ok(1));
    }
    let _ = recv.irecv(&[room]).expect("irecv").expect("a request");
}

#[test]
fn a_look_at_the_peer_takes_the_ready_word_too() {
    let (ours, mut recv, mut peer) = unstarted();
    let to = Buffer::new(&ours, &1, 64);
    let room = to.room(0, 1, 0);
    assert_eq!(peer.pipe.send(&1u32.to_ne_bytes()), Ok(4));
    assert_eq!(recv.check_peer(0), Ok(()));
    assert_eq!(recv.iflush(&[]), Ok(Flush::NotNeeded), "the exchange is over");
    let _ = recv.irecv(&[room]).expect("irecv").expect("a request");
}

#[test]
fn a_peer_that_closes_before_it_has_started_has_closed_in_order() {
    let closed = Err(Error::PeerClosed(StreamError::Closed));
    let (ours, mut recv, peer) = unstarted();
    assert_eq!(recv.check_peer(0), Ok(()));
    drop(peer);
    assert_eq!([recv.check_peer(0), recv.check_peer(0)], [closed; 2]);

    let (here, there) = Pipe::pair();
    let mut connector = Connector::new(ours, 1, here, None, settings(1), 0);
    let mut send = connector.poll(0).expect("no error").expect("a comm");
    assert_eq!(send.check_peer(0), Ok(()));
    drop(there);
    assert_eq!([send.check_peer(0), send.check_peer(0)], [closed; 2]);
}

#[test]
fn a_peer_that_fails_in_the_lazy_handshake_fails_the_first_calls() {
    let (ours, mut recv, mut peer) = unstarted();
    let room = RecvBuf { addr: 4096, len: 1, tag: 0, rkey: 1 };
    assert_eq!(peer.pipe.send(&[9, 0, 0, 0]), Ok(4));
    for _ in 0..2 {
        assert_eq!(recv.irecv(&[room]), Err(Error::Ready([9, 0, 0, 0])));
    }

    let (here, there) = Pipe::pair();
    let mut connector = Connector::new(ours, 1, here, None, settings(1), 0);
    let mut send = connector.poll(0).expect("no error").expect("a comm");
    drop(there);
    let error = send.isend(&SendBuf::default(), 0).expect_err("closed");
    assert!(error.to_string().contains("0 of 552 bytes"), "{error}");
    assert_eq!(send.isend(&SendBuf::default(), 0), Err(error));
}
