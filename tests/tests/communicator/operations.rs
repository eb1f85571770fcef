//! Compares every operation, type, reduction and number of ranks with the definition of the operation.

use std::thread;

use half::{bf16, f16};
use invar::{Communicator, RedOp, Settings};
use invar_core::coll::Operation;

use crate::rig::{Case, Number, over, ranks, settings};

/// Performs one operation, out of place and in place.
pub(crate) fn check<T: Number>(communicator: &Communicator, case: &Case) {
    let (rank, nranks) = (communicator.rank(), communicator.nranks() as usize);
    let Case { operation, op, count, .. } = *case;
    let input: Vec<T> = case.input(rank);
    // A value that no operation produces.
    let fill = T::of(&vec![0x55; size_of::<T>()]);
    let mut output = vec![fill; operation.output_count(count, rank, nranks as u32).unwrap()];
    match operation {
        Operation::AllReduce => communicator.all_reduce(&input, &mut output, op),
        Operation::AllGather => communicator.all_gather(&input, &mut output),
        Operation::ReduceScatter => communicator.reduce_scatter(&input, &mut output, op),
        Operation::AllToAll => communicator.all_to_all(&input, &mut output),
        Operation::Broadcast { root } => {
            let input = if rank == root { &input[..] } else { &[] };
            communicator.broadcast_from(input, &mut output, root)
        }
        Operation::Reduce { root } => communicator.reduce(&input, &mut output, op, root),
        Operation::Send { .. } | Operation::Recv { .. } => unreachable!("not a collective"),
    }
    .unwrap();
    if !matches!(operation, Operation::Reduce { root } if root != rank) {
        case.check(rank, &[], &output);
    }
    let block = rank as usize * count..(rank as usize + 1) * count;
    let mut data = input.clone();
    match operation {
        Operation::AllReduce => communicator.all_reduce_in_place(&mut data, op),
        Operation::AllGather => {
            data = vec![fill; count * nranks];
            data[block].copy_from_slice(&input);
            communicator.all_gather_in_place(&mut data)
        }
        Operation::ReduceScatter => {
            let done = communicator.reduce_scatter_in_place(&mut data, op);
            data = data[block].to_vec();
            done
        }
        Operation::AllToAll => communicator.all_to_all_in_place(&mut data),
        Operation::Broadcast { root } => communicator.broadcast(&mut data, root),
        Operation::Reduce { root } => communicator.reduce_in_place(&mut data, op, root),
        Operation::Send { .. } | Operation::Recv { .. } => unreachable!("not a collective"),
    }
    .unwrap();
    case.check(rank, &input, &data);
}

/// Performs every operation on elements of a type, with the reductions `ops`.
pub(crate) fn check_type<T: Number>(communicator: &Communicator, counts: &[usize], ops: &[RedOp]) {
    let nranks = communicator.nranks();
    for (seed, count) in counts.iter().copied().enumerate() {
        let root = (count as u32 + 1) % nranks;
        let case = |operation, op| Case::new::<T>(seed as u64, operation, op, count, nranks);
        for op in ops {
            for operation in
                [Operation::AllReduce, Operation::ReduceScatter, Operation::Reduce { root }]
            {
                check::<T>(communicator, &case(operation, *op));
            }
        }
        for operation in [Operation::AllGather, Operation::AllToAll, Operation::Broadcast { root }]
        {
            check::<T>(communicator, &case(operation, RedOp::Sum));
        }
    }
}

fn check_all(nranks: u32, settings: &Settings) {
    ranks(nranks, settings, |communicator| {
        let counts = [0, 1, 16 * nranks as usize + 5];
        check_type::<i8>(&communicator, &counts, &RedOp::ALL);
        check_type::<u8>(&communicator, &counts, &RedOp::ALL);
        check_type::<i32>(&communicator, &counts, &RedOp::ALL);
        check_type::<u32>(&communicator, &counts, &RedOp::ALL);
        check_type::<i64>(&communicator, &counts, &RedOp::ALL);
        check_type::<u64>(&communicator, &counts, &RedOp::ALL);
        check_type::<f16>(&communicator, &counts, &RedOp::ALL);
        check_type::<bf16>(&communicator, &counts, &RedOp::ALL);
        check_type::<f32>(&communicator, &counts, &RedOp::ALL);
        check_type::<f64>(&communicator, &counts, &RedOp::ALL);
        communicator.barrier().unwrap();
    });
}

#[test]
fn one_rank_has_it_all() {
    check_all(1, &settings());
}

#[test]
fn two_ranks_agree() {
    check_all(2, &settings());
}

#[test]
fn an_odd_number_of_ranks_agrees() {
    check_all(3, &settings());
    check_all(5, &settings());
    check_all(7, &settings());
}

#[test]
fn an_even_number_of_ranks_agrees() {
    check_all(4, &settings());
    check_all(6, &settings());
    check_all(8, &settings());
}

/// Eleven ranks are more than use the one-shot algorithm.
#[test]
fn many_ranks_agree() {
    ranks(11, &settings(), |communicator| {
        check_type::<i32>(&communicator, &[1, 100, 5000], &[RedOp::Sum]);
    });
}

/// The data takes several windows of every schedule.
#[test]
fn much_data_arrives_whole() {
    for nranks in [2, 3, 4] {
        ranks(nranks, &settings(), |communicator| {
            check_type::<f64>(&communicator, &[100_003], &[RedOp::Sum]);
        });
    }
}

/// Performs every operation on about a million elements: several chunks on each channel, and a
/// remainder.
fn check_large<T: Number>(nranks: u32, len: usize, op: RedOp, settings: &Settings) {
    let (root, block) = (nranks - 1, len / nranks as usize);
    let cases = [
        (Operation::AllReduce, len),
        (Operation::Reduce { root }, len),
        (Operation::Broadcast { root }, len),
        (Operation::AllGather, block),
        (Operation::ReduceScatter, block),
        (Operation::AllToAll, block),
    ];
    let case = |(operation, count)| Case::new::<T>(len as u64, operation, op, count, nranks);
    let cases = cases.map(case);
    ranks(nranks, settings, |communicator| {
        cases.iter().for_each(|case| check::<T>(&communicator, case));
    });
}

const MI: usize = 1 << 20;

#[test]
fn a_million_elements_arrive_whole_by_shared_memory() {
    check_large::<f16>(7, MI + 1, RedOp::Sum, &settings());
}

#[test]
fn a_million_elements_arrive_whole_over_the_software_nic() {
    check_large::<i64>(3, MI - 1, RedOp::Min, &over("soft"));
    check_large::<u8>(5, MI + 1, RedOp::Prod, &over("soft"));
}

#[test]
fn a_million_elements_arrive_whole_over_tcp() {
    check_large::<f64>(3, MI + 1, RedOp::Sum, &over("socket"));
    check_large::<bf16>(5, MI - 1, RedOp::Avg, &over("socket"));
}

/// Two ranks exchange the data in one hop, in place. Received data soon overwrites the input, though
/// the kernel may not have taken all of it.
#[test]
fn an_input_in_place_lasts_until_it_is_sent() {
    for settings in [over("soft"), over("socket")] {
        for count in [4097, 30_000, 65_535, 65_536, 65_537] {
            let case = Case::new::<f32>(1, Operation::AllReduce, RedOp::Sum, count, 2);
            ranks(2, &settings, |communicator| {
                (0..20).for_each(|_| check::<f32>(&communicator, &case));
            });
        }
    }
}

#[test]
fn ranks_tell_each_other_bytes_of_any_length_and_know_what_they_go_over() {
    for (settings, transport) in [(settings(), "shared memory"), (over("soft"), "soft (soft")] {
        ranks(3, &settings, |communicator| {
            assert!(
                communicator.transport().starts_with(transport),
                "{}",
                communicator.transport()
            );
            for round in 0..3_u8 {
                let of = |rank: u32| vec![round; 1000 * rank as usize];
                let told = communicator.exchange(&of(communicator.rank())).unwrap();
                assert_eq!(told, [0, 1, 2].map(of), "round {round}");
            }
        });
    }
}

#[test]
fn exchanges_of_several_threads_do_not_mix() {
    const THREADS: u8 = 4;
    const ROUNDS: u8 = 50;
    let all = ranks(2, &settings(), |communicator| {
        let exchanges = |thread| {
            let rank = communicator.rank() as u8;
            let exchange = |round| communicator.exchange(&[rank, thread, round]).unwrap();
            (0..ROUNDS).map(exchange).collect::<Vec<_>>()
        };
        let exchanges = &exchanges;
        let mut told: Vec<Vec<Vec<u8>>> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || exchanges(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        told.sort();
        told
    });
    // Both ranks get the same bytes from each exchange.
    assert_eq!(all[0].len(), usize::from(THREADS) * usize::from(ROUNDS));
    assert_eq!(all[0], all[1]);
}
