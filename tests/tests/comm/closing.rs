//! A receiving comm that closes waits until its last writes have reached the peer.

use invar_core::comm::Closing;
use invar_core::conn::CommSettings;
use invar_core::nic::{SendFlags, SendOpcode, Verb, WcStatus};
use invar_testkit::duo::Duo;
use invar_testkit::pipe::Pipe;

use crate::line::Line;
use crate::meddler::Meddler;

/// A receiver that waits for a message, and its sender. The receiver's completions are held back.
fn waiting() -> Line {
    let mut line = Line::new([CommSettings::default(); 2]);
    let _ = line.irecv(0);
    line.nics[1].plan.holding.set(true);
    line
}

/// Closes the receiver. Also returns the receiver's port, and the sender's half, which still exists.
fn close(line: Line) -> (Meddler, Closing<Meddler, Pipe>, impl Sized) {
    let Line { nics: [_, nic], duo: Duo { send, recv, .. }, to, .. } = line;
    (nic, recv.close(), (send, to))
}

#[test]
fn it_is_over_once_all_that_was_posted_before_has_completed() {
    let (nic, mut closing, _sender) = close(waiting());
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
    let Line { nics: [_, nic], duo, .. } = Line::new([CommSettings::default(); 2]);
    nic.plan.holding.set(true);
    assert!(duo.recv.close().poll());
    assert!(nic.plan.posted.borrow().is_empty());
}

#[test]
fn it_is_over_where_nobody_is_there_to_be_told() {
    let (_nic, mut closing, sender) = close(waiting());
    assert!(!closing.poll());
    drop(sender);
    assert!(closing.poll());
}

#[test]
fn it_is_over_where_the_queue_pair_is_in_error() {
    let (nic, mut closing, _sender) = close(waiting());
    assert!(!closing.poll());
    nic.plan.holding.set(false);
    nic.complete_with(WcStatus::RETRY_EXC_ERR);
    assert!(closing.poll());

    let line = waiting();
    line.nics[1].plan.failing.set(Some(Verb::PostSend));
    let (_nic, mut closing, _sender) = close(line);
    assert!(closing.poll());
}
