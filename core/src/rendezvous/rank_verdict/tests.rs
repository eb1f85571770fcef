extern crate std;

use std::string::ToString;
use std::vec::Vec;

use super::*;
use crate::stall::Process;

/// A rank inside collective 17, which waits for the rank before it.
fn inside(rank: u32, nranks: u32) -> RankView {
    RankView {
        process: Process::new(4700 + rank, "node"),
        entered: 17,
        operation: "all_reduce of 1000 F32, Sum".try_into().unwrap(),
        is_collective: true,
        is_inside: true,
        waits_for: Some((rank + nranks - 1) % nranks),
        in_flight_to: None,
        still_ms: 12_000 + rank,
        is_stuck: true,
    }
}

/// Four ranks in a ring that all wait.
fn ring() -> Vec<RankState> {
    (0..4).map(|rank| RankState::View(inside(rank, 4))).collect()
}

fn judged(states: &[RankState]) -> RankVerdict<'_> {
    judge_ranks(states).unwrap()
}

fn outside(rank: u32) -> RankView {
    let (entered, still_ms) = (16, 13_500);
    RankView {
        entered,
        is_inside: false,
        waits_for: None,
        still_ms,
        is_stuck: false,
        ..inside(rank, 4)
    }
}

#[test]
fn the_rank_that_has_not_entered_is_named_though_nobody_waits_for_it_directly() {
    let mut states = ring();
    states[2] = RankState::View(outside(2));
    let verdict = judged(&states);
    assert_eq!((verdict.culprit, verdict.waiting.0), (Some(2), 3));
    assert_eq!(
        verdict.to_string(),
        "rank 2 (pid 4702 on node) has not entered collective 17, all_reduce of 1000 F32, Sum; its \
         last call, collective 16, all_reduce of 1000 F32, Sum, ended 13.5 s ago; rank 3 (pid 4703 \
         on node) has waited for 12.0 s; look at the stack of rank 2 (gdb -p 4702, py-spy dump -p 4702)"
    );
    states[2] = RankState::View(RankView { operation: <_>::default(), ..outside(2) });
    assert!(judged(&states).to_string().contains("it has made no call yet"));
}

#[test]
fn a_rank_that_does_not_answer_is_named_once_it_had_time_to_answer() {
    let mut states = ring();
    states[1] = RankState::Unknown;
    assert_eq!(judge_ranks(&states), None);
    let process = "s; look at the state of rank 1 (ps -o stat,wchan -p 4701)";
    let host = "s; look at the console and the link of rank 1's host";
    for (host_answers, action) in [(None, process), (Some(true), process), (Some(false), host)] {
        states[1] = RankState::Silent { last: Some(inside(1, 4)), host_answers };
        let verdict = judged(&states);
        assert_eq!(verdict.culprit, Some(1));
        assert!(verdict.to_string().ends_with(action), "{verdict}");
    }
    let text = judged(&states).to_string();
    assert!(text.starts_with("rank 1 (pid 4701 on node) does not answer, nor does"), "{text}");
    states[1] = RankState::Left;
    let verdict = judged(&states);
    assert_eq!(verdict.cause, RankCause::Left);
    let action = "s; look at the log and the exit status of rank 1's program";
    assert!(verdict.to_string().ends_with(action), "{verdict}");
}

#[test]
fn the_rank_with_another_operation_is_named_by_majority() {
    let mut states = ring();
    let operation = "broadcast of 1000 F32 from 0".try_into().unwrap();
    states[3] = RankState::View(RankView { operation, ..inside(3, 4) });
    let verdict = judged(&states);
    assert_eq!(verdict.culprit, Some(3));
    assert!(matches!(verdict.cause, RankCause::Mismatch { other: (0, _), .. }));
    let action = "s; look at the stack of rank 3 (gdb -p 4703, py-spy dump -p 4703)";
    assert!(verdict.to_string().ends_with(action), "{verdict}");
    // Of two ranks neither is in the majority.
    let two = [inside(0, 2), RankView { operation: "x".try_into().unwrap(), ..inside(1, 2) }];
    let two = two.map(RankState::View);
    let verdict = judged(&two);
    assert_eq!(verdict.culprit, None);
    let text = verdict.to_string();
    assert!(
        text.starts_with("rank 1 (pid 4701 on node) runs collective 17, x, and rank 0 (pid"),
        "{text}"
    );
    let action =
        "s; look at the stacks of rank 1 (gdb -p 4701, py-spy dump -p 4701) and rank 0 (gdb";
    assert!(text.contains(action), "{text}");
    // Ranks that have met messages of other lengths have not waited.
    let at_once = two.clone().map(|state| match state {
        RankState::View(view) => RankState::View(RankView { still_ms: 20, ..view }),
        other => other,
    });
    let text = judged(&at_once).to_string();
    assert!(text.contains("same count and type; look at the stacks of rank 1"), "{text}");
    // Nor are two ranks of four, while the fourth one has not entered the collective.
    let mut three = states.clone();
    three[2] = RankState::View(outside(2));
    assert_eq!(judged(&three).culprit, None);
    assert!(matches!(judged(&three).cause, RankCause::Mismatch { rank: (3, _), .. }));
    // A root that has sent less than the others await is done.
    let operation = "broadcast of 500 F32 from 0".try_into().unwrap();
    states[3] = RankState::View(RankView { operation, entered: 17, ..outside(3) });
    assert_eq!(judged(&states).culprit, Some(3));
    assert!(matches!(judged(&states).cause, RankCause::Mismatch { .. }));
}

#[test]
fn the_network_is_at_fault_if_a_rank_has_sent_what_another_waits_for() {
    let mut states = ring();
    let sends = RankView { in_flight_to: Some(2), ..inside(1, 4) };
    states[1] = RankState::View(sends);
    let verdict = judged(&states);
    assert_eq!(verdict.culprit, None);
    assert!(matches!(verdict.cause, RankCause::Network { from: (1, _), to: (2, _) }));
    // The rank has finished the collective in which another still waits for its data.
    states[1] = RankState::View(RankView { entered: 17, ..outside(1) });
    assert!(matches!(judged(&states).cause, RankCause::Network { from: (1, _), to: (2, _) }));
}

#[test]
fn ranks_that_all_wait_in_the_same_operation_are_a_circle_and_others_are_not_stuck() {
    assert_eq!(judged(&ring()).cause, RankCause::Circle);
    // Both ranks receive before they send.
    let receives = |rank| {
        let operation = "recv of 3 F64 from the other".try_into().unwrap();
        RankState::View(RankView { is_collective: false, operation, ..inside(rank, 2) })
    };
    let text = judged(&[receives(0), receives(1)]).to_string();
    assert!(text.starts_with("ranks wait for each other, one of them in recv of 3"), "{text}");
    let mut states = ring();
    states[0] = RankState::View(RankView { waits_for: None, ..inside(0, 4) });
    let verdict = judged(&states);
    assert!(matches!(verdict.cause, RankCause::Busy(_)));
    assert!(
        verdict.to_string().contains("s; look at the stack of rank 0 (gdb -p 4700"),
        "{verdict}"
    );
    assert_eq!(judge_ranks(&[RankState::View(outside(0)), RankState::Left]), None);
    states[0] = RankState::View(RankView { is_stuck: false, ..inside(0, 4) });
    assert_eq!(judge_ranks(&states), None, "a rank that has just moved");
    let far = RankView { waits_for: Some(99), ..inside(0, 4) };
    assert_eq!(judge_ranks(&[RankState::View(far)]), None, "a rank that does not exist");
}
