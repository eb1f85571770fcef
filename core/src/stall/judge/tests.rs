extern crate std;

use std::format;
use std::string::{String, ToString};

use super::*;
use crate::nic::NicCounters;
use crate::stall::OtherPeer;

/// A sender and a receiver that wait for nothing: four messages are through and tested.
fn ends() -> [EndView; 2] {
    let view = EndView {
        process: Process::new(11, "a"),
        begun: 4,
        done: 4,
        seen: 4,
        seen_tag: 7,
        ..EndView::default()
    };
    [view, EndView { process: Process::new(22, "b"), ..view }]
}

fn waiting(view: EndView, wait: Wait) -> EndView {
    EndView { is_waiting: true, still_ms: 12_345, wait, ..view }
}

const SEND: Wait = Wait::Send { tag: 7, len: 99 };

/// The verdict, which must be the same at both ends.
fn both(sender: EndView, receiver: EndView) -> Option<Verdict> {
    let at_sender = judge(Role::Sender, &sender, &Contact::View(receiver), OwnNetwork::default());
    let at_receiver =
        judge(Role::Receiver, &receiver, &Contact::View(sender), OwnNetwork::default());
    assert_eq!(at_sender, at_receiver);
    at_sender
}

fn cause_of(sender: EndView, receiver: EndView) -> Cause {
    both(sender, receiver).unwrap().cause
}

#[test]
fn ends_that_wait_for_nothing_are_not_stuck() {
    let [sender, receiver] = ends();
    assert_eq!(both(sender, receiver), None);
}

#[test]
fn a_receiver_without_a_receive_is_named_with_its_process_and_its_last_call() {
    let [sender, receiver] = ends();
    let receiver = EndView { call_ms: 15_000, ..receiver };
    let verdict = both(waiting(sender, SEND), receiver).unwrap();
    assert_eq!(verdict.cause, Cause::NoReceive);
    assert_eq!(verdict.cause.culprit(), Some(Role::Receiver));
    assert_eq!(
        verdict.to_string(),
        "the receiver (pid 22 on b) has posted no receive for 12.3 s, and the sender (pid 11 on a) \
         waits to send 99 bytes with tag 0x7; its program's last call was 15.0 s ago; look at that \
         program's stack (gdb -p 22, py-spy dump -p 22)"
    );
}

#[test]
fn a_program_that_waits_on_another_connection_is_not_to_be_looked_at() {
    let [sender, receiver] = ends();
    let wait = Wait::Elsewhere(OtherPeer { pid: 33, ip: [192, 0, 2, 3].into() });
    let verdict = both(waiting(sender, SEND), EndView { wait, call_ms: 15_000, ..receiver });
    assert_eq!(
        verdict.unwrap().to_string(),
        "the receiver (pid 22 on b) has posted no receive for 12.3 s, and the sender (pid 11 on a) \
         waits to send 99 bytes with tag 0x7; the receiver (pid 22 on b) waits for pid 33 at \
         192.0.2.3 on another connection: look there first"
    );
    let sender = EndView { wait, seen: 5, ..sender };
    let receiver = EndView { begun: 5, ..waiting(receiver, Wait::Test) };
    let text = both(sender, receiver).unwrap().to_string();
    assert!(
        text.contains("the sender (pid 11 on a) waits for pid 33") && !text.contains("stack"),
        "{text}"
    );
}

#[test]
fn a_receiver_that_does_not_test_is_told_apart_from_one_that_posts_nothing() {
    let [sender, receiver] = ends();
    let receiver = EndView { untested: 2, ..receiver };
    let end = Role::Receiver;
    let cause = Cause::NotTested { end, requests: 2 };
    assert_eq!(cause_of(waiting(sender, SEND), receiver), cause);
    // Nobody waits, but requests are done.
    assert_eq!(cause_of(sender, waiting(receiver, Wait::None)), cause);
    let untested = EndView { untested: 1, ..waiting(sender, Wait::None) };
    let cause = Cause::NotTested { end: Role::Sender, requests: 1 };
    assert_eq!(cause_of(untested, ends()[1]), cause);
}

#[test]
fn a_sender_that_does_not_send_is_at_fault_once_it_knows_of_the_receive() {
    let [sender, receiver] = ends();
    let receiver = EndView { begun: 5, ..waiting(receiver, Wait::Test) };
    let knows = EndView { seen: 5, ..sender };
    assert_eq!(cause_of(knows, receiver), Cause::NotSent { tag: 7 });
    let cause = Cause::Network { to: Role::Sender, count: 1 };
    assert_eq!(cause_of(sender, receiver), cause, "the announcement is lost");
    let other = waiting(knows, Wait::Send { tag: 8, len: 1 });
    assert_eq!(cause_of(other, receiver), Cause::OtherTag { sent: 8, posted: 7 });
    let untested = EndView { untested: 3, ..waiting(knows, SEND) };
    let cause = Cause::NotTested { end: Role::Sender, requests: 3 };
    assert_eq!(cause_of(untested, receiver), cause, "no request is free");
    let group = EndView { lacking: 2, ..waiting(knows, Wait::Test) };
    assert_eq!(cause_of(group, receiver), Cause::Group { lacking: 2 });
}

#[test]
fn the_network_is_at_fault_if_both_ends_are_ready_and_nothing_arrives() {
    let [sender, receiver] = ends();
    let sender = EndView { begun: 6, seen: 6, ..waiting(sender, Wait::Test) };
    let posted = EndView { begun: 6, ..waiting(receiver, Wait::Test) };
    assert_eq!(cause_of(sender, posted), Cause::Network { to: Role::Receiver, count: 2 });
    let arrived = EndView { done: 6, ..posted };
    assert_eq!(cause_of(sender, arrived), Cause::Network { to: Role::Sender, count: 2 });
    let recovers = EndView { is_recovering: true, ..posted };
    assert_eq!(cause_of(sender, recovers), Cause::Recovery);
    let in_vain = EndView { recovers_in_vain: true, ..recovers };
    let cause = Cause::Network { to: Role::Receiver, count: 2 };
    assert_eq!(cause_of(sender, in_vain), cause, "new queue pairs carry nothing either");
}

#[test]
fn a_program_is_not_blamed_while_its_queue_pairs_are_made_anew() {
    let [sender, receiver] = ends();
    let posted = EndView { begun: 5, ..waiting(receiver, Wait::Test) };
    let in_vain = EndView { seen: 5, is_recovering: true, recovers_in_vain: true, ..sender };
    assert_eq!(cause_of(in_vain, posted), Cause::Recovery);
}

/// The same ends over TCP.
fn ends_over_tcp() -> [EndView; 2] {
    ends().map(|view| EndView { moves_in_calls: true, ..view })
}

fn absent(view: EndView) -> EndView {
    EndView { call_ms: 13_000, ..view }
}

#[test]
fn a_program_whose_data_moves_in_calls_is_at_fault_if_it_makes_none() {
    let [sender, receiver] = ends_over_tcp();
    let sends = EndView { begun: 5, ..waiting(sender, Wait::Test) };
    let posted = EndView { begun: 5, seen: 5, ..waiting(receiver, Wait::Test) };
    assert_eq!(cause_of(sends, absent(posted)), Cause::NoCalls { end: Role::Receiver });
    assert_eq!(cause_of(absent(sends), posted), Cause::NoCalls { end: Role::Sender });
    assert_eq!(cause_of(sends, posted), Cause::TcpNetwork { count: 1 });
    let all_sent = EndView { done: 5, ..absent(sends) };
    assert_eq!(cause_of(all_sent, posted), Cause::TcpNetwork { count: 1 }, "the kernel has it");
}

#[test]
fn over_tcp_a_message_that_went_ahead_waits_for_the_receiver() {
    let [sender, receiver] = ends_over_tcp();
    let ahead = EndView { begun: 9, done: 8, ahead_tag: Some(7), ..waiting(sender, Wait::Test) };
    assert_eq!(cause_of(ahead, absent(receiver)), Cause::NoReceive);
    let untested = EndView { untested: 2, ..receiver };
    let cause = Cause::NotTested { end: Role::Receiver, requests: 2 };
    assert_eq!(cause_of(ahead, untested), cause);
}

#[test]
fn over_tcp_a_receive_waits_for_the_sender_whether_or_not_the_sender_knows_of_it() {
    let [sender, receiver] = ends_over_tcp();
    // The receiver has posted a group of two, and one message has met its buffer and arrived.
    let posted =
        EndView { begun: 6, done: 5, seen: 5, seen_tag: 9, ..waiting(receiver, Wait::Test) };
    let sender = EndView { begun: 5, done: 5, seen: 5, ..sender };
    for seen in [5, 6] {
        let sender = EndView { seen, ..sender };
        assert_eq!(cause_of(sender, posted), Cause::NotSent { tag: 9 });
        assert_eq!(cause_of(absent(sender), posted), Cause::NotSent { tag: 9 });
    }
    let blocked = waiting(sender, SEND);
    assert_eq!(cause_of(blocked, posted), Cause::OtherTag { sent: 7, posted: 9 });
    let same = EndView { seen_tag: 7, ..posted };
    let untested = EndView { untested: 3, ..blocked };
    let cause = Cause::NotTested { end: Role::Sender, requests: 3 };
    assert_eq!(cause_of(untested, same), cause, "no request is free");
    assert_eq!(cause_of(blocked, absent(same)), Cause::NoCalls { end: Role::Receiver });
}

#[test]
fn over_tcp_tags_that_do_not_meet_are_named() {
    let [sender, receiver] = ends_over_tcp();
    let sent = EndView { begun: 5, done: 5, ahead_tag: Some(8), ..sender };
    let posted = EndView { begun: 5, seen_tag: 9, ..waiting(receiver, Wait::Test) };
    assert_eq!(cause_of(sent, posted), Cause::OtherTag { sent: 8, posted: 9 });
    // The sender has not heard of the buffer, which its message meets.
    let equal = EndView { seen_tag: 8, ..posted };
    assert_eq!(cause_of(sent, equal), Cause::TcpNetwork { count: 1 });
    let met = EndView { seen: 5, seen_tag: 0, ..posted };
    assert_eq!(cause_of(sent, met), Cause::TcpNetwork { count: 1 });
}

#[test]
fn a_peer_that_does_not_answer_is_stopped_or_its_host_is_gone() {
    let [sender, receiver] = ends();
    let (own, process) = (waiting(sender, SEND), receiver.process);
    let cause = |host_answers| {
        let contact = Contact::Silent(process);
        let verdict =
            judge(Role::Sender, &own, &contact, OwnNetwork::of_host(host_answers)).unwrap();
        assert!(verdict.to_string().contains("the receiver (pid 22 on b)"), "{verdict}");
        verdict.cause
    };
    let end = Role::Receiver;
    assert_eq!(cause(Some(true)), Cause::Stopped { end });
    assert_eq!(cause(Some(false)), Cause::HostGone { end });
    assert_eq!(cause(None), Cause::NoReceiveSeen, "the TCP connection is lost, and no more");
    let judged = judge(Role::Sender, &sender, &Contact::Silent(process), OwnNetwork::default());
    assert_eq!(judged, None, "it waits for nothing");
}

#[test]
fn an_end_whose_own_port_is_down_or_that_recovers_does_not_blame_its_peer() {
    let [sender, receiver] = ends();
    let (own, process) = (waiting(receiver, Wait::Test), sender.process);
    let (contact, silent) = (Contact::Silent(process), OwnNetwork::of_host(Some(false)));
    let down = OwnNetwork { port_trouble: Some("the port is down"), ..silent };
    let verdict = judge(Role::Receiver, &own, &contact, down).unwrap();
    assert_eq!(
        verdict.to_string(),
        "the port of the receiver (pid 22 on b) has a fault, and nothing moves for 12.3 s: the port \
         is down; look at its interface (ip link) and its cable"
    );
    let recovers = EndView { is_recovering: true, ..own };
    let verdict = judge(Role::Receiver, &recovers, &contact, silent).unwrap();
    assert_eq!(verdict.cause, Cause::Recovery);
}

#[test]
fn an_end_that_makes_new_tcp_connections_blames_a_host_that_does_not_answer() {
    let [sender, receiver] = ends_over_tcp();
    let own = EndView { is_recovering: true, ..waiting(sender, Wait::Test) };
    let contact = Contact::Silent(receiver.process);
    let cause = |host_answers| {
        judge(Role::Sender, &own, &contact, OwnNetwork::of_host(host_answers)).unwrap().cause
    };
    let end = Role::Receiver;
    assert_eq!(cause(Some(false)), Cause::HostGone { end });
    assert_eq!(cause(Some(true)), Cause::Stopped { end });
    assert_eq!(cause(None), Cause::TcpRecovery);
}

#[test]
fn one_end_alone_says_what_it_sees_and_that_it_sees_one_side() {
    let [sender, receiver] = ends();
    let one = |role, view: EndView| -> (Cause, String) {
        let verdict = judge(role, &view, &Contact::None, OwnNetwork::default()).unwrap();
        (verdict.cause, verdict.to_string())
    };
    let (cause, text) = one(Role::Sender, waiting(sender, SEND));
    assert_eq!(cause, Cause::NoReceiveSeen);
    assert!(text.ends_with("since the peer says nothing of itself)"), "{text}");
    let sent = EndView { begun: 6, ..waiting(sender, Wait::Test) };
    assert_eq!(one(Role::Sender, sent).0, Cause::NotAcknowledged { count: 2 });
    let other = EndView { seen: 5, ..waiting(sender, Wait::Send { tag: 8, len: 1 }) };
    assert_eq!(one(Role::Sender, other).0, Cause::OtherTag { sent: 8, posted: 7 });
    let posted = EndView { begun: 5, ..waiting(receiver, Wait::Test) };
    assert_eq!(one(Role::Receiver, posted).0, Cause::NothingArrives);
    assert_eq!(judge(Role::Receiver, &receiver, &Contact::None, OwnNetwork::default()), None);
}

#[test]
fn a_verdict_on_the_network_says_which_port_and_which_rails_of_this_end_are_down() {
    let [sender, receiver] = ends();
    let own = OwnNetwork {
        port_trouble: Some("the port is down"),
        rails_down: 0b1010,
        ..OwnNetwork::default()
    };
    let recovers = EndView { is_recovering: true, ..waiting(sender, Wait::Test) };
    let verdict = Verdict { own, ..both(recovers, receiver).unwrap() };
    let text = verdict.to_string();
    let end = "; this end's port has a fault: the port is down; rail 1 is down; rail 3 is down";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn a_verdict_on_the_network_says_how_the_counters_of_this_ends_nic_have_grown() {
    let [sender, receiver] = ends();
    let before = NicCounters { ack_timeouts: 7, ..NicCounters::default() };
    let now = NicCounters {
        retransmitted_packets: 14,
        out_of_order_packets: 3,
        ack_timeouts: 12,
        corrupt_packets: 1,
        dropped_packets: 1,
        ..NicCounters::default()
    };
    let own = OwnNetwork { counted: Some((now.since(before), 9_800)), ..OwnNetwork::default() };
    let sent = EndView { begun: 6, seen: 6, ..waiting(sender, Wait::Test) };
    let posted = EndView { begun: 6, ..waiting(receiver, Wait::Test) };
    let text = judge(Role::Sender, &sent, &Contact::View(posted), own).unwrap().to_string();
    let end = "; in 9.8 s of the stall this end's NIC counts 14 packets sent again, 3 out of order, 2 \
               dropped and 5 late acknowledges, of all its connections";
    assert!(text.ends_with(end), "{text}");
    let program = judge(Role::Sender, &waiting(sender, SEND), &Contact::View(receiver), own);
    assert!(!program.unwrap().to_string().contains("NIC"), "the network is not at fault");
}

#[test]
fn every_verdict_names_both_ends_and_the_time() {
    let [sender, receiver] = ends();
    let (end, to, count) = (Role::Receiver, Role::Receiver, 3);
    let causes = [
        Cause::NoReceive,
        Cause::NotTested { end, requests: 1 },
        Cause::NoCalls { end },
        Cause::NotSent { tag: 7 },
        Cause::OtherTag { sent: 8, posted: 7 },
        Cause::Group { lacking: 2 },
        Cause::Network { to, count },
        Cause::TcpNetwork { count },
        Cause::Recovery,
        Cause::TcpRecovery,
        Cause::Port { end, trouble: "the port is down" },
        Cause::Stopped { end },
        Cause::HostGone { end },
        Cause::NoReceiveSeen,
        Cause::NothingArrives,
        Cause::NotAcknowledged { count },
    ];
    let processes = [sender.process, receiver.process];
    for cause in causes {
        let own = OwnNetwork::default();
        let (still_ms, call_ms, wait, elsewhere) = (12_345, 1, SEND, None);
        let verdict = Verdict { cause, processes, still_ms, call_ms, wait, elsewhere, own };
        let text = format!("{verdict}");
        assert!(text.contains("12.3 s"), "{text}");
        assert!(text.contains("pid 22 on b") || text.contains("pid 11 on a"), "{text}");
        let is_about_a_program = matches!(
            cause,
            Cause::NoReceive
                | Cause::NotTested { .. }
                | Cause::NotSent { .. }
                | Cause::NoCalls { .. }
                | Cause::HostGone { .. }
        );
        assert!(!is_about_a_program || text.contains("; look at "), "{text}");
    }
}
