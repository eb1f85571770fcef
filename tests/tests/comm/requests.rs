//! Tests when requests run out, and which requests are refused.

use invar_core::comm::{Flush, FlushBuf, Request, SendBuf};
use invar_core::conn::CommSettings;
use invar_core::error::Error;
use invar_core::nic::{Wc, WcOpcode};
use proptest::prelude::*;

use crate::line::Line;

#[test]
fn a_test_takes_all_completions_that_are_there() {
    let Line { nics: [_, nic], mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    let [first, second] = [(); 2].map(|()| duo.irecv(&[to.room(0, 8, 0)]));
    let _ = duo.isend(&SendBuf::default(), 0);
    // One poll returns just the completion of the second request. The next poll returns the real one,
    // of the first request.
    let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    nic.plan.made_up.borrow_mut().push(Wc { wr_id: 1, opcode, imm_data: 5, ..Wc::default() });
    assert_eq!(duo.recv.test(&first), Ok(Some(&[0][..])));
    assert_eq!(duo.recv.test(&second), Ok(Some(&[5][..])));
}

#[test]
fn without_a_free_request_a_call_says_none_and_after_a_test_it_works() {
    let settings = CommSettings { fifo_depth: 8, ..CommSettings::default() };
    let Line { mut duo, to, .. } = Line::new([settings; 2]);
    let room = to.room(0, 1, 0);
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
        let more = duo.irecv(&[room]);
        assert_eq!(duo.send.isend(&SendBuf::default(), 0), Ok(None), "all sends are under way");
        for request in &sent {
            assert_eq!(duo.send.test(request), Ok(Some(0)));
        }
        let last = duo.isend(&SendBuf::default(), 0);
        assert_eq!(duo.send.test(&last), Ok(Some(0)));
        assert_eq!(duo.recv.test(&more), Ok(Some(&[0][..])));
    }
}

#[test]
fn a_request_that_is_done_or_of_nobody_is_refused() {
    let Line { mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    let room = to.room(0, 1, 0);
    let received = duo.irecv(&[room]);
    let sent = duo.isend(&SendBuf::default(), 0);
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
    let _ = duo.irecv(&[room]);
}

#[test]
fn a_request_goes_through_a_plain_number() {
    let Line { mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    let room = to.room(0, 1, 0);
    let received = duo.irecv(&[room]).raw();
    assert_eq!(duo.recv.test(&Request::from_raw(received)), Ok(None));
    let _ = duo.isend(&SendBuf::default(), 0);
    assert_eq!(duo.recv.test(&Request::from_raw(received)), Ok(Some(&[0][..])));
}

#[test]
fn a_flush_reads_back_and_is_a_request() {
    let flush = CommSettings { flush: true, fifo_depth: 4, ..CommSettings::default() };
    let Line { mut duo, to, .. } = Line::new([CommSettings::default(), flush]);
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

    let Line { mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    let buf = FlushBuf { addr: to.addr(0), len: 1, rkey: to.rkey() };
    assert_eq!(duo.recv.iflush(&[buf]), Ok(Flush::NotNeeded), "flushing is off");
}

#[test]
fn a_flush_of_memory_that_is_not_there_fails_the_comm() {
    let flush = CommSettings { flush: true, ..CommSettings::default() };
    let Line { mut duo, .. } = Line::new([CommSettings::default(), flush]);
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
        let settings = CommSettings { fifo_depth: 8, ..CommSettings::default() };
        let Line { mut duo, to, .. } = Line::new([settings; 2]);
        let mut real = Vec::new();
        for _ in 0..count {
            real.push(duo.irecv(&[to.room(0, 1, 0)]));
            let _ = duo.isend(&SendBuf::default(), 0);
        }
        let forged = Request::from_raw(raw);
        if !real.contains(&forged) {
            let unknown = Error::UnknownRequest(forged.raw());
            prop_assert_eq!(duo.recv.test(&forged).err(), Some(unknown));
        }
        prop_assert_eq!(duo.recv.outstanding(), count);
    }
}
