//! Operations in progress.

use std::ops::Deref;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use invar::communicator::{Mover, Posted, RawOperation};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::error::raised;
use crate::memory::Memory;
use crate::prepared::{Prepared, check_group};
use crate::waiting::SIGNALS_EVERY;

/// After an abort, operations end at once. This is the bound of the wait for that.
const ABORT_WITHIN: Duration = Duration::from_secs(5);

/// A communicator that Python may close, and its operations in progress.
pub(crate) struct Session {
    /// The process that has joined. In a child of fork the communicator is its parent's.
    process: u32,
    communicator: Mutex<Option<Arc<invar::Communicator>>>,
    started: Mutex<Vec<Arc<InProgress>>>,
    pub(crate) rank: u32,
    pub(crate) nranks: u32,
}

/// An operation that has started, and its memory.
struct InProgress {
    posted: Posted,
    state: Mutex<State>,
}

struct State {
    /// The memory, until the operation is done.
    memory: Vec<Memory>,
    outcome: Option<Result<(), PyErr>>,
    /// Whether a caller of Python has got the outcome.
    is_seen: bool,
    /// The coroutines that wait and have not been told.
    awaiting: Vec<Awaiting>,
}

/// A future of asyncio, and its loop's `call_soon_threadsafe`.
struct Awaiting {
    future: Py<PyAny>,
    tell: Py<PyAny>,
}

/// Where operations go whose coroutines are to be told: the thread of the process with this number.
static TELLER: Mutex<Option<(u32, Sender<Arc<InProgress>>)>> = Mutex::new(None);

fn is_of(process: u32) -> bool {
    process == std::process::id()
}

/// The error for a child of fork that uses what is its parent's.
fn belongs_to(process: u32) -> PyErr {
    PyValueError::new_err(format!(
        "the communicator belongs to process {process}, from which this one was forked"
    ))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new(communicator: invar::Communicator) -> Self {
        let (rank, nranks) = (communicator.rank(), communicator.nranks());
        let communicator = Mutex::new(Some(Arc::new(communicator)));
        let process = std::process::id();
        Session { process, communicator, started: Mutex::default(), rank, nranks }
    }

    fn is_here(&self) -> bool {
        is_of(self.process)
    }

    /// Returns the communicator, unless it is closed or another process has joined.
    pub(crate) fn open(&self) -> PyResult<LastToLeave> {
        if !self.is_here() {
            return Err(belongs_to(self.process));
        }
        match locked(&self.communicator).clone() {
            Some(communicator) => Ok(LastToLeave(Some(communicator))),
            None => Err(PyValueError::new_err("the communicator is closed")),
        }
    }

    /// Runs operations as a group, and returns once they are done. If a signal's handler raises an
    /// exception meanwhile, the communicator is aborted: a rank can't take back what it has begun.
    pub(crate) fn run(&self, py: Python<'_>, group: Vec<Prepared>) -> PyResult<()> {
        let communicator = self.open()?;
        let (posted, memory) = post(py, &communicator, group, Mover::Caller)?;
        let interrupt = loop {
            match py.detach(|| posted.wait_within(SIGNALS_EVERY)) {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err(raised(py, &error)),
                None => {}
            }
            if let Err(interrupt) = py.check_signals() {
                break interrupt;
            }
        };
        let interrupted = InProgress::new(posted, memory);
        py.detach(|| {
            communicator.abort("a blocking call was interrupted");
            if interrupted.posted.wait_within(ABORT_WITHIN).is_none() {
                locked(&self.started).push(interrupted);
            }
        });
        Err(interrupt)
    }

    /// Starts operations as a group.
    pub(crate) fn start(
        &self,
        py: Python<'_>,
        group: Vec<Prepared>,
        mover: Mover,
    ) -> PyResult<Work> {
        let communicator = self.open()?;
        let (posted, memory) = post(py, &communicator, group, mover)?;
        let started = InProgress::new(posted, memory);
        let mut done = locked(&self.started).clone();
        // This may run Python's code, which may start operations too: no lock is held.
        done.retain(|earlier| earlier.collect(py));
        let mut all = locked(&self.started);
        all.retain(|earlier| !done.iter().any(|done| Arc::ptr_eq(done, earlier)));
        all.push(Arc::clone(&started));
        drop(all);
        Ok(Work { process: self.process, started })
    }

    /// Ends the communicator on all ranks.
    pub(crate) fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let communicator = self.open()?;
        py.detach(|| communicator.abort(reason));
        Ok(())
    }

    /// Waits for the operations in progress, and leaves the communicator. Returns the error of an
    /// operation for which nobody has waited.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_here() {
            return Ok(());
        }
        let mut failed = Ok(());
        // An operation stays in the list while a signal may interrupt the wait for it.
        while let Some(started) = { locked(&self.started).first().cloned() } {
            started.wait(py, None)?;
            locked(&self.started).retain(|other| !Arc::ptr_eq(other, &started));
            let state = locked(&started.state);
            if let (Some(Err(error)), false, Ok(())) = (&state.outcome, state.is_seen, &failed) {
                failed = Err(error.clone_ref(py));
            }
        }
        self.leave(py);
        failed
    }

    /// Takes the communicator, which ends with its last handle. If operations are in progress, aborts the
    /// communicator first. Returns `None` if it is closed or another process has joined.
    pub(crate) fn give_up(&self, py: Python<'_>) -> Option<Arc<invar::Communicator>> {
        if !self.is_here() {
            return None;
        }
        // This may run Python's code, which may start operations too: no lock is held.
        let started = locked(&self.started).clone();
        if started.iter().any(|started| !started.collect(py)) {
            // A closed communicator has ended already.
            let _ = self.abort(py, "the communicator was dropped with operations in progress");
        }
        locked(&self.communicator).take()
    }

    /// Leaves the communicator. Operations that are not done go on until its end.
    fn leave(&self, py: Python<'_>) {
        let communicator = locked(&self.communicator).take();
        py.detach(|| drop(communicator));
    }
}

impl Drop for Session {
    /// Aborts a communicator that was not closed, if operations are in progress.
    fn drop(&mut self) {
        if !self.is_here() {
            // Another thread of the parent may have held a lock when the process forked.
            std::mem::forget(self.communicator.get_mut().map(Option::take));
            return std::mem::forget(self.started.get_mut().map(std::mem::take));
        }
        Python::try_attach(|py| {
            let communicator = self.give_up(py);
            py.detach(|| drop(communicator));
            // An interrupted call may still hold the communicator, so that it has not ended here.
            for started in std::mem::take(&mut *locked(&self.started)) {
                let outcome = py.detach(|| started.posted.wait_within(ABORT_WITHIN));
                if !started.keep(py, outcome) {
                    // The operation may still use its memory.
                    std::mem::forget(started);
                }
            }
        });
    }
}

/// A handle of a communicator that another thread may close meanwhile. The last handle leaves the communicator, which
/// may wait for other ranks, and so for other threads of this interpreter.
pub(crate) struct LastToLeave(Option<Arc<invar::Communicator>>);

impl Deref for LastToLeave {
    type Target = invar::Communicator;

    fn deref(&self) -> &invar::Communicator {
        self.0.as_deref().expect("there until it is dropped")
    }
}

impl Drop for LastToLeave {
    fn drop(&mut self) {
        if let Some(last) = self.0.take().and_then(Arc::into_inner) {
            // Without an interpreter nobody else needs it.
            Python::try_attach(|py| py.detach(|| drop(last)));
        }
    }
}

/// Starts operations as a group, and returns their memory.
fn post(
    py: Python<'_>,
    communicator: &invar::Communicator,
    group: Vec<Prepared>,
    mover: Mover,
) -> PyResult<(Posted, Vec<Memory>)> {
    check_group(communicator, &group)?;
    let raw: Vec<RawOperation> = group.iter().map(|prepared| prepared.raw).collect();
    // SAFETY: the library has checked the lengths. `check_group` and `prepared` have checked that memory
    // which an operation writes is that of no other. The callers of `post` keep the memory until the
    // operations are done. Python's programs must not use it meanwhile, as the documentation says.
    let posted = unsafe { communicator.post(&raw, mover) }.map_err(|error| raised(py, &error))?;
    Ok((posted, group.into_iter().flat_map(Prepared::into_memory).collect()))
}

impl InProgress {
    fn new(posted: Posted, memory: Vec<Memory>) -> Arc<Self> {
        let state = State { memory, outcome: None, is_seen: false, awaiting: Vec::new() };
        Arc::new(InProgress { posted, state: Mutex::new(state) })
    }

    /// Waits at most this long. Returns whether the operation is done.
    fn wait(&self, py: Python<'_>, time: Option<Duration>) -> PyResult<bool> {
        let start = Instant::now();
        loop {
            let left = time.map_or(SIGNALS_EVERY, |time| time.saturating_sub(start.elapsed()));
            let left = left.min(SIGNALS_EVERY);
            let outcome = py.detach(|| self.posted.wait_within(left));
            if self.keep(py, outcome) {
                return Ok(true);
            }
            py.check_signals()?;
            if time.is_some_and(|time| start.elapsed() >= time) {
                return Ok(false);
            }
        }
    }

    /// Fetches the outcome, if the operation is done. Returns whether it is.
    fn collect(&self, py: Python<'_>) -> bool {
        let outcome = if self.posted.is_done() { self.posted.test() } else { None };
        self.keep(py, outcome)
    }

    /// Keeps the outcome, which the library gives once, gives the memory back, and tells the coroutines that
    /// wait. Returns whether the operation is done.
    fn keep(&self, py: Python<'_>, outcome: Option<Result<(), invar::Error>>) -> bool {
        // An exception is made without the lock: making it may run code of Python that waits for the lock.
        let outcome = outcome.map(|outcome| outcome.map_err(|error| raised(py, &error)));
        let mut state = locked(&self.state);
        let mut memory = Vec::new();
        if outcome.is_some() {
            state.outcome = outcome;
            memory = std::mem::take(&mut state.memory);
        }
        let is_done = state.outcome.is_some();
        let awaiting = if is_done { std::mem::take(&mut state.awaiting) } else { Vec::new() };
        drop(state);
        // A lender may run code of Python.
        drop(memory);
        if !awaiting.is_empty() {
            self.tell(py, awaiting);
        }
        is_done
    }

    /// Tells coroutines the outcome.
    fn tell(&self, py: Python<'_>, awaiting: Vec<Awaiting>) {
        let Ok(settle) = wrap_pyfunction!(settle, py) else { return };
        let error = self.outcome(py).err().map(|error| error.into_value(py));
        for Awaiting { future, tell } in awaiting {
            // The loop may be closed by now.
            let _ = tell.call1(py, (&settle, future, &error));
        }
    }

    /// Returns the outcome of an operation that is done.
    fn outcome(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = locked(&self.state);
        state.is_seen = true;
        match &state.outcome {
            Some(Err(error)) => Err(error.clone_ref(py)),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

/// An operation in progress, which a ``start_…`` method returned.
///
/// Do not change the memory of the operation before it is done, and do not read its output. A work
/// can be awaited in a coroutine of asyncio.
///
/// >>> ones = np.ones(4, np.float32)
/// >>> work = comm.start_all_reduce(ones)
/// >>> work.wait()
/// >>> work.done()
/// True
#[pyclass(module = "invar", frozen)]
pub(crate) struct Work {
    /// The process that has started the operation.
    process: u32,
    started: Arc<InProgress>,
}

impl Work {
    /// Returns the operation, unless another process has started it.
    fn started(&self) -> PyResult<&Arc<InProgress>> {
        is_of(self.process).then_some(&self.started).ok_or_else(|| belongs_to(self.process))
    }
}

#[pymethods]
impl Work {
    /// Wait until the operation is done.
    ///
    /// Without a timeout the communicator's own bounds hold. A wait that Ctrl-C or the timeout ends
    /// leaves the operation in progress.
    ///
    /// Raises TimeoutError after `timeout` seconds, and Error if the operation fails.
    ///
    /// >>> comm.start_barrier().wait(timeout=60)
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let time = timeout.map(Duration::try_from_secs_f64).transpose();
        let time = time.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        let started = self.started()?;
        if started.wait(py, time)? {
            return started.outcome(py);
        }
        let text = format!("the operation is not done after {} s", timeout.unwrap_or_default());
        Err(PyTimeoutError::new_err(text))
    }

    /// Whether the operation is done, successfully or not.
    ///
    /// >>> work = comm.start_barrier()
    /// >>> work.wait()
    /// >>> work.done()
    /// True
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.started()?.collect(py))
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let started = slf.get().started()?;
        start_teller()?;
        let running = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = running.call_method0("create_future")?;
        let tell = running.getattr("call_soon_threadsafe")?.unbind();
        locked(&started.state).awaiting.push(Awaiting { future: future.clone().unbind(), tell });
        let waker = Waker::from(Arc::clone(started));
        if !started.posted.wake_when_done(&waker) {
            waker.wake();
        }
        future.call_method0("__await__")
    }
}

impl Wake for InProgress {
    /// Any thread may run this, so another one enters the interpreter.
    fn wake(self: Arc<Self>) {
        if let Some((_, teller)) = &*locked(&TELLER) {
            // The thread ends with the interpreter only.
            let _ = teller.send(self);
        }
    }
}

/// Starts the thread that tells coroutines, unless this process has it.
fn start_teller() -> PyResult<()> {
    let mut teller = locked(&TELLER);
    let process = std::process::id();
    // A child of `fork` has no threads of its parent.
    if teller.as_ref().is_some_and(|(of, _)| *of == process) {
        return Ok(());
    }
    let (sender, done) = mpsc::channel::<Arc<InProgress>>();
    // Python waits for the threads of its executors, even after Ctrl-C, and not for this one.
    thread::Builder::new().name("invar-await".to_owned()).spawn(move || {
        while let Ok(started) = done.recv() {
            if Python::try_attach(|py| started.collect(py)).is_none() {
                return;
            }
        }
    })?;
    *teller = Some((process, sender));
    Ok(())
}

/// Completes a future, unless it was cancelled.
#[pyfunction]
fn settle(future: &Bound<'_, PyAny>, error: Option<Py<PyAny>>) -> PyResult<()> {
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match error {
        Some(error) => future.call_method1("set_exception", (error,))?,
        None => future.call_method1("set_result", (future.py().None(),))?,
    };
    Ok(())
}
