//! An operation and its memory.

use invar_core::coll::{DataType, Operation, RedOp, TaskError};

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

impl Work {
    /// Bytes of the operation, as its count says.
    pub(super) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.data_type.bytes())
    }
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

/// Returns the messages of `rank` to itself: each send with its receive.
pub(super) fn own_messages(calls: &[Call], rank: u32) -> impl Iterator<Item = (&Call, &Call)> {
    of(calls, Operation::Send { peer: rank }).zip(of(calls, Operation::Recv { peer: rank }))
}

/// Checks that calls that run together receive what `rank` sends to itself.
pub(super) fn check_own(calls: &[Call], rank: u32) -> Result<(), Error> {
    let sends = of(calls, Operation::Send { peer: rank }).count();
    let recvs = of(calls, Operation::Recv { peer: rank }).count();
    if sends != recvs {
        let text = format!(
            "rank {rank} sends to itself {sends} times and receives from itself {recvs} times: put both \
             into one group"
        );
        return Err(Kind::Usage(text).into());
    }
    for (send, recv) in own_messages(calls, rank) {
        let (sent, received) = (send.work.bytes(), recv.work.bytes());
        if sent != received {
            let text = format!("a rank sends {sent} bytes to itself and receives {received}");
            return Err(Kind::Usage(text).into());
        }
    }
    Ok(())
}

fn of(calls: &[Call], operation: Operation) -> impl Iterator<Item = &Call> {
    calls.iter().filter(move |call| call.work.operation == operation)
}

/// The calls of a group. A single call needs no memory of its own.
pub(super) enum Calls {
    One([Call; 1]),
    Many(Vec<Call>),
}

impl AsRef<[Call]> for Calls {
    #[inline]
    fn as_ref(&self) -> &[Call] {
        match self {
            Calls::One(call) => call,
            Calls::Many(calls) => calls,
        }
    }
}

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
    ///
    /// # Errors
    /// Fails if the root or the peer is no rank, or if the elements are too many.
    pub(super) fn counts(&self, count: usize) -> Result<(usize, usize), Error> {
        let Shape { operation, rank, nranks, .. } = *self;
        let other = match operation {
            Operation::Broadcast { root } | Operation::Reduce { root } => Some(("the root", root)),
            Operation::Send { peer } | Operation::Recv { peer } => Some(("the peer", peer)),
            _ => None,
        };
        if let Some((what, rank)) = other.filter(|(_, other)| *other >= nranks) {
            return Err(Kind::Usage(TaskError::Rank { what, rank, nranks }.to_string()).into());
        }
        operation
            .input_count(count, rank, nranks)
            .zip(operation.output_count(count, rank, nranks))
            .ok_or_else(|| {
                Kind::Usage(format!("{count} elements for each rank are too many")).into()
            })
    }

    /// Returns the number of elements as a task has it, for an operation with an input and an output.
    fn count_apart(&self, input: usize, output: usize) -> usize {
        match self.operation {
            Operation::AllGather | Operation::Reduce { .. } | Operation::Send { .. } => input,
            Operation::AllToAll => input / self.nranks as usize,
            Operation::AllReduce
            | Operation::ReduceScatter
            | Operation::Broadcast { .. }
            | Operation::Recv { .. } => output,
        }
    }

    /// Returns the number of elements as a task has it, for an operation in place.
    fn count_in_place(&self, len: usize) -> usize {
        match self.operation {
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => {
                len / self.nranks as usize
            }
            _ => len,
        }
    }

    /// Creates a call with an input and an output.
    pub(super) fn apart(&self, input: Span, output: Span) -> Result<Call, Error> {
        let count = self.count_apart(input.len, output.len);
        let (of_input, of_output) = self.counts(count)?;
        expect(self, "input", input.len, of_input)?;
        expect(self, "output", output.len, of_output)?;
        Ok(self.call(count, output.data_type, input.start, output.start))
    }

    /// Creates a call in place. If the input or the output is one block and the other is all blocks, the
    /// smaller one is this rank's block of `data`.
    pub(super) fn in_place(&self, data: Span) -> Result<Call, Error> {
        let count = self.count_in_place(data.len);
        let (of_input, of_output) = self.counts(count)?;
        expect(self, "data", data.len, of_input.max(of_output))?;
        let block = |len: usize| match len < data.len && len == count {
            true => self.rank as usize * count * data.data_type.bytes(),
            false => 0,
        };
        // The offsets stay within the data.
        let start = |len: usize| data.start.wrapping_add(block(len));
        Ok(self.call(count, data.data_type, start(of_input), start(of_output)))
    }

    fn call(&self, count: usize, data_type: DataType, input: *mut u8, output: *mut u8) -> Call {
        let Shape { operation, redop, .. } = *self;
        Call { work: Work { operation, count, data_type, redop }, input, output }
    }
}

/// The memory of elements. An operation only reads its input.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: *mut u8,
    /// Number of elements.
    pub(super) len: usize,
    pub(super) data_type: DataType,
}

impl Span {
    /// Returns the memory of no elements.
    pub(super) fn empty<T: Element>() -> Self {
        Span::from(&[] as &[T])
    }
}

impl<T: Element> From<&[T]> for Span {
    fn from(elements: &[T]) -> Self {
        let start = elements.as_ptr().cast::<u8>().cast_mut();
        Span { start, len: elements.len(), data_type: T::DATA_TYPE }
    }
}

impl<T: Element> From<&mut [T]> for Span {
    fn from(elements: &mut [T]) -> Self {
        let start = elements.as_mut_ptr().cast();
        Span { start, len: elements.len(), data_type: T::DATA_TYPE }
    }
}

fn expect(shape: &Shape, what: &str, len: usize, want: usize) -> Result<(), Error> {
    if len == want {
        return Ok(());
    }
    let Shape { operation, rank, nranks, .. } = shape;
    let text =
        format!("{operation:?}: {what} of {len} elements; rank {rank} of {nranks} needs {want}");
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
        let apart = |mut output: Vec<u8>| {
            all_gather.apart((&[0_u8; 3][..]).into(), (&mut output[..]).into())
        };
        let error = apart(vec![0; 11]).unwrap_err();
        let text = "AllGather: output of 11 elements; rank 2 of 4 needs 12";
        assert_eq!(error.to_string(), text);
        assert!(apart(vec![0; 12]).is_ok());
        assert!(all_gather.in_place((&mut [0_u8; 9][..]).into()).is_err());
        assert!(all_gather.counts(usize::MAX / 2).is_err());
    }

    #[test]
    fn in_place_a_rank_works_on_its_own_block() {
        let mut data = [0_u32; 12];
        let start = data.as_ptr().cast::<u8>();
        let mut places = |operation, redop| {
            let call = shape(operation, redop).in_place((&mut data[..]).into()).unwrap();
            // SAFETY: both pointers are within the data.
            unsafe { (call.input.offset_from(start), call.output.cast_const().offset_from(start)) }
        };
        assert_eq!(places(Operation::AllGather, None), (24, 0));
        assert_eq!(places(Operation::ReduceScatter, Some(RedOp::Sum)), (0, 24));
        assert_eq!(places(Operation::AllReduce, Some(RedOp::Sum)), (0, 0));
        assert_eq!(places(Operation::Broadcast { root: 1 }, None), (0, 0));
        assert_eq!(places(Operation::AllToAll, None), (0, 0));
        assert_eq!(places(Operation::Reduce { root: 1 }, Some(RedOp::Sum)), (0, 0));
    }
}
