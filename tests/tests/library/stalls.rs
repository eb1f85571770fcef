//! A connection that stands still is reported at both ends, with the end at fault.

use invar::{Ends, Error};
use invar_testkit::warnings;

use crate::*;

/// Makes `call` until both ends of a connection have warned with a line that has all these parts.
fn until_both_warn(parts: &[&str], mut call: impl FnMut()) {
    until("a warning of both ends", || {
        call();
        warnings::with(parts).len() >= 2
    });
}

fn pair_on(device: Device) -> Pair {
    warnings::keep();
    Pair::on(device, &Settings::default().stall_after(Duration::from_millis(300)), 64)
}

fn pair() -> Pair {
    pair_on(loopback())
}

#[test]
fn a_receiver_that_posts_nothing_is_named_at_both_ends() {
    let mut pair = pair();
    let pid = format!("pid {}", std::process::id());
    let parts = ["the receiver", &pid, "has posted no receive", "tag 0xa1"];
    until_both_warn(&parts, || assert!(pair.send.isend(&pair.from, 0..8, 0xa1).unwrap().is_none()));
}

#[test]
fn a_sender_that_does_not_send_is_named_at_both_ends() {
    for (device, tag) in [(loopback(), 0xa2), (over_tcp(), 0xb2)] {
        let mut pair = pair_on(device);
        let receive = pair.recv.irecv(&[(&pair.to, 0..8, tag)]).unwrap().unwrap();
        let parts = ["the sender", "has sent nothing", &format!("a receive with tag {tag:#x}")];
        until_both_warn(&parts, || assert!(pair.recv.test(&receive).unwrap().is_none()));
    }
}

#[test]
fn a_sender_with_another_tag_is_named_with_both_tags() {
    let mut pair = pair();
    let receive = pair.recv.irecv(&[(&pair.to, 0..8, 0xa3)]).unwrap().unwrap();
    let parts = ["sends with tag 0xa4", "has tag 0xa3", "disagree"];
    until_both_warn(&parts, || {
        assert!(pair.send.isend(&pair.from, 0..8, 0xa4).unwrap().is_none());
        assert!(pair.recv.test(&receive).unwrap().is_none());
    });
}

#[test]
fn a_receiver_that_does_not_test_is_named_while_its_sender_waits() {
    let mut pair = pair();
    let _ = pair.recv.irecv(&[(&pair.to, 0..8, 0xa5)]).unwrap().unwrap();
    let send = pair.isend(8, 0xa5);
    pair.send.wait(&send, LIMIT).unwrap();
    let parts = ["the receiver", "has not called test", "1 request is done and untested"];
    until_both_warn(&parts, || assert!(pair.send.isend(&pair.from, 0..8, 0xa5).unwrap().is_none()));
}

#[test]
fn a_group_that_lacks_a_send_is_named_with_the_number_of_missing_sends() {
    let mut pair = pair();
    let bufs = [(&pair.to, 0..8, 0xa6), (&pair.to, 8..16, 0xa7)];
    let receive = pair.recv.irecv(&bufs).unwrap().unwrap();
    let first = pair.isend(8, 0xa6);
    until_both_warn(&["lacks 1 of the sends for a group"], || {
        assert!(pair.send.test(&first).unwrap().is_none());
        assert!(pair.recv.test(&receive).unwrap().is_none());
    });
}

#[test]
fn an_error_that_ends_a_stall_has_the_verdict_in_it() {
    let Pair { mut send, recv, from, .. } = pair();
    until_both_warn(&["has posted no receive", "tag 0xa8"], || {
        assert!(send.isend(&from, 0..8, 0xa8).unwrap().is_none());
    });
    drop(recv);
    let error = until("the end", || send.isend(&from, 0..8, 0xa8).err());
    assert!(error.to_string().contains("before that: the receiver"), "{error}");
}

#[test]
fn a_wait_that_takes_too_long_names_both_ends_and_the_command_that_shows_more() {
    let within = Duration::from_millis(20);
    let check = |error: Error, ends: Ends, what: &str| {
        let text = error.to_string();
        let start = format!("{ends}: {what} was not complete within 20 ms: ");
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains(&format!("`invar inspect {}`", std::process::id())), "{text}");
        assert_eq!(error.device(), Some(ends.device.as_str()));
        assert!(error.peer().is_some() && error.peer() == ends.peer, "{text}");
        assert!(error.is_timeout() && !error.is_connection_lost(), "{text}");
    };
    let mut pair = Pair::new(&Settings::default(), 64);
    let error = pair.send.send(&pair.from, 0..8, 0xa9, within).unwrap_err();
    check(error, pair.send.ends(), "a send");
    // Over TCP a short send needs no receive.
    for device in [loopback(), over_tcp()] {
        let mut pair = Pair::on(device, &Settings::default(), 64);
        let error = pair.recv.recv(&pair.to, 0..8, 0xaa, within).unwrap_err();
        check(error, pair.recv.ends(), "a receive");
    }
}

#[test]
fn a_wait_that_takes_too_long_has_the_verdict_on_the_stall() {
    let mut pair = pair();
    let text = until("a verdict", || {
        let wait = pair.send.send(&pair.from, 0..8, 0xac, Duration::from_millis(20));
        let text = wait.unwrap_err().to_string();
        text.contains("has posted no receive").then_some(text)
    });
    let start = format!("{}: a send was not complete within 20 ms: ", pair.send.ends());
    assert!(text.starts_with(&start) && text.contains("tag 0xac"), "{text}");
}

#[test]
fn over_tcp_a_receiver_that_posts_nothing_is_named_at_both_ends() {
    let mut pair = pair_on(over_tcp());
    let pid = format!("pid {}", std::process::id());
    let mut ahead = Vec::new();
    until_both_warn(&["the receiver", &pid, "has posted no receive", "tag 0xb1"], || {
        ahead.extend(pair.send.isend(&pair.from, 0..8, 0xb1).unwrap());
    });
}

#[test]
fn over_tcp_a_sender_with_another_tag_is_named_with_both_tags() {
    let mut pair = pair_on(over_tcp());
    let receive = pair.recv.irecv(&[(&pair.to, 0..8, 0xb3)]).unwrap().unwrap();
    let send = pair.isend(8, 0xb4);
    pair.send.wait(&send, LIMIT).unwrap();
    let parts = ["sends with tag 0xb4", "has tag 0xb3", "disagree"];
    until_both_warn(&parts, || assert!(pair.recv.test(&receive).unwrap().is_none()));
}
