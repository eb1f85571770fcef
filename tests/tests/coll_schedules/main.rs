//! Runs schedules of collectives on model ranks that wait for each other as real ranks do.

mod world;

use invar_core::coll::{Algorithm, DataType, Operation, Order, Schedule, Task, TaskError};
use invar_testkit::model::coll;
use proptest::prelude::*;
use world::{Symbol, Work};

/// Compares the result with the definition of the operation. The sums reveal a missing or doubled
/// input.
fn check(work: &Work, seed: u64) {
    let (before, after) = work.run(seed);
    let nranks = before.len();
    let input = |rank: usize, at: usize| before[rank].input()[at];
    let sum = |at: usize| (0..nranks).fold(0u64, |sum, rank| sum.wrapping_add(input(rank, at).sum));
    for (rank, buffers) in after.iter().enumerate() {
        for (at, found) in buffers.output().iter().enumerate() {
            let (block, place) = match work.count {
                0 => (0, 0),
                count => (at / count, at % count),
            };
            let copied = |expected: Symbol| assert_eq!(*found, expected, "seed {seed}, {work:?}");
            let reduced = |at: usize| {
                assert_eq!((found.sum, found.finished), (sum(at), 1), "seed {seed}, {work:?}");
            };
            match work.operation {
                Operation::AllReduce => {
                    reduced(at);
                    let first = after[0].output()[at];
                    assert_eq!(*found, first, "seed {seed}, {work:?}: ranks 0 and {rank} differ");
                }
                Operation::ReduceScatter => reduced(rank * work.count + at),
                Operation::Reduce { .. } => reduced(at),
                Operation::AllGather => copied(input(block, place)),
                Operation::AllToAll => copied(input(block, rank * work.count + place)),
                Operation::Broadcast { root } => copied(input(root as usize, at)),
                Operation::Send { .. } | Operation::Recv { .. } => unreachable!("not among all"),
            }
        }
    }
}

#[test]
fn every_operation_is_right_among_one_to_eight_ranks() {
    for nranks in 1..=8 {
        for (operation, algorithm) in coll::all(nranks) {
            for count in [0, 1, 2, 7, 8, 9, 64, 67, 300] {
                for nchannels in [1, 2] {
                    let in_place = count % 2 == 1 && operation != Operation::AllToAll;
                    let order = (0..nranks).collect();
                    let (data_type, slot_bytes) = (DataType::F32, 128);
                    check(
                        &Work {
                            operation,
                            algorithm,
                            order,
                            count,
                            data_type,
                            nchannels,
                            slot_bytes,
                            in_place,
                        },
                        count as u64,
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_operation_is_right_in_any_order_of_ranks_and_events(
        order in (1u32..14).prop_flat_map(|n| Just((0..n).collect::<Vec<u32>>()).prop_shuffle()),
        which: prop::sample::Index,
        count in prop_oneof![0usize..20, 0usize..2000],
        data_type in prop::sample::select(&DataType::ALL[..]),
        nchannels in 1u32..5,
        slot_bytes in prop_oneof![8usize..200, 8usize..5000],
        in_place: bool,
        seed: u64,
    ) {
        let all = coll::all(order.len() as u32);
        let (operation, algorithm) = all[which.index(all.len())];
        let in_place = in_place && operation != Operation::AllToAll;
        let work =
            Work { operation, algorithm, order, count, data_type, nchannels, slot_bytes, in_place };
        check(&work, seed);
    }
}

proptest! {
    #[test]
    fn transfers_of_other_counts_part_at_a_chunk_of_another_length(
        counts in (0usize..3000, 0usize..3000),
        nchannels in 1u32..5,
        slot_bytes in 8usize..5000,
    ) {
        let ranks = [0, 1];
        let order = Order::new(&ranks[..]).unwrap();
        let steps = |rank, operation, count, channel| {
            let task = task(operation, Algorithm::Ring, rank);
            let schedule = Schedule::new(order, &Task { count, channel, nchannels, slot_bytes, ..task });
            schedule.unwrap().map(|step| step.count).collect::<Vec<_>>()
        };
        let (mut sent, mut received, mut parted) = (0, 0, false);
        for channel in 0..nchannels {
            let send = steps(0, Operation::Send { peer: 1 }, counts.0, channel);
            let recv = steps(1, Operation::Recv { peer: 0 }, counts.1, channel);
            sent += send.iter().sum::<usize>();
            received += recv.iter().sum::<usize>();
            parted |= send.iter().zip(&recv).any(|(send, recv)| send != recv);
        }
        prop_assert_eq!((sent, received), counts);
        prop_assert_eq!(parted, counts.0 != counts.1);
    }
}

fn task(operation: Operation, algorithm: Algorithm, rank: u32) -> Task {
    let (data_type, channel, nchannels, slot_bytes) = (DataType::F64, 0, 1, 1024);
    Task { operation, algorithm, count: 300, data_type, rank, channel, nchannels, slot_bytes }
}

#[test]
fn both_ends_of_a_transfer_cut_it_alike() {
    let ranks = [0, 1, 2];
    let order = Order::new(&ranks[..]).unwrap();
    let steps = |rank, operation| {
        let schedule = Schedule::new(order, &task(operation, Algorithm::Ring, rank)).unwrap();
        schedule.collect::<Vec<_>>()
    };
    let sent = steps(2, Operation::Send { peer: 0 });
    let received = steps(0, Operation::Recv { peer: 2 });
    assert_eq!(sent.iter().map(|step| step.count).sum::<usize>(), 300);
    assert_eq!(sent.len(), received.len());
    for (sent, received) in sent.iter().zip(&received) {
        assert_eq!((&sent.send[..], &received.recv[..]), (&[0][..], &[2][..]));
        assert_eq!((sent.count, sent.input), (received.count, received.output));
        assert_eq!((sent.output, received.input), (None, None));
    }
}

#[test]
fn what_cannot_be_scheduled_is_refused_with_the_value() {
    use Operation::{AllGather, AllReduce, Broadcast, Recv, Reduce, Send};
    let ranks: Vec<u32> = (0..9).collect();
    let order = Order::new(&ranks[..]).unwrap();
    let refused = |task: &Task| Schedule::new(order, task).err();
    let ring = |operation| task(operation, Algorithm::Ring, 1);
    let rank = |what, rank| Some(TaskError::Rank { what, rank, nranks: 9 });
    assert_eq!(refused(&Task { rank: 9, ..ring(AllReduce) }), rank("this", 9));
    assert_eq!(refused(&ring(Broadcast { root: 9 })), rank("the root", 9));
    assert_eq!(refused(&ring(Reduce { root: 10 })), rank("the root", 10));
    assert_eq!(refused(&ring(Send { peer: 11 })), rank("the peer", 11));
    assert_eq!(refused(&ring(Recv { peer: 1 })), Some(TaskError::Oneself(1)));
    let channel = Some(TaskError::Channel { channel: 1, nchannels: 1 });
    assert_eq!(refused(&Task { channel: 1, ..ring(AllReduce) }), channel);
    let slot = Some(TaskError::Slot { slot_bytes: 7, data_type: DataType::F64 });
    assert_eq!(refused(&Task { slot_bytes: 7, ..ring(AllReduce) }), slot);
    let count = usize::MAX / 64;
    let too_many = Some(TaskError::Count { count, data_type: DataType::F64, nranks: 9 });
    assert_eq!(refused(&Task { count, ..ring(AllReduce) }), too_many);
    for (operation, algorithm) in
        [(AllGather, Algorithm::Tree), (Reduce { root: 0 }, Algorithm::TwoShot)]
    {
        let error = Some(TaskError::Algorithm { operation, algorithm });
        assert_eq!(refused(&task(operation, algorithm, 1)), error);
    }
    let algorithm = Algorithm::OneShot;
    let error = Some(TaskError::TooManyRanks { algorithm, nranks: 9 });
    assert_eq!(refused(&task(AllReduce, algorithm, 1)), error);
    assert_eq!(refused(&ring(AllReduce)), None);
}

#[test]
fn where_a_chunk_comes_back_a_rank_sends_some_ahead_and_no_more_than_a_link_has_slots_for() {
    let ranks = [0, 1];
    let order = Order::new(&ranks[..]).unwrap();
    let cases = [(Algorithm::OneShot, 0, 5), (Algorithm::Tree, 1, 5), (Algorithm::TwoShot, 0, 4)];
    for (algorithm, rank, expected) in cases {
        let count = 128 * 20;
        let task = Task { count, ..task(Operation::AllReduce, algorithm, rank) };
        let (mut ahead, mut most) = (0, 0);
        for step in Schedule::new(order, &task).unwrap() {
            ahead += step.send.len();
            most = ahead.max(most);
            ahead -= step.recv.len();
        }
        assert_eq!((ahead, most), (0, expected), "{algorithm:?}");
    }
}
