//! Operations on memory that their caller keeps.

use std::hint::spin_loop;
use std::sync::{Arc, TryLockError};
use std::task::Waker;
use std::time::{Duration, Instant};

use invar_core::coll::{DataType, Operation, RedOp};

use super::call::{Call, Calls, Span, Work};
use super::engine::Advance;
use super::queue::{AtWorkplace, Done, Mover, Workplace};
use super::{Communicator, Core};
use crate::Error;
use crate::error::Kind;

/// Number of rounds that one test moves at most, so that it returns soon.
const ROUNDS: u32 = 16;

/// A waiting thread looks this often whether it may move its operation itself.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// An operation on raw memory.
#[derive(Clone, Copy, Debug)]
pub struct RawOperation {
    /// A collective, a send or a receive.
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

/// Operations in progress, which [`Communicator::post`] has started.
///
/// In a child of `fork` the operations count as failed.
#[must_use = "the result comes out of `test` or `wait_within`"]
pub struct Posted {
    pub(super) core: Arc<Core>,
    pub(super) done: Arc<Done>,
}

impl Communicator {
    /// Starts operations as a group, behind all that was started before. Its collectives run one after
    /// the other; then its sends and receives run at once. `mover` says which thread moves them.
    ///
    /// # Errors
    /// Fails if the communicator has ended, if a reduction is missing or needless, if a root or a peer is no
    /// rank, or if the elements of all ranks are too many. Fails if this rank sends to itself what the group
    /// does not receive.
    ///
    /// # Safety
    ///
    /// The following must hold until [`Posted::test`] returns a result, or the communicator is dropped:
    /// - Input and output have as many elements as [`Operation::input_count`] and
    ///   [`Operation::output_count`] say.
    /// - Nobody else writes an input or accesses an output. The memory of one collective may be that of
    ///   an earlier one. The memory of a send or receive is that of no other operation of the group,
    ///   unless both only read it.
    /// - Input and output of one collective are the same where NCCL has the collective in place.
    ///   Otherwise they do not overlap.
    pub unsafe fn post(&self, operations: &[RawOperation], mover: Mover) -> Result<Posted, Error> {
        self.check()?;
        let calls = match operations {
            [operation] => Calls::One([self.raw_call(operation)?]),
            _ => {
                let calls = operations.iter().map(|operation| self.raw_call(operation));
                Calls::Many(calls.collect::<Result<_, Error>>()?)
            }
        };
        // SAFETY: the caller has promised what `enqueue` demands.
        let done = unsafe { self.enqueue(calls, None, mover) }?;
        Ok(Posted { core: Arc::clone(&self.core), done })
    }

    /// Describes an operation with an input and an output, for [`post`](Self::post).
    ///
    /// The lengths are in bytes. An operation has no input or no output where [`Operation::input_count`]
    /// or [`Operation::output_count`] says so.
    ///
    /// # Errors
    /// Fails if a length is not that of the operation, or if the root or the peer is no rank.
    pub fn raw(
        &self,
        operation: Operation,
        redop: Option<RedOp>,
        data_type: DataType,
        input: *const [u8],
        output: *mut [u8],
    ) -> Result<RawOperation, Error> {
        let input = span(input.cast_mut(), data_type)?;
        Ok(self.shape(operation, redop).apart(input, span(output, data_type)?)?.into())
    }

    /// Describes an operation in place, for [`post`](Self::post). The length is in bytes.
    ///
    /// # Errors
    /// Fails if the length is not that of the operation, if the root is no rank, or if the operation can't be
    /// in place.
    pub fn raw_in_place(
        &self,
        operation: Operation,
        redop: Option<RedOp>,
        data_type: DataType,
        data: *mut [u8],
    ) -> Result<RawOperation, Error> {
        Ok(self.shape(operation, redop).in_place(span(data, data_type)?)?.into())
    }

    fn raw_call(&self, raw: &RawOperation) -> Result<Call, Error> {
        let RawOperation { operation, count, data_type, redop, input, output } = *raw;
        let reduces = matches!(
            operation,
            Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce { .. }
        );
        if reduces != redop.is_some() {
            let text = format!("{operation:?} with the reduction {redop:?} can't be posted");
            return Err(Kind::Usage(text).into());
        }
        self.shape(operation, redop).counts(count)?;
        Ok(Call { work: Work { operation, count, data_type, redop }, input, output })
    }
}

/// Returns the elements of this memory.
fn span(bytes: *mut [u8], data_type: DataType) -> Result<Span, Error> {
    let (len, each) = (bytes.len(), data_type.bytes());
    if !len.is_multiple_of(each) {
        let text = format!("{len} bytes are no whole number of elements of {each} bytes");
        return Err(Kind::Usage(text).into());
    }
    Ok(Span { start: bytes.cast(), len: len / each, data_type })
}

impl From<Call> for RawOperation {
    fn from(call: Call) -> Self {
        let Call { work: Work { operation, count, data_type, redop }, input, output } = call;
        RawOperation { operation, count, data_type, redop, input, output }
    }
}

impl Posted {
    /// Moves the operations, and polls for less than about a microsecond if they wait for another rank. Returns their
    /// result, once: `None` before they are done, and after the result was returned.
    pub fn test(&self) -> Option<Result<(), Error>> {
        if let Err(inherited) = self.core.check_owner() {
            return Some(Err(inherited));
        }
        if self.done.is_set() {
            return self.done.take();
        }
        self.core.queue.note_test();
        // Without the lock another thread moves them.
        let mut workplace = self.try_workplace()?;
        for _ in 0..ROUNDS {
            match self.core.queue.round(&mut workplace) {
                Some(Advance::Moved | Advance::Done) if !self.done.is_set() => {}
                // Data mostly comes before a further test would look for it.
                Some(Advance::Waiting) if workplace.engine.backoff.is_short() => spin_loop(),
                _ => break,
            }
        }
        self.done.take()
    }

    /// Waits for the operations, at most this long. The calling thread moves them, unless another thread
    /// does; then it sleeps. Returns their result as [`test`](Self::test) does.
    pub fn wait_within(&self, time: Duration) -> Option<Result<(), Error>> {
        if let Err(inherited) = self.core.check_owner() {
            return Some(Err(inherited));
        }
        let start = Instant::now();
        while !self.done.is_set() {
            // The worker lets the calling thread have the engine.
            self.core.queue.note_test();
            match self.try_workplace() {
                Some(mut workplace) => self.move_within(time, start, &mut workplace),
                None => self.done.sleep(time.saturating_sub(start.elapsed()).min(LOOK_EVERY)),
            }
            if start.elapsed() >= time {
                break;
            }
        }
        self.done.take()
    }

    /// Moves the operations until they are done, the time is over, or tasks are to be woken.
    fn move_within(&self, time: Duration, start: Instant, workplace: &mut Workplace) {
        while !self.done.is_set() {
            self.core.queue.note_test();
            match self.core.queue.round(workplace) {
                Some(Advance::Moved | Advance::Done) => {}
                Some(Advance::Waiting) => {
                    workplace.pause(time.saturating_sub(start.elapsed()));
                }
                None => return,
            }
            if start.elapsed() >= time || workplace.has_news() {
                return;
            }
        }
    }

    /// Returns whether the operations are done, successfully or not. The call moves nothing.
    pub fn is_done(&self) -> bool {
        !self.core.owner.is_current() || self.done.is_set()
    }

    /// Wakes a task once the operations are done, in place of the task of an earlier call. The waker may run
    /// on any thread that moves operations. Returns false, and wakes nobody, if they are done already.
    pub fn wake_when_done(&self, waker: &Waker) -> bool {
        self.core.owner.is_current() && self.done.wake_when_set(waker)
    }

    /// Locks the engine, unless another thread has it.
    fn try_workplace(&self) -> Option<AtWorkplace<'_>> {
        match self.core.workplace.try_lock() {
            Ok(workplace) => Some(AtWorkplace::new(workplace)),
            Err(TryLockError::Poisoned(poisoned)) => Some(AtWorkplace::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if !self.core.owner.is_current() {
            // The parent may have dropped its communicator, and then this is the child's last reference.
            std::mem::forget(Arc::clone(&self.core));
        }
    }
}
