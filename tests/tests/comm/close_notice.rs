//! A receiver that closes tells the sender which messages have arrived, whether or not the NIC's
//! acknowledges did.

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_core::nic::{Wc, WcStatus};
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;

use crate::meddler::Meddler;

/// A sender whose completions are held back, and its receiver.
struct Line {
    sender: Meddler,
    duo: Duo<Meddler>,
    from: Buffer<Meddler>,
    to: Buffer<Meddler>,
}

impl Line {
    fn new(settings: CommSettings) -> Line {
        let [a, b] = NullNic::ports::<2>().map(Meddler::new);
        let duo = duo::connect([&a, &b], [settings; 2], || {}).expect("connected");
        let from = Buffer::new(&a, &duo.send_pd, 64);
        let to = Buffer::new(&b, &duo.recv_pd, 64);
        a.plan.holding.set(true);
        Line { sender: a, duo, from, to }
    }

    fn post(&mut self, bufs: usize) -> Request {
        let room = RecvBuf { addr: self.to.addr(0), len: 64, tag: 0, rkey: self.to.rkey() };
        self.duo.recv.irecv(&vec![room; bufs]).expect("irecv").expect("a request")
    }

    fn send(&mut self) -> Request {
        let buf = SendBuf { addr: self.from.addr(0), len: 8, lkey: self.from.lkey() };
        self.duo.send.isend(&buf, 0).expect("isend").expect("a request")
    }

    /// Sends and receives a message whose completion the sender's NIC holds back.
    fn deliver(&mut self) -> Request {
        let receive = self.post(1);
        let send = self.send();
        assert!(self.duo.recv.test(&receive).expect("test").is_some());
        assert_eq!(self.duo.send.test(&send), Ok(None));
        send
    }
}

#[test]
fn a_send_that_arrived_is_done_though_its_acknowledge_was_lost() {
    for fifo_depth in [2, 256] {
        let mut line = Line::new(CommSettings { fifo_depth, ..CommSettings::default() });
        let sends = [line.deliver(), line.deliver()];
        let Duo { mut send, recv, .. } = line.duo;
        drop(recv.close());
        let is_closed = |error| matches!(error, Err(Error::PeerClosed(_)));
        assert!(is_closed(send.check_peer(0)));
        assert_eq!(sends.map(|request| send.test(&request)), [Ok(Some(8)); 2]);
        assert!(is_closed(send.check_peer(0)), "and nothing new can begin");
    }
}

#[test]
fn a_send_that_arrived_is_done_though_the_nic_gave_it_up() {
    let mut line = Line::new(CommSettings::default());
    let request = line.deliver();
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    let (status, wr_id) = (WcStatus::RETRY_EXC_ERR, request.raw().into());
    line.sender.plan.holding.set(false);
    line.sender.plan.made_up.borrow_mut().push(Wc { status, wr_id, ..Wc::default() });
    assert_eq!(send.test(&request), Ok(Some(8)));
}

#[test]
fn the_messages_of_a_group_that_arrived_are_done() {
    let mut line = Line::new(CommSettings::default());
    let _ = line.post(3);
    let sends = [line.send(), line.send(), line.send()];
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    assert!(send.check_peer(0).is_err());
    assert_eq!(sends.map(|request| send.test(&request)), [Ok(Some(8)); 3]);
}

#[test]
fn a_send_that_did_not_arrive_fails_at_once() {
    let mut line = Line::new(CommSettings::default());
    let arrived = line.deliver();
    let _ = line.post(2);
    // The group still waits for its second message.
    let waiting = line.send();
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    assert!(send.check_peer(0).is_err());
    assert_eq!(send.test(&arrived), Ok(Some(8)));
    assert!(matches!(send.test(&waiting), Err(Error::PeerClosed(_))));
}

#[test]
fn on_the_wire_of_nccl_2_14_nothing_is_said() {
    let mut line = Line::new(CommSettings { wire: Wire::Nccl214, ..CommSettings::default() });
    let request = loop {
        let room = RecvBuf { addr: line.to.addr(0), len: 64, tag: 0, rkey: line.to.rkey() };
        let _ = line.duo.recv.irecv(&[room]).expect("irecv");
        let buf = SendBuf { addr: line.from.addr(0), len: 8, lkey: line.from.lkey() };
        if let Some(request) = line.duo.send.isend(&buf, 0).expect("isend") {
            break request;
        }
    };
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    assert!(send.check_peer(0).is_err());
    assert_eq!(send.test(&request), Ok(None), "the NIC may still say that it arrived");
}
