//! Operations that proceed while their caller does something else.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use invar_core::coll::{Operation, RedOp};

use super::call::{Call, in_place, typed};
use super::engine::Engine;
use super::{Communicator, Core, Element};
use crate::Error;
use crate::error::Kind;

/// An operation in progress, with its memory. A worker thread runs the operation; `wait` runs it
/// faster. If the `Pending` is dropped, the operation continues.
#[must_use = "the result comes out of `wait`"]
pub struct Pending<T> {
    core: Arc<Core>,
    done: Arc<Done>,
    buffers: Arc<Buffers<T>>,
}

/// The memory of an operation. `output` is empty if the operation is in place.
struct Buffers<T> {
    input: Vec<T>,
    output: Vec<T>,
}

/// The operations that are started and not done, in order.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Started>,
    closed: bool,
}

struct Started {
    call: Call,
    done: Arc<Done>,
    /// The memory of the call, kept until the call is done.
    buffers: Arc<dyn Any + Send + Sync>,
}

/// The result of an operation, once it is done.
#[derive(Default)]
struct Done {
    result: Mutex<Option<Result<(), Error>>>,
}

/// The thread that runs the operations that nobody waits for.
pub(super) struct Worker(Option<JoinHandle<()>>);

impl Communicator {
    /// Starts [`all_reduce_in_place`](Self::all_reduce_in_place).
    pub fn start_all_reduce<T: Element>(
        &self,
        data: Vec<T>,
        op: RedOp,
    ) -> Result<Pending<T>, Error> {
        let count = data.len();
        self.start(Operation::AllReduce, Some(op), count, data, None)
    }

    /// Starts [`all_gather`](Self::all_gather).
    pub fn start_all_gather<T: Element>(&self, input: Vec<T>) -> Result<Pending<T>, Error> {
        let (count, nranks) = (input.len(), self.nranks() as usize);
        self.start(Operation::AllGather, None, count, input, count.checked_mul(nranks))
    }

    /// Starts [`reduce_scatter`](Self::reduce_scatter).
    pub fn start_reduce_scatter<T: Element>(
        &self,
        input: Vec<T>,
        op: RedOp,
    ) -> Result<Pending<T>, Error> {
        let count = input.len() / self.nranks() as usize;
        self.start(Operation::ReduceScatter, Some(op), count, input, Some(count))
    }

    /// Starts [`broadcast`](Self::broadcast).
    pub fn start_broadcast<T: Element>(
        &self,
        data: Vec<T>,
        root: u32,
    ) -> Result<Pending<T>, Error> {
        let count = data.len();
        self.start(Operation::Broadcast { root }, None, count, data, None)
    }

    /// Starts [`reduce_in_place`](Self::reduce_in_place).
    pub fn start_reduce<T: Element>(
        &self,
        data: Vec<T>,
        op: RedOp,
        root: u32,
    ) -> Result<Pending<T>, Error> {
        let count = data.len();
        self.start(Operation::Reduce { root }, Some(op), count, data, None)
    }

    /// Starts [`all_to_all`](Self::all_to_all).
    pub fn start_all_to_all<T: Element>(&self, input: Vec<T>) -> Result<Pending<T>, Error> {
        let (count, len) = (input.len() / self.nranks() as usize, input.len());
        self.start(Operation::AllToAll, None, count, input, Some(len))
    }

    /// Starts [`send`](Self::send).
    pub fn start_send<T: Element>(&self, data: Vec<T>, peer: u32) -> Result<Pending<T>, Error> {
        let count = data.len();
        self.start(Operation::Send { peer }, None, count, data, None)
    }

    /// Starts [`recv`](Self::recv), into `data`.
    pub fn start_recv<T: Element>(&self, data: Vec<T>, peer: u32) -> Result<Pending<T>, Error> {
        let count = data.len();
        self.start(Operation::Recv { peer }, None, count, data, None)
    }

    /// Starts an operation. `output_len` is `None` if the operation is in place.
    fn start<T: Element>(
        &self,
        operation: Operation,
        redop: Option<RedOp>,
        count: usize,
        mut input: Vec<T>,
        output_len: Option<usize>,
    ) -> Result<Pending<T>, Error> {
        let shape = self.shape(operation, redop);
        let mut output = Vec::new();
        let call = match (operation, output_len) {
            (Operation::Send { .. }, _) => typed(shape, count, &input, &mut [])?,
            (Operation::Recv { .. }, _) => typed(shape, count, &[], &mut input)?,
            (_, None) => in_place(shape, count, &mut input)?,
            (_, Some(len)) => {
                let zero = || Kind::Usage(format!("{len} elements are too many"));
                output.try_reserve_exact(len).map_err(|_| zero())?;
                output.extend(std::iter::repeat_n(T::ZERO, len));
                typed(shape, count, &input, &mut output)?
            }
        };
        let (done, buffers) = (Arc::<Done>::default(), Arc::new(Buffers { input, output }));
        let started = Started { call, done: Arc::clone(&done), buffers: Arc::clone(&buffers) as _ };
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            *worker = Some(Worker::spawn(&self.core)?);
        }
        self.core.queue.push(started);
        Ok(Pending { core: Arc::clone(&self.core), done, buffers })
    }
}

impl<T: Element> Pending<T> {
    /// Returns whether the operation is done, successfully or not.
    pub fn is_done(&self) -> bool {
        self.done.result().is_some()
    }

    /// Waits for the operation and returns its output. If the operation is in place or a send, returns
    /// the data.
    pub fn wait(self) -> Result<Vec<T>, Error> {
        let Pending { core, done, buffers } = self;
        // If another thread runs this operation, it is done when that thread unlocks the engine.
        core.queue.drain(&mut core.engine());
        done.result().take().expect("all that was started is done")?;
        let buffers = Arc::into_inner(buffers).expect("who does it has let go of it");
        Ok(if buffers.output.is_empty() { buffers.input } else { buffers.output })
    }
}

impl Queue {
    fn push(&self, started: Started) {
        self.state().waiting.push_back(started);
        self.news.notify_one();
    }

    /// Runs all operations that are started.
    pub(super) fn drain(&self, engine: &mut Engine) {
        loop {
            let Some(started) = self.state().waiting.pop_front() else { return };
            let Started { call, done, buffers } = started;
            // SAFETY: `start` has checked the lengths. `buffers` keeps the memory, and nobody accesses
            // it until the operation is done.
            let result = unsafe { engine.run(&[call]) };
            drop(buffers);
            *done.result() = Some(result);
        }
    }

    /// Closes the queue: no more operations will be started.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.news.notify_all();
    }

    /// Waits for an operation or for `close`. Returns whether there is an operation.
    fn wait(&self) -> bool {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let state = self.news.wait_while(self.state(), idle);
        !state.unwrap_or_else(PoisonError::into_inner).waiting.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Done {
    fn result(&self) -> MutexGuard<'_, Option<Result<(), Error>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn spawn(core: &Arc<Core>) -> Result<Self, Error> {
        let core = Arc::clone(core);
        let thread = thread::Builder::new().name("invar-coll".to_owned()).spawn(move || {
            while core.queue.wait() {
                core.queue.drain(&mut core.engine());
            }
        });
        let thread = thread.map_err(|error| Error::io("starting a thread", error))?;
        Ok(Worker(Some(thread)))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // If the worker has panicked, its thread has already reported the panic.
            let _ = thread.join();
        }
    }
}
