//! An operation and its memory.

use invar_core::coll::{DataType, Operation, RedOp};

use super::Element;
use crate::Error;
use crate::error::Kind;

/// The work of an operation, independent of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) operation: Operation,
    /// Number of elements, as in [`Task::count`](invar_core::coll::Task::count).
    pub(super) count: usize,
    pub(super) data_type: DataType,
    /// The reduction, for operations that reduce.
    pub(super) redop: Option<RedOp>,
}

/// An operation and its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) work: Work,
    pub(super) input: *const u8,
    pub(super) output: *mut u8,
}

// SAFETY: the creator of a call promises that only the call uses its memory until it is done, whichever
// thread runs it.
unsafe impl Send for Call {}

/// An operation, and the rank that runs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) operation: Operation,
    pub(super) redop: Option<RedOp>,
    pub(super) rank: u32,
    pub(super) nranks: u32,
}

impl Shape {
    /// Returns the number of elements of the input and of the output.
    pub(super) fn counts(&self, count: usize) -> Result<(usize, usize), Error> {
        let Shape { operation, rank, nranks, .. } = *self;
        operation
            .input_count(count, rank, nranks)
            .zip(operation.output_count(count, rank, nranks))
            .ok_or_else(|| {
                Kind::Usage(format!("{count} elements for each rank are too many")).into()
            })
    }

    fn call<T: Element>(&self, count: usize, input: *const T, output: *mut T) -> Call {
        let Shape { operation, redop, .. } = *self;
        let work = Work { operation, count, data_type: T::DATA_TYPE, redop };
        Call { work, input: input.cast(), output: output.cast() }
    }
}

/// Creates a call with an input and an output.
pub(super) fn typed<T: Element>(
    shape: Shape,
    count: usize,
    input: &[T],
    output: &mut [T],
) -> Result<Call, Error> {
    let (of_input, of_output) = shape.counts(count)?;
    expect(&shape, "input", input.len(), of_input)?;
    expect(&shape, "output", output.len(), of_output)?;
    Ok(shape.call(count, input.as_ptr(), output.as_mut_ptr()))
}

/// Creates a call in place. If the input or the output is one block and the other is all blocks, the
/// smaller one is this rank's block of `data`.
pub(super) fn in_place<T: Element>(
    shape: Shape,
    count: usize,
    data: &mut [T],
) -> Result<Call, Error> {
    let (of_input, of_output) = shape.counts(count)?;
    expect(&shape, "data", data.len(), of_input.max(of_output))?;
    let block = |len: usize| match len < data.len() && len == count {
        true => shape.rank as usize * count,
        false => 0,
    };
    let (input_at, output_at) = (block(of_input), block(of_output));
    let start = data.as_mut_ptr();
    // SAFETY: each offset is a block of the data, or 0.
    let (input, output) = unsafe { (start.add(input_at), start.add(output_at)) };
    Ok(shape.call(count, input, output))
}

fn expect(shape: &Shape, what: &str, len: usize, want: usize) -> Result<(), Error> {
    if len == want {
        return Ok(());
    }
    let Shape { operation, rank, nranks, .. } = shape;
    let text =
        format!("{operation:?}: {what} of {len} elements where rank {rank} of {nranks} has {want}");
    Err(Kind::Usage(text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(operation: Operation, redop: Option<RedOp>) -> Shape {
        Shape { operation, redop, rank: 2, nranks: 4 }
    }

    #[test]
    fn a_wrong_length_is_named_with_the_right_one() {
        let all_gather = shape(Operation::AllGather, None);
        let error = typed(all_gather, 3, &[0_u8; 3], &mut [0; 11]).unwrap_err();
        let text = "AllGather: output of 11 elements where rank 2 of 4 has 12";
        assert_eq!(error.to_string(), text);
        assert!(typed(all_gather, 3, &[0_u8; 3], &mut [0; 12]).is_ok());
        assert!(in_place(all_gather, 2, &mut [0_u8; 9]).is_err());
        let too_many = usize::MAX / 2;
        assert!(typed(all_gather, too_many, &[0_u8; 3], &mut [0; 12]).is_err());
    }

    #[test]
    fn in_place_a_rank_works_on_its_own_block() {
        let mut data = [0_u32; 12];
        let start = data.as_ptr().cast::<u8>();
        let mut places = |operation, redop, count| {
            let call = in_place(shape(operation, redop), count, &mut data).unwrap();
            // SAFETY: both pointers are within the data.
            unsafe { (call.input.offset_from(start), call.output.cast_const().offset_from(start)) }
        };
        assert_eq!(places(Operation::AllGather, None, 3), (24, 0));
        assert_eq!(places(Operation::ReduceScatter, Some(RedOp::Sum), 3), (0, 24));
        assert_eq!(places(Operation::AllReduce, Some(RedOp::Sum), 12), (0, 0));
        assert_eq!(places(Operation::Broadcast { root: 1 }, None, 12), (0, 0));
        assert_eq!(places(Operation::Reduce { root: 1 }, Some(RedOp::Sum), 12), (0, 0));
    }
}
