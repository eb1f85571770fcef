//! Every operation, type, reduction and number of ranks, against what they are by definition.

use half::{bf16, f16};
use invar::{Communicator, RedOp, Settings};
use invar_core::coll::Operation;

use crate::rig::{Case, Number, ranks, settings};

/// Does one operation, out of place and in place.
pub(crate) fn check<T: Number>(communicator: &Communicator, case: &Case) {
    let (rank, nranks) = (communicator.rank(), communicator.nranks() as usize);
    let Case { operation, op, count, .. } = *case;
    let input: Vec<T> = case.input(rank);
    // What no operation gives.
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
        Operation::Broadcast { root } => communicator.broadcast(&mut data, root),
        Operation::Reduce { root } => communicator.reduce_in_place(&mut data, op, root),
        _ => return,
    }
    .unwrap();
    case.check(rank, &input, &data);
}

/// Every operation on elements of a type, reducing by each of `ops`.
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

/// More ranks than one shot is for.
#[test]
fn many_ranks_agree() {
    ranks(11, &settings(), |communicator| {
        check_type::<i32>(&communicator, &[1, 100, 5000], &[RedOp::Sum]);
    });
}

/// As much as takes several windows of every schedule.
#[test]
fn much_data_arrives_whole() {
    for nranks in [2, 3, 4] {
        ranks(nranks, &settings(), |communicator| {
            check_type::<f64>(&communicator, &[100_003], &[RedOp::Sum]);
        });
    }
}
