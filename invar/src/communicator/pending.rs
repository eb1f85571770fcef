//! Operations that proceed while their caller does something else, with memory of their own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use invar_core::coll::{Operation, RedOp};

use super::call::{Calls, Span};
use super::posted::Posted;
use super::queue::Mover;
use super::{Communicator, Element};
use crate::Error;
use crate::error::Kind;

/// An operation in progress, with its memory. A worker thread runs the operation; `wait` runs it
/// faster. If the `Pending` is dropped, the operation continues.
///
/// The value is a future too, on any executor, with the result of `wait`. The worker thread wakes the task.
#[must_use = "the result comes out of `wait`"]
pub struct Pending<T> {
    posted: Posted,
    /// The memory, until the result has come out.
    buffers: Option<Arc<Buffers<T>>>,
}

/// The memory of an operation. `output` is empty if the operation is in place.
struct Buffers<T> {
    input: Vec<T>,
    output: Vec<T>,
}

impl Communicator {
    /// Starts [`all_reduce_in_place`](Self::all_reduce_in_place) with `data`. The result has as many elements.
    ///
    /// # Errors
    /// The errors are those of [`all_reduce_in_place`](Self::all_reduce_in_place).
    pub fn start_all_reduce<T: Element>(
        &self,
        data: Vec<T>,
        op: RedOp,
    ) -> Result<Pending<T>, Error> {
        self.start(Operation::AllReduce, Some(op), data, None)
    }

    /// Starts [`all_gather`](Self::all_gather) of `input`. The result has `input.len()` elements for each rank.
    ///
    /// # Errors
    /// The errors are those of [`all_gather`](Self::all_gather).
    pub fn start_all_gather<T: Element>(&self, input: Vec<T>) -> Result<Pending<T>, Error> {
        let (count, nranks) = (input.len(), self.nranks() as usize);
        self.start(Operation::AllGather, None, input, count.checked_mul(nranks))
    }

    /// Starts [`reduce_scatter`](Self::reduce_scatter) of `input`, a block for each rank. The result is the
    /// block of this rank.
    ///
    /// # Errors
    /// The errors are those of [`reduce_scatter`](Self::reduce_scatter).
    pub fn start_reduce_scatter<T: Element>(
        &self,
        input: Vec<T>,
        op: RedOp,
    ) -> Result<Pending<T>, Error> {
        let count = input.len() / self.nranks() as usize;
        self.start(Operation::ReduceScatter, Some(op), input, Some(count))
    }

    /// Starts [`broadcast`](Self::broadcast) of `data`, which the root fills. The result has as many elements.
    ///
    /// # Errors
    /// The errors are those of [`broadcast`](Self::broadcast).
    pub fn start_broadcast<T: Element>(
        &self,
        data: Vec<T>,
        root: u32,
    ) -> Result<Pending<T>, Error> {
        self.start(Operation::Broadcast { root }, None, data, None)
    }

    /// Starts [`reduce_in_place`](Self::reduce_in_place) of `data`. The result has as many elements, and means
    /// something at the root alone.
    ///
    /// # Errors
    /// The errors are those of [`reduce_in_place`](Self::reduce_in_place).
    pub fn start_reduce<T: Element>(
        &self,
        data: Vec<T>,
        op: RedOp,
        root: u32,
    ) -> Result<Pending<T>, Error> {
        self.start(Operation::Reduce { root }, Some(op), data, None)
    }

    /// Starts [`all_to_all`](Self::all_to_all) of `input`, a block for each rank. The result has a block from
    /// each rank.
    ///
    /// # Errors
    /// The errors are those of [`all_to_all`](Self::all_to_all).
    pub fn start_all_to_all<T: Element>(&self, input: Vec<T>) -> Result<Pending<T>, Error> {
        let len = input.len();
        self.start(Operation::AllToAll, None, input, Some(len))
    }

    /// Starts [`send`](Self::send) of `data` to the rank `peer`. The result is `data`.
    ///
    /// # Errors
    /// The errors are those of [`send`](Self::send).
    pub fn start_send<T: Element>(&self, data: Vec<T>, peer: u32) -> Result<Pending<T>, Error> {
        self.start(Operation::Send { peer }, None, data, None)
    }

    /// Starts [`recv`](Self::recv) into `data` from the rank `peer`. The result is `data`.
    ///
    /// # Errors
    /// The errors are those of [`recv`](Self::recv).
    pub fn start_recv<T: Element>(&self, data: Vec<T>, peer: u32) -> Result<Pending<T>, Error> {
        self.start(Operation::Recv { peer }, None, data, None)
    }

    /// Starts an operation. `output_len` is `None` if the operation is in place.
    fn start<T: Element>(
        &self,
        operation: Operation,
        redop: Option<RedOp>,
        mut input: Vec<T>,
        output_len: Option<usize>,
    ) -> Result<Pending<T>, Error> {
        let shape = self.shape(operation, redop);
        let mut output = Vec::new();
        let call = match (operation, output_len) {
            (Operation::Send { .. }, _) => shape.apart((&input[..]).into(), Span::empty::<T>())?,
            (Operation::Recv { .. }, _) => {
                shape.apart(Span::empty::<T>(), (&mut input[..]).into())?
            }
            (_, None) => shape.in_place((&mut input[..]).into())?,
            (_, Some(len)) => {
                let zero = || Kind::Usage(format!("{len} elements are too many"));
                output.try_reserve_exact(len).map_err(|_| zero())?;
                output.extend(std::iter::repeat_n(T::ZERO, len));
                shape.apart((&input[..]).into(), (&mut output[..]).into())?
            }
        };
        let buffers = Arc::new(Buffers { input, output });
        let kept = Arc::clone(&buffers) as _;
        // SAFETY: `apart` and `in_place` have checked the lengths. The queue keeps the memory, and nobody
        // accesses it until the operation is done.
        let done = unsafe { self.enqueue(Calls::One([call]), Some(kept), Mover::Worker) }?;
        let posted = Posted { core: Arc::clone(&self.core), done };
        Ok(Pending { posted, buffers: Some(buffers) })
    }
}

impl<T: Element> Pending<T> {
    /// Returns whether the operation is done, successfully or not.
    pub fn is_done(&self) -> bool {
        self.posted.is_done()
    }

    /// Waits for the operation and returns its output. If the operation is in place or a send, returns
    /// the data.
    ///
    /// # Errors
    /// Fails if the operation fails, or if awaiting a reference to this value has already returned the result.
    pub fn wait(mut self) -> Result<Vec<T>, Error> {
        if self.buffers.is_none() {
            return Err(Kind::Usage("the result has come out already".to_owned()).into());
        }
        let result = self.posted.wait_within(Duration::MAX).expect("the time is not over");
        self.take(result)
    }

    /// Takes the output of an operation that is done.
    fn take(&mut self, result: Result<(), Error>) -> Result<Vec<T>, Error> {
        let buffers = self.buffers.take().expect("the result comes out once");
        result?;
        let buffers = Arc::into_inner(buffers).expect("the queue has dropped its reference");
        Ok(if buffers.output.is_empty() { buffers.input } else { buffers.output })
    }
}

impl<T: Element> Future for Pending<T> {
    type Output = Result<Vec<T>, Error>;

    /// # Panics
    /// Panics if the result has come out already.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = self.get_mut();
        assert!(pending.buffers.is_some(), "the result has come out already");
        if let Err(inherited) = pending.posted.core.check_owner() {
            return Poll::Ready(pending.take(Err(inherited)));
        }
        match pending.posted.done.take_or_wake(context.waker()) {
            Some(result) => Poll::Ready(pending.take(result)),
            None => Poll::Pending,
        }
    }
}
