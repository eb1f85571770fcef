//! Tests when requests run out, and which requests are refused.

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::conn::CommSettings;
use invar_core::error::Error;
use invar_core::nic::{Wc, WcOpcode};
use invar_testkit::duo::{self, Buffer};
use invar_testkit::null::NullNic;
use proptest::prelude::*;

use crate::meddler::Meddler;
use crate::rig;

#[test]
fn a_test_takes_all_completions_that_are_there() {
    let nics: [NullNic; 2] = NullNic::ports();
    let [a, b] = &nics.map(Meddler::new);
    let mut duo = duo::connect([a, b], [CommSettings::default(); 2], || {}).expect("a connection");
    let to = Buffer::new(b, &duo.recv_pd, 64);
    let room = RecvBuf { addr: to.addr(0), len: 8, tag: 0, rkey: to.rkey() };
    let [first, second] =
        [(); 2].map(|()| duo.recv.irecv(&[room]).expect("irecv").expect("a request"));
    let _ = duo.send.isend(&SendBuf::default(), 0).expect("isend").expect("a request");
    // One poll returns just the completion of the second request. The next poll returns the real one,
    // of the first request.
    let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    b.plan.made_up.borrow_mut().push(Wc { wr_id: 1, opcode, imm_data: 5, ..Wc::default() });
    assert_eq!(duo.recv.test(&first), Ok(Some(&[0][..])));
    assert_eq!(duo.recv.test(&second), Ok(Some(&[5][..])));
}

#[test]
fn without_a_free_request_a_call_says_none_and_after_a_test_it_works() {
    let (nics, mut duo) =
        rig::connect([CommSettings { fifo_depth: 8, ..CommSettings::default() }; 2]);
    let to = Buffer::new(&nics[1], &duo.recv_pd, 64);
    let room = RecvBuf { addr: to.addr(0), len: 1, tag: 0, rkey: to.rkey() };
    for _ in 0..3 {
        let received: Vec<Request> =
            std::iter::from_fn(|| duo.recv.irecv(&[room]).expect("irecv")).collect();
        assert_eq!(received.len(), 8);
        let sent: Vec<Request> =
            std::iter::from_fn(|| duo.send.isend(&SendBuf::default(), 0).expect("isend")).collect();
        assert_eq!(sent.len(), 8);
        assert_eq!(duo.recv.irecv(&[room]), Ok(None));
        // All receives are done, but none is tested. The sender gets rows again only after the tests.
        for (i, request) in received.iter().enumerate() {
            assert_eq!(duo.recv.outstanding(), 8 - i);
            assert_eq!(duo.recv.test(request), Ok(Some(&[0][..])));
        }
        let more = duo.recv.irecv(&[room]).expect("irecv").expect("a request");
        assert_eq!(duo.send.isend(&SendBuf::default(), 0), Ok(None), "all sends are under way");
        for request in &sent {
            assert_eq!(duo.send.test(request), Ok(Some(0)));
        }
        let last = duo.send.isend(&SendBuf::default(), 0).expect("isend").expect("a request");
        assert_eq!(duo.send.test(&last), Ok(Some(0)));
        assert_eq!(duo.recv.test(&more), Ok(Some(&[0][..])));
    }
}

#[test]
fn a_request_that_is_done_or_of_nobody_is_refused() {
    let (nics, mut duo) = rig::connect([CommSettings::default(); 2]);
    let to = Buffer::new(&nics[1], &duo.recv_pd, 64);
    let room = RecvBuf { addr: to.addr(0), len: 1, tag: 0, rkey: to.rkey() };
    let received = duo.recv.irecv(&[room]).expect("irecv").expect("a request");
    let sent = duo.send.isend(&SendBuf::default(), 0).expect("isend").expect("a request");
    let _ = duo.recv.test(&received).expect("test").expect("done");
    let _ = duo.send.test(&sent).expect("test").expect("done");
    for _ in 0..2 {
        let unknown = |request: &Request| Some(Error::UnknownRequest(request.raw()));
        assert_eq!(duo.recv.test(&received).err(), unknown(&received));
        assert_eq!(duo.send.test(&sent).err(), unknown(&sent));
    }
    let text = Error::UnknownRequest(sent.raw()).to_string();
    assert!(text.contains("not under way"), "{text}");
    // The comm still works.
    let _ = duo.recv.irecv(&[room]).expect("irecv").expect("a request");
}

#[test]
fn a_request_goes_through_a_plain_number() {
    let (nics, mut duo) = rig::connect([CommSettings::default(); 2]);
    let to = Buffer::new(&nics[1], &duo.recv_pd, 64);
    let room = RecvBuf { addr: to.addr(0), len: 1, tag: 0, rkey: to.rkey() };
    let received = duo.recv.irecv(&[room]).expect("irecv").expect("a request").raw();
    assert_eq!(duo.recv.test(&Request::from_raw(received)), Ok(None));
    let _ = duo.send.isend(&SendBuf::default(), 0).expect("isend").expect("a request");
    assert_eq!(duo.recv.test(&Request::from_raw(received)), Ok(Some(&[0][..])));
}

#[test]
fn a_flush_reads_back_and_is_a_request() {
    let flush = CommSettings { flush: true, fifo_depth: 4, ..CommSettings::default() };
    let (nics, mut duo) = rig::connect([CommSettings::default(), flush]);
    let to = Buffer::new(&nics[1], &duo.recv_pd, 64);
    let buf = |len| FlushBuf { addr: to.addr(0), len, rkey: to.rkey() };
    assert_eq!(duo.recv.iflush(&[buf(0), buf(0)]), Ok(Flush::NotNeeded), "no bytes");
    assert_eq!(duo.recv.iflush(&[]), Ok(Flush::NotNeeded));
    for _ in 0..10 {
        let start = duo.recv.iflush(&[buf(1), buf(5), buf(0)]).expect("iflush");
        let Flush::Started(request) = start else { panic!("{start:?}") };
        assert_eq!(duo.recv.outstanding(), 1);
        assert_eq!(duo.recv.test(&request), Ok(Some(&[][..])));
        assert_eq!(duo.recv.test(&request), Err(Error::UnknownRequest(request.raw())));
    }
    let mut started = 0;
    while let Flush::Started(_) = duo.recv.iflush(&[buf(1)]).expect("iflush") {
        started += 1;
        assert!(started <= 256, "no end of flushes");
    }
    assert_eq!(started, 256, "whatever the FIFO's depth is");
    assert_eq!(duo.recv.iflush(&[buf(1)]), Ok(Flush::Busy));

    let (nics, mut duo) = rig::connect([CommSettings::default(); 2]);
    let to = Buffer::new(&nics[1], &duo.recv_pd, 64);
    let buf = FlushBuf { addr: to.addr(0), len: 1, rkey: to.rkey() };
    assert_eq!(duo.recv.iflush(&[buf]), Ok(Flush::NotNeeded), "flushing is off");
}

#[test]
fn a_flush_of_memory_that_is_not_there_fails_the_comm() {
    let flush = CommSettings { flush: true, ..CommSettings::default() };
    let (_, mut duo) = rig::connect([CommSettings::default(), flush]);
    let buf = FlushBuf { addr: 4096, len: 1, rkey: 0xdead };
    let Flush::Started(request) = duo.recv.iflush(&[buf]).expect("iflush") else {
        panic!("a flush is needed")
    };
    let error = duo.recv.test(&request).expect_err("no such region");
    assert!(error.is_fatal());
    assert_eq!(duo.recv.test(&request), Err(error), "it stays");
}

proptest! {
    #[test]
    fn no_made_up_request_is_taken_for_one_that_is_under_way(raw: u32, count in 0usize..6) {
        let (nics, mut duo) = rig::connect([CommSettings { fifo_depth: 8, ..CommSettings::default() }; 2]);
        let to = Buffer::new(&nics[1], &duo.recv_pd, 64);
        let room = RecvBuf { addr: to.addr(0), len: 1, tag: 0, rkey: to.rkey() };
        let mut real = Vec::new();
        for _ in 0..count {
            real.push(duo.recv.irecv(&[room]).expect("irecv").expect("a request"));
            let _ = duo.send.isend(&SendBuf::default(), 0).expect("isend").expect("a request");
        }
        let forged = Request::from_raw(raw);
        if !real.contains(&forged) {
            let unknown = Error::UnknownRequest(forged.raw());
            prop_assert_eq!(duo.recv.test(&forged).err(), Some(unknown));
        }
        prop_assert_eq!(duo.recv.outstanding(), count);
    }
}
