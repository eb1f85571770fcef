//! A receiving comm that closes waits until its last writes have reached the peer.

use invar_core::comm::{Closing, RecvBuf};
use invar_core::conn::CommSettings;
use invar_core::nic::{SendFlags, SendOpcode, Verb, Wc, WcStatus};
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;

use crate::meddler::Meddler;

/// A receiver that waits for a message, and its sender. Completions are held back.
struct Line {
    nic: Meddler,
    duo: Duo<Meddler>,
    _to: Buffer<Meddler>,
}

impl Line {
    fn new() -> Line {
        let [a, b] = NullNic::ports::<2>().map(Meddler::new);
        let mut duo =
            duo::connect([&a, &b], [CommSettings::default(); 2], || {}).expect("connected");
        let to = Buffer::new(&b, &duo.recv_pd, 64);
        let room = RecvBuf { addr: to.addr(0), len: 64, tag: 0, rkey: to.rkey() };
        let _ = duo.recv.irecv(&[room]).expect("irecv").expect("a request");
        b.plan.holding.set(true);
        Line { nic: b, duo, _to: to }
    }

    /// Closes the receiver. Also returns the sender's half, which still exists.
    fn close(self) -> (Meddler, Closing<Meddler, Pipe>, impl Sized) {
        let Duo { send, recv, .. } = self.duo;
        (self.nic, recv.close(), (send, self._to))
    }
}

#[test]
fn it_is_over_once_all_that_was_posted_before_has_completed() {
    let (nic, mut closing, _sender) = Line::new().close();
    let (_, last) = *nic.plan.posted.borrow().last().expect("a request");
    assert_eq!((last.opcode, last.sge.length), (SendOpcode::RdmaWrite, 0));
    assert_eq!(last.flags, SendFlags::SIGNALED);
    for _ in 0..3 {
        assert!(!closing.poll());
    }
    nic.plan.holding.set(false);
    assert!(closing.poll() && closing.poll());
}

#[test]
fn it_is_over_at_once_where_nothing_waits() {
    let [a, b] = NullNic::ports::<2>().map(Meddler::new);
    let duo = duo::connect([&a, &b], [CommSettings::default(); 2], || {}).expect("connected");
    b.plan.holding.set(true);
    assert!(duo.recv.close().poll());
    assert!(b.plan.posted.borrow().is_empty());
}

#[test]
fn it_is_over_where_nobody_is_there_to_be_told() {
    let (_nic, mut closing, sender) = Line::new().close();
    assert!(!closing.poll());
    drop(sender);
    assert!(closing.poll());
}

#[test]
fn it_is_over_where_the_queue_pair_is_in_error() {
    let (nic, mut closing, _sender) = Line::new().close();
    assert!(!closing.poll());
    nic.plan.holding.set(false);
    let status = WcStatus::RETRY_EXC_ERR;
    nic.plan.made_up.borrow_mut().push(Wc { status, ..Wc::default() });
    assert!(closing.poll());

    let line = Line::new();
    line.nic.plan.failing.set(Some(Verb::PostSend));
    let (_nic, mut closing, _sender) = line.close();
    assert!(closing.poll());
}
