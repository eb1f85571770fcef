//! The operations that are started and not done, and the threads that move them.
//!
//! Operations run one after the other, in the order in which they were started. Whoever locks the engine
//! moves the first operation that is not done:
//!
//! - A blocking call, and [`Pending::wait`](super::Pending::wait), first complete all operations before
//!   their own.
//! - [`Posted::test`](super::Posted::test) moves a few rounds and returns. `Posted::wait_within` moves
//!   rounds until its operation is done or the time is over.
//! - The worker thread moves what nobody else moves. It takes an operation of [`Mover::Worker`] at once.
//!   It leaves operations of [`Mover::Caller`] alone as long as their callers test, because two threads
//!   that poll cost more than one. It takes over after one or two milliseconds without a test.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use invar_linux::own_thread::OwnThread;
use invar_linux::reactor::wake;

use super::call::{Calls, check_own};
use super::engine::{Advance, Batch, Engine, SLEEP_MAX};
use super::{Communicator, Core};
use crate::Error;
use crate::error::Kind;

/// The worker sleeps this long between two looks whether callers still test.
const NAP: Duration = Duration::from_millis(1);
/// Number of naps without an operation before the worker sleeps until it is woken. While it naps, a
/// caller need not wake it.
const NAPS: u32 = 100;

/// The thread that moves an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// The communicator's own thread, from the start on.
    Worker,
    /// The caller, who tests the operation or waits for it. If the caller stays away for some
    /// milliseconds, the communicator's own thread moves the operation.
    Caller,
}

/// The operations that are started and not done, in order.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    news: Condvar,
    /// Whether a caller has tested an operation since the worker last looked.
    tested: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The operations that have not begun.
    waiting: VecDeque<Started>,
    /// Number of operations that are not done, by [`Mover`].
    of_worker: usize,
    of_callers: usize,
    /// Whether the worker sleeps until it is woken.
    asleep: bool,
    closed: bool,
}

struct Started {
    calls: Calls,
    done: Arc<Done>,
    mover: Mover,
    /// The memory of the calls, if the queue keeps it until they are done.
    memory: Option<Arc<dyn Any + Send + Sync>>,
}

/// The engine, and the operation that has begun and is not done. Whoever locks it moves the operation.
pub(super) struct Workplace {
    pub(super) engine: Engine,
    running: Option<Running>,
    /// The tasks whose operations are done.
    wakers: Vec<Waker>,
}

/// The locked workplace. A waker may run any code, so tasks are woken once the lock is given up.
pub(super) struct AtWorkplace<'a>(Option<MutexGuard<'a, Workplace>>);

/// An operation that has begun and is not done.
struct Running {
    batch: Batch<Calls>,
    done: Arc<Done>,
    mover: Mover,
    memory: Option<Arc<dyn Any + Send + Sync>>,
}

/// The result of an operation, once it is done.
#[derive(Default)]
pub(super) struct Done {
    is_set: AtomicBool,
    outcome: Mutex<Outcome>,
    news: Condvar,
}

#[derive(Default)]
struct Outcome {
    result: Option<Result<(), Error>>,
    /// Number of threads that sleep until the operation is done.
    sleepers: usize,
    /// The task to wake when the operation is done.
    waker: Option<Waker>,
}

/// Ends an operation whose thread panics, so that nobody waits for it for ever.
struct Unwinding<'a> {
    queue: &'a Queue,
    running: &'a mut Option<Running>,
    wakers: &'a mut Vec<Waker>,
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let ended = self.queue.end(self.running, Err(Kind::Aborted.into()));
        self.wakers.extend(ended);
    }
}

/// The thread that runs the operations that nobody else moves.
pub(super) struct Worker(OwnThread);

impl Communicator {
    /// Appends an operation to the queue, and starts the worker with the first one.
    ///
    /// # Errors
    /// Fails in a child of fork, if [`check_own`] refuses the calls, or if the worker can't start.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`Engine::advance`] about the memory of the calls until the operation
    /// is done. The queue keeps `memory` until then, so `memory` may own the input and the output.
    pub(super) unsafe fn enqueue(
        &self,
        calls: Calls,
        memory: Option<Arc<dyn Any + Send + Sync>>,
        mover: Mover,
    ) -> Result<Arc<Done>, Error> {
        self.core.check_owner()?;
        check_own(calls.as_ref(), self.rank())?;
        if self.worker.get().is_none() {
            self.start_worker()?;
        }
        let done = Arc::<Done>::default();
        self.core.queue.push(Started { calls, done: Arc::clone(&done), mover, memory });
        Ok(done)
    }

    /// Starts the worker, unless another thread has just started it.
    #[cold]
    fn start_worker(&self) -> Result<(), Error> {
        let _one_at_a_time = self.core.queue.state();
        if self.worker.get().is_none() {
            let _ = self.worker.set(Worker::spawn(&self.core)?);
        }
        Ok(())
    }
}

impl<'a> AtWorkplace<'a> {
    pub(super) fn new(workplace: MutexGuard<'a, Workplace>) -> Self {
        AtWorkplace(Some(workplace))
    }
}

impl Deref for AtWorkplace<'_> {
    type Target = Workplace;

    fn deref(&self) -> &Workplace {
        self.0.as_ref().expect("locked until it is dropped")
    }
}

impl DerefMut for AtWorkplace<'_> {
    fn deref_mut(&mut self) -> &mut Workplace {
        self.0.as_mut().expect("locked until it is dropped")
    }
}

impl Drop for AtWorkplace<'_> {
    fn drop(&mut self) {
        let wakers = std::mem::take(&mut self.wakers);
        self.0 = None;
        wakers.into_iter().for_each(wake);
    }
}

impl Workplace {
    pub(super) fn new(engine: Engine) -> Self {
        Workplace { engine, running: None, wakers: Vec::new() }
    }

    /// Whether tasks are to be woken. If so, the caller gives up the lock, because other operations may wait
    /// for these tasks.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Pauses the caller, because the operation that has begun waits for another rank: at most `within`.
    pub(super) fn pause(&mut self, within: Duration) {
        if self.running.is_some() {
            self.engine.pause(within);
        }
    }
}

impl Queue {
    fn push(&self, started: Started) {
        let mut state = self.state();
        *state.count(started.mover) += 1;
        let wakes = state.asleep || started.mover == Mover::Worker;
        state.waiting.push_back(started);
        drop(state);
        if wakes {
            self.news.notify_one();
        }
    }

    /// Moves the first operation that is not done by one round, without waiting. Returns `None` if all
    /// operations are done.
    pub(super) fn round(&self, workplace: &mut Workplace) -> Option<Advance> {
        let Workplace { engine, running, wakers } = workplace;
        if running.is_none() {
            let Started { calls, done, mover, memory } = self.state().waiting.pop_front()?;
            *running = Some(Running { batch: engine.batch(calls), done, mover, memory });
        }
        let unwinding = Unwinding { queue: self, running, wakers };
        let batch = &mut unwinding.running.as_mut()?.batch;
        // SAFETY: the caller of `enqueue` has promised what `advance` demands, and `check_own` has accepted the
        // calls.
        let advanced = unsafe { engine.advance(batch) };
        std::mem::forget(unwinding);
        let result = match advanced {
            Ok(Advance::Done) => Ok(()),
            Ok(round) => return Some(round),
            Err(error) => Err(error),
        };
        wakers.extend(self.end(running, result));
        Some(Advance::Done)
    }

    /// Ends the operation that has begun, and returns the task to wake.
    fn end(&self, running: &mut Option<Running>, result: Result<(), Error>) -> Option<Waker> {
        let Running { done, mover, memory, .. } = running.take()?;
        drop(memory);
        *self.state().count(mover) -= 1;
        done.set(result)
    }

    /// Notes that a caller tests an operation and so moves it.
    #[inline]
    pub(super) fn note_test(&self) {
        // The worker clears the flag once in a nap, so the cache line mostly stays here.
        if !self.tested.load(Ordering::Relaxed) {
            self.tested.store(true, Ordering::Relaxed);
        }
    }

    /// Closes the queue: no more operations will be started.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.news.notify_all();
    }

    /// Waits until the worker has something to do. Returns `None` after [`close`](Self::close), once all
    /// operations are done. Otherwise returns whether to complete all operations at once.
    fn wait(&self) -> Option<bool> {
        let mut state = self.state();
        // Number of naps without operations, and whether there were operations before the last nap.
        let (mut naps, mut watched) = (0, false);
        loop {
            if state.of_worker > 0 || state.closed {
                let left = state.of_worker + state.of_callers;
                return (left > 0).then_some(true);
            }
            let tested = self.tested.swap(false, Ordering::Relaxed);
            if state.of_callers == 0 {
                naps += 1;
            } else if watched && !tested {
                return Some(false);
            } else {
                naps = 0;
            }
            watched = state.of_callers > 0;
            if naps > NAPS {
                state.asleep = true;
                let idle = |state: &mut State| {
                    state.of_worker == 0 && state.of_callers == 0 && !state.closed
                };
                let woken = self.news.wait_while(state, idle);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                state.asleep = false;
                naps = 0;
            } else {
                let waited = self.news.wait_timeout(state, NAP);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Moves the operations of callers until one of them tests again.
    fn stand_in(&self, core: &Core) {
        while !self.tested.load(Ordering::Relaxed) {
            let state = self.state();
            if state.of_callers == 0 || state.of_worker > 0 || state.closed {
                return;
            }
            drop(state);
            let mut workplace = core.workplace();
            match self.round(&mut workplace) {
                Some(Advance::Moved | Advance::Done) => {}
                // Data wakes the thread, which moves the operation even if a caller tests meanwhile.
                Some(Advance::Waiting) if !self.tested.load(Ordering::Relaxed) => {
                    workplace.pause(SLEEP_MAX);
                }
                Some(Advance::Waiting) | None => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&mut self, mover: Mover) -> &mut usize {
        match mover {
            Mover::Worker => &mut self.of_worker,
            Mover::Caller => &mut self.of_callers,
        }
    }
}

impl Done {
    /// Whether the operation is done, successfully or not.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Takes the result. Returns `None` if the operation is not done, or if the result is taken.
    pub(super) fn take(&self) -> Option<Result<(), Error>> {
        self.outcome().result.take()
    }

    /// Takes the result as [`take`](Self::take) does, or wakes the task when there is one.
    pub(super) fn take_or_wake(&self, waker: &Waker) -> Option<Result<(), Error>> {
        let mut outcome = self.outcome();
        let result = outcome.result.take();
        let waker = result.is_none().then(|| waker.clone());
        let earlier = std::mem::replace(&mut outcome.waker, waker);
        drop(outcome);
        // A waker may run any code when it is dropped, so no lock is held.
        drop(earlier);
        result
    }

    /// Wakes the task once the operation is done. Returns false if it is done already.
    pub(super) fn wake_when_set(&self, waker: &Waker) -> bool {
        let mut outcome = self.outcome();
        if self.is_set() {
            return false;
        }
        let earlier = outcome.waker.replace(waker.clone());
        drop(outcome);
        // A waker may run any code when it is dropped, so no lock is held.
        drop(earlier);
        true
    }

    /// Sleeps until the operation is done, at most this long.
    pub(super) fn sleep(&self, time: Duration) {
        let mut outcome = self.outcome();
        outcome.sleepers += 1;
        let asleep = self.news.wait_timeout_while(outcome, time, |_| !self.is_set());
        asleep.unwrap_or_else(PoisonError::into_inner).0.sleepers -= 1;
    }

    /// Sets the result, and returns the task to wake.
    fn set(&self, result: Result<(), Error>) -> Option<Waker> {
        let mut outcome = self.outcome();
        outcome.result = Some(result);
        self.is_set.store(true, Ordering::Release);
        if outcome.sleepers > 0 {
            self.news.notify_all();
        }
        outcome.waker.take()
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn spawn(core: &Arc<Core>) -> Result<Self, Error> {
        let core = Arc::clone(core);
        let thread = OwnThread::start("invar-coll", move || {
            while let Some(at_once) = core.queue.wait() {
                let work = || match at_once {
                    true => drop(core.drained()),
                    false => core.queue.stand_in(&core),
                };
                // An operation that panics has ended the communicator, and so the other operations.
                let _ = panic::catch_unwind(AssertUnwindSafe(work));
            }
        });
        thread.map(Worker).map_err(|error| Error::io("starting a thread", error))
    }

    /// Waits until the worker's thread has ended. If the caller runs on the worker's thread, returns true without
    /// waiting.
    pub(super) fn join(self) -> bool {
        self.0.is_current()
    }
}
