//! The thread that moves operations (`proxy.cc ncclProxyProgress`).

mod driver;
mod mailbox;
mod mover;

pub use driver::Driver;
pub use mailbox::ProgressConnections;

use std::fmt::{Debug, Display};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use invar_core::param::Params;
use invar_core::proxy::{
    AppendError, Args, Connection, Engine, OpenError, Probe, ProgressError, Slot, TakeError,
    Transport,
};
use rustix::thread::CpuSet;

use super::{Abort, HeapBanks, SharedOps, futex, thread};
use driver::Shared;
use mailbox::Mailbox;
use mover::Mover;

type HeapEngine = Engine<HeapBanks<Slot<Args>>, HeapBanks<Option<Connection>>>;

/// How to run it.
pub struct ProgressSettings {
    /// The GPU that it serves, for its name.
    pub device: u32,
    /// Processors that it may run on; `None` for all.
    pub cpus: Option<CpuSet>,
    /// `NCCL_PROXY_APPEND_BATCH_SIZE`.
    pub append_batch: u32,
    /// `NCCL_PROGRESS_APPENDOP_FREQ`.
    pub append_every: u32,
}

impl Default for ProgressSettings {
    /// NCCL's defaults.
    fn default() -> Self {
        ProgressSettings { device: 0, cpus: None, append_batch: 16, append_every: 8 }
    }
}

impl From<&Params<'_>> for ProgressSettings {
    /// What `NCCL_PROXY_APPEND_BATCH_SIZE` and `NCCL_PROGRESS_APPENDOP_FREQ` say, on all processors.
    fn from(params: &Params<'_>) -> Self {
        ProgressSettings {
            append_batch: params.proxy_append_batch,
            append_every: params.progress_appendop_freq,
            ..Self::default()
        }
    }
}

/// Why the thread ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ProgressFailure<E: Display + Debug> {
    /// The communicator is aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The transport can go no further.
    #[error(transparent)]
    Transport(ProgressError<E>),
    /// An operation that a rank posted cannot be moved.
    #[error(transparent)]
    Take(TakeError<AppendError>),
    /// A connection can't be opened.
    #[error(transparent)]
    Open(OpenError),
    /// The thread panicked: a defect of the transport or of this program.
    #[error("the progress thread panicked")]
    Panicked,
}

/// A running progress thread. Dropping it aborts the thread and waits for its end.
#[derive(Debug)]
pub struct Progress<E: Display + Debug> {
    mailbox: Arc<Mailbox>,
    driver: Driver<E>,
    thread: Option<JoinHandle<()>>,
}

impl<E: Display + Debug + Send + Sync + 'static> Progress<E> {
    /// Starts it for the ranks of `shared`. `probe` is told what happens.
    pub fn spawn<T>(
        shared: SharedOps,
        settings: ProgressSettings,
        abort: Abort,
        transport: T,
        probe: impl Probe + Send + 'static,
    ) -> io::Result<Self>
    where
        T: Transport<Error = E> + Send + 'static,
    {
        let mailbox = Arc::new(Mailbox::new(shared, abort));
        let mover = Mover::new(&mailbox, &settings, transport, probe);
        let shared = Arc::new(Shared::new(mover));
        let name = format!("InvarProgress{:2}", settings.device);
        let driver = Driver(Arc::clone(&shared) as _);
        let thread = thread::spawn(name, settings.cpus, move || shared.run())?;
        Ok(Progress { mailbox, driver, thread: Some(thread) })
    }

    /// To tell it of connections.
    pub fn connections(&self) -> ProgressConnections {
        ProgressConnections(Arc::clone(&self.mailbox))
    }

    /// For callers that move operations themselves while they wait.
    pub fn driver(&self) -> Driver<E> {
        self.driver.clone()
    }

    /// Whether it has ended, though not told to; [`Progress::stop`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it: ranks can post no more, and what they have posted is moved to its end. Another
    /// thread may abort meanwhile.
    pub fn stop(mut self) -> Result<(), Arc<ProgressFailure<E>>> {
        self.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            return Err(Arc::new(ProgressFailure::Panicked));
        }
        self.driver.failure().map_or(Ok(()), Err)
    }
}

impl<E: Display + Debug> Progress<E> {
    /// Takes no more operations, and has the thread look.
    fn close(&self) {
        let posted = self.mailbox.shared.pool().posted();
        posted.close();
        futex::wake(posted);
    }
}

impl<E: Display + Debug> Drop for Progress<E> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.mailbox.abort.set();
            self.close();
            // Why it ended, nobody asks.
            let _ = thread.join();
        }
    }
}
