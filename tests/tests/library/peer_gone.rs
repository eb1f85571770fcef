//! When a peer is gone, pending requests end soon with an error that names the peer.

use std::error::Error;

use invar::ErrorKind;

use crate::*;

/// The time limit. It is well above the time between two checks of the peer, and well below any retry.
const SOON: Duration = Duration::from_secs(3);

#[test]
fn a_sender_without_a_slot_learns_that_its_receiver_is_gone() {
    let Pair { mut send, recv, from, device, .. } = Pair::new(&Settings::default(), 64);
    let peer = send.ends().peer;
    assert!(peer.is_some());
    drop(recv);
    let error = send.send(&from, 0..8, 1, SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    assert!(error.to_string().contains("the peer has closed or is dead"), "{error}");
    assert!(error.is_connection_lost() && !error.is_timeout(), "{error}");
    assert_eq!((error.device(), error.peer()), (Some(device.info().name.as_str()), peer));
    assert_eq!(error.rank(), None);
    assert!(error.to_string().ends_with(&error.source().unwrap().to_string()), "{error}");
    // Later calls return this error too.
    let error = send.isend(&from, 0..8, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
}

#[test]
fn a_receiver_learns_that_its_sender_is_gone() {
    let Pair { send, mut recv, to, .. } = Pair::new(&Settings::default(), 64);
    let receive = recv.irecv(&[(&to, 0..8, 1)]).unwrap().unwrap();
    drop(send);
    let error = recv.wait(&receive, SOON).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    assert!(recv.test(&receive).is_err());
}

#[test]
fn a_send_under_way_ends_when_its_receiver_is_gone() {
    const BYTES: usize = 8 << 20;
    let mut pair = Pair::new(&Settings::default(), BYTES);
    let _ = pair.recv.irecv(&[(&pair.to, 0..BYTES, 1)]).unwrap().unwrap();
    let send = pair.isend(BYTES, 1);
    drop(pair.recv);
    // All bytes may have arrived just in time.
    if let Err(error) = pair.send.wait(&send, SOON) {
        assert_eq!(error.kind(), ErrorKind::Peer, "{error}");
    }
}

#[test]
fn what_was_sent_before_the_peer_left_is_received() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let receive = pair.recv.irecv(&[(&pair.to, 0..64, 1)]).unwrap().unwrap();
    let send = pair.isend(64, 1);
    pair.send.wait(&send, LIMIT).unwrap();
    drop(pair.send);
    assert_eq!(pair.recv.wait(&receive, LIMIT).unwrap().sizes(), [64]);
    assert_eq!(content(&pair.to, 64), pattern(0, 64));
}

#[test]
fn messages_that_came_before_the_sender_closed_are_received_after_a_receive_was_refused() {
    let Pair { mut send, mut recv, from, to, .. } = Pair::new(&Settings::default(), 64);
    let posted = [(); 2].map(|()| recv.irecv(&[(&to, 0..64, 7)]).unwrap().unwrap());
    for _ in 0..2 {
        send.send(&from, 0..64, 7, LIMIT).unwrap();
    }
    drop(send);
    until("a receive that is refused", || recv.irecv(&[(&to, 0..64, 7)]).is_err());
    for request in &posted {
        assert_eq!(recv.wait(request, LIMIT).unwrap().sizes(), [64]);
    }
    assert_eq!(content(&to, 64), content(&from, 64));
}
