//! A receiver that closes tells the sender which messages have arrived, whether or not the NIC's
//! acknowledges did.

use invar_core::comm::Request;
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_core::nic::{Wc, WcStatus};
use invar_testkit::duo::Duo;

use crate::line::Line;

/// A sender whose completions are held back, and its receiver.
fn held_back(settings: CommSettings) -> Line {
    let line = Line::new([settings; 2]);
    line.nics[0].plan.holding.set(true);
    line
}

fn post(line: &mut Line, bufs: usize) -> Request {
    line.duo.irecv(&vec![line.to.room(0, 64, 0); bufs])
}

fn send(line: &mut Line) -> Request {
    line.duo.isend(&line.from.message(0, 8), 0)
}

/// Sends and receives a message whose completion the sender's NIC holds back.
fn deliver(line: &mut Line) -> Request {
    let receive = post(line, 1);
    let send = send(line);
    assert!(line.duo.recv.test(&receive).expect("test").is_some());
    assert_eq!(line.duo.send.test(&send), Ok(None));
    send
}

#[test]
fn a_send_that_arrived_is_done_though_its_acknowledge_was_lost() {
    for fifo_depth in [2, 256] {
        let mut line = held_back(CommSettings { fifo_depth, ..CommSettings::default() });
        let sends = [deliver(&mut line), deliver(&mut line)];
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
    let mut line = held_back(CommSettings::default());
    let request = deliver(&mut line);
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    let (status, wr_id) = (WcStatus::RETRY_EXC_ERR, request.raw().into());
    line.nics[0].plan.holding.set(false);
    line.nics[0].plan.made_up.borrow_mut().push(Wc { status, wr_id, ..Wc::default() });
    assert_eq!(send.test(&request), Ok(Some(8)));
}

#[test]
fn the_messages_of_a_group_that_arrived_are_done() {
    let mut line = held_back(CommSettings::default());
    let _ = post(&mut line, 3);
    let sends = [send(&mut line), send(&mut line), send(&mut line)];
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    assert!(send.check_peer(0).is_err());
    assert_eq!(sends.map(|request| send.test(&request)), [Ok(Some(8)); 3]);
}

#[test]
fn a_send_that_did_not_arrive_fails_at_once() {
    let mut line = held_back(CommSettings::default());
    let arrived = deliver(&mut line);
    let _ = post(&mut line, 2);
    // The group still waits for its second message.
    let waiting = send(&mut line);
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    assert!(send.check_peer(0).is_err());
    assert_eq!(send.test(&arrived), Ok(Some(8)));
    assert!(matches!(send.test(&waiting), Err(Error::PeerClosed(_))));
}

#[test]
fn on_the_wire_of_nccl_2_14_nothing_is_said() {
    let mut line = held_back(CommSettings { wire: Wire::Nccl214, ..CommSettings::default() });
    let request = loop {
        let _ = line.duo.recv.irecv(&[line.to.room(0, 64, 0)]).expect("irecv");
        let message = line.from.message(0, 8);
        if let Some(request) = line.duo.send.isend(&message, 0).expect("isend") {
            break request;
        }
    };
    let Duo { mut send, recv, .. } = line.duo;
    drop(recv.close());
    assert!(send.check_peer(0).is_err());
    assert_eq!(send.test(&request), Ok(None), "the NIC may still say that it arrived");
}
