//! Operations on memory that their caller keeps, and that move when the caller tests them.

use std::sync::{Arc, TryLockError};

use invar_core::coll::{DataType, Operation, RedOp};

use super::call::{Call, Work};
use super::engine::Advance;
use super::queue::{Done, Mover};
use super::{Communicator, Core};
use crate::Error;
use crate::error::Kind;

/// Number of rounds that one test moves at most, so that it returns soon.
const ROUNDS: u32 = 16;

/// A collective on raw memory.
#[derive(Clone, Copy, Debug)]
pub struct RawCollective {
    /// The collective; no send or receive.
    pub operation: Operation,
    /// Number of elements, as in [`Task::count`](super::Task::count).
    pub count: usize,
    /// The type of the elements.
    pub data_type: DataType,
    /// The reduction, for collectives that reduce.
    pub redop: Option<RedOp>,
    /// This rank's input.
    pub input: *const u8,
    /// This rank's output; the same as the input if the collective is in place.
    pub output: *mut u8,
}

/// Collectives in progress, which [`Communicator::post`] has started.
#[must_use = "the result comes out of `test`"]
pub struct Posted {
    core: Arc<Core>,
    done: Arc<Done>,
}

impl Communicator {
    /// Starts collectives, which run one after the other, behind all that was started before. They move
    /// in calls of [`Posted::test`]. If these calls stay away for some milliseconds, a thread moves the
    /// collectives.
    ///
    /// # Errors
    /// Fails if the communicator has ended, if an operation is a send or a receive, if a reduction is
    /// missing, or if the elements of all ranks are too many.
    ///
    /// # Safety
    ///
    /// The following must hold until [`Posted::test`] returns a result, or the communicator is dropped:
    /// - Input and output have as many elements as [`Operation::input_count`] and
    ///   [`Operation::output_count`] say.
    /// - Nobody else writes an input or accesses an output. The memory of one collective may be that of
    ///   an earlier one.
    /// - Input and output of one collective are the same where NCCL has the collective in place.
    ///   Otherwise they do not overlap.
    pub unsafe fn post(&self, collectives: &[RawCollective]) -> Result<Posted, Error> {
        self.check()?;
        let calls = collectives.iter().map(|collective| self.raw_call(collective));
        let calls = calls.collect::<Result<Vec<Call>, Error>>()?;
        // SAFETY: the caller has promised what `enqueue` demands.
        let done = unsafe { self.enqueue(calls, None, Mover::Caller) }?;
        Ok(Posted { core: Arc::clone(&self.core), done })
    }

    fn raw_call(&self, collective: &RawCollective) -> Result<Call, Error> {
        let RawCollective { operation, count, data_type, redop, input, output } = *collective;
        let reduces = matches!(
            operation,
            Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce { .. }
        );
        if operation.is_transfer() || reduces != redop.is_some() {
            let text = format!("{operation:?} with the reduction {redop:?} can't be posted");
            return Err(Kind::Usage(text).into());
        }
        self.shape(operation, redop).counts(count)?;
        Ok(Call { work: Work { operation, count, data_type, redop }, input, output })
    }
}

impl Posted {
    /// Moves the collectives without waiting. Returns their result, once: `None` before they are done,
    /// and after the result was returned.
    pub fn test(&self) -> Option<Result<(), Error>> {
        if self.done.is_set() {
            return self.done.take();
        }
        self.core.queue.note_test();
        let mut workplace = match self.core.workplace.try_lock() {
            Ok(workplace) => workplace,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread moves them.
            Err(TryLockError::WouldBlock) => return None,
        };
        for _ in 0..ROUNDS {
            match self.core.queue.round(&mut workplace) {
                Some(Advance::Moved | Advance::Done) if !self.done.is_set() => {}
                _ => break,
            }
        }
        self.done.take()
    }

    /// Returns whether the collectives are done, successfully or not. The call moves nothing.
    pub fn is_done(&self) -> bool {
        self.done.is_set()
    }
}
