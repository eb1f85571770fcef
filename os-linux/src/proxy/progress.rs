//! The progress thread, which moves operations (`proxy.cc ncclProxyProgress`).

mod driver;
mod mailbox;
mod mover;

pub use driver::Driver;
pub use mailbox::ProgressConnections;

use std::fmt::{Debug, Display};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use invar_core::proxy::{
    AppendError, Args, BankSlot, Connection, Engine, OpenError, Probe, ProgressError, TakeError,
    Transport,
};
use rustix::thread::CpuSet;

use super::{HeapBanks, SharedOps, futex, thread};
use crate::abort::Abort;
use driver::Shared;
use mailbox::Mailbox;
use mover::Mover;

type HeapEngine = Engine<HeapBanks<BankSlot<Args>>, HeapBanks<Option<Connection>>>;

/// Settings of a progress thread.
pub struct ProgressSettings {
    /// The GPU that the thread serves; part of the thread's name.
    pub device: u32,
    /// Processors that the thread may run on; `None` means all.
    pub cpus: Option<CpuSet>,
    /// Most operations that the thread takes over at a time (`NCCL_PROXY_APPEND_BATCH_SIZE`).
    pub append_batch: u32,
    /// Rounds between two looks for new operations (`NCCL_PROGRESS_APPENDOP_FREQ`).
    pub append_every: u32,
}

impl Default for ProgressSettings {
    /// Returns NCCL's defaults.
    fn default() -> Self {
        ProgressSettings { device: 0, cpus: None, append_batch: 16, append_every: 8 }
    }
}

/// The reason why the thread ended early.
#[derive(Debug, thiserror::Error)]
pub enum ProgressFailure<E: Display + Debug> {
    /// The communicator is aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The transport failed.
    #[error(transparent)]
    Transport(ProgressError<E>),
    /// A rank posted an operation that cannot be moved.
    #[error(transparent)]
    Take(TakeError<AppendError>),
    /// A connection cannot be opened.
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
    /// Starts the thread for the ranks of `shared`. The thread reports its events to `probe`.
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

    /// Returns a handle that tells the thread about connections.
    pub fn connections(&self) -> ProgressConnections {
        ProgressConnections(Arc::clone(&self.mailbox))
    }

    /// Returns a driver for callers that move operations themselves while they wait.
    pub fn driver(&self) -> Driver<E> {
        self.driver.clone()
    }

    /// Whether the thread has ended without being told to; [`Progress::stop`] returns the reason.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread. Ranks can post no more operations, and the thread first completes all posted
    /// ones. Another thread may set the abort flag meanwhile.
    pub fn stop(mut self) -> Result<(), Arc<ProgressFailure<E>>> {
        self.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            return Err(Arc::new(ProgressFailure::Panicked));
        }
        self.driver.failure().map_or(Ok(()), Err)
    }
}

impl<E: Display + Debug> Progress<E> {
    /// Closes the list of posted operations and wakes the thread.
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
            // Nobody asks for the reason of the end here.
            let _ = thread.join();
        }
    }
}
