use super::*;

fn work(operation: Operation, redop: Option<RedOp>) -> Work {
    Work { operation, count: 1000, data_type: DataType::F32, redop }
}

fn board(after_ns: u64) -> Board {
    let process = Process::new(7, "a");
    Board::new(1, 9, &StallSettings { after_ns, process, ..StallSettings::default() })
}

#[test]
fn an_operation_is_described_with_all_that_ranks_must_agree_on() {
    let text = |work: &Work| describe(code(work), work.count as u64).as_str().to_owned();
    let all_reduce = work(Operation::AllReduce, Some(RedOp::Max));
    assert_eq!(text(&all_reduce), "all_reduce of 1000 F32, Max");
    assert_eq!(text(&work(Operation::Recv { peer: 3 }, None)), "recv of 1000 F32 from rank 3");
    let reduce = work(Operation::Reduce { root: 2 }, Some(RedOp::Avg));
    assert_eq!(text(&reduce), "reduce of 1000 F32, Avg to rank 2");
    assert_eq!(describe(0, 0), "");
}

#[test]
fn a_rank_is_stuck_only_inside_an_operation_and_while_nothing_moves() {
    let board = board(2);
    assert!(!board.view().is_stuck);
    board.enter(&work(Operation::AllReduce, Some(RedOp::Sum)));
    assert!(!board.view().is_stuck, "it waits for nobody");
    board.wait_for(2);
    board.view();
    let view = board.view();
    assert!(view.is_stuck && view.is_collective);
    assert_eq!((view.entered, view.waits_for), (1, Some(2)));
    board.moved();
    assert!(!board.view().is_stuck);
    board.leave();
    assert!(!board.view().is_inside);
}

#[test]
fn a_rank_counts_the_operations_of_each_batch_and_their_bytes() {
    let board = board(2);
    let works =
        [work(Operation::AllReduce, Some(RedOp::Sum)), work(Operation::Send { peer: 3 }, None)];
    board.done(works.iter());
    board.done(works[..1].iter());
    let expected = RankNumbers { operations: 3, bytes: 12_000, ..RankNumbers::default() };
    assert_eq!(board.numbers(0), expected);
}

#[test]
fn a_rank_counts_a_stall_once_and_the_next_stall_anew() {
    let board = board(1_000_000_000);
    let told = |still_ms| {
        let still = Duration::from_millis(still_ms);
        board.verdict(GroupVerdict {
            still,
            culprit: None,
            is_mismatch: false,
            text: String::new(),
        });
        board.numbers(0).stalls
    };
    assert_eq!([500, 1000, 1500, 2000, 5000].map(told), [0, 1, 1, 1, 1]);
    assert_eq!([600, 1100].map(told), [1, 2]);
}

#[test]
fn a_rank_whose_collective_differs_from_a_peers_is_stuck_at_once_and_waits_for_nobody() {
    let board = Board::new(1, 9, &StallSettings::default());
    board.enter(&work(Operation::Send { peer: 2 }, None));
    assert!(!board.differ() && !board.view().is_stuck);
    board.enter(&work(Operation::AllReduce, Some(RedOp::Sum)));
    board.wait_for(2);
    assert!(!board.view().is_stuck);
    assert!(board.differ());
    let RankView { is_stuck, waits_for, .. } = board.view();
    assert_eq!((is_stuck, waits_for), (true, None));
    let (still, text) = (Duration::ZERO, "why".to_owned());
    board.verdict(GroupVerdict { still, culprit: Some(2), is_mismatch: true, text });
    assert_eq!(board.told().unwrap().culprit, Some(2));
}

#[test]
fn a_verdict_from_before_a_wait_names_nobody_for_this_wait() {
    let board = board(2);
    assert_eq!(board.culprit(Duration::MAX), None);
    let (still, text) = (Duration::ZERO, "why".to_owned());
    board.verdict(GroupVerdict { still, culprit: Some(2), is_mismatch: false, text });
    assert_eq!(board.culprit(Duration::MAX), Some(2));
    assert_eq!(board.culprit(Duration::ZERO), None);
}
