//! Messages about connections to a progress thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use invar_core::proxy::{ConnectionId, ConnectionSpec, OpenError};

use super::HeapEngine;
use crate::abort::Abort;
use crate::proxy::bound::Bound;
use crate::proxy::{SharedOps, futex};

/// Maximum time to wait until the thread reclaims cells, which takes it a round or two.
const RECLAIM_WITHIN: Duration = Duration::from_secs(10);
const RECLAIM_NAP: Duration = Duration::from_micros(50);

/// Tells a progress thread about connections. Clones tell the same thread.
#[derive(Clone, Debug)]
pub struct ProgressConnections(pub(super) Arc<Mailbox>);

impl ProgressConnections {
    /// Opens a connection. Call this before anyone posts an operation that names the connection.
    pub fn open(&self, id: ConnectionId, spec: ConnectionSpec) {
        self.tell(Command::Open(id, spec));
    }

    /// Closes a connection once no posted operation uses it.
    pub fn close(&self, id: ConnectionId) {
        self.tell(Command::Close(id));
    }

    /// Reclaims all cells of a local rank that is gone. Afterwards the pool may be given to the next
    /// rank of that number.
    pub fn reclaim(&self, local_rank: u32) {
        let Mailbox { shared, abort, reclaim, .. } = &*self.0;
        let bit = 1u64.checked_shl(local_rank).unwrap_or(0);
        reclaim.fetch_or(bit, Ordering::Release);
        let posted = shared.pool().posted();
        futex::wake(posted);
        let bound = Bound::new(abort, RECLAIM_WITHIN);
        while reclaim.load(Ordering::Acquire) & bit != 0 && !posted.is_closed() {
            // At a timeout the thread reclaims the cells later; after an abort nobody needs them.
            let Ok(nap) = bound.nap() else { return };
            thread::sleep(nap.min(RECLAIM_NAP));
        }
    }

    /// Returns a descriptor of the pool of operations, to send to a rank.
    pub fn to_fd(&self) -> io::Result<OwnedFd> {
        self.0.shared.to_fd()
    }

    fn tell(&self, command: Command) {
        let mut commands = self.0.commands();
        commands.push(command);
        self.0.waiting.store(true, Ordering::Release);
    }
}

/// The messages that wait for the thread.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) shared: SharedOps,
    pub(super) abort: Abort,
    commands: Mutex<Vec<Command>>,
    /// Whether commands wait, so that the check is cheap. Written under the lock.
    waiting: AtomicBool,
    /// Ranks whose cells are to be reclaimed, one bit each.
    pub(super) reclaim: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Open(ConnectionId, ConnectionSpec),
    Close(ConnectionId),
}

impl Mailbox {
    pub(super) fn new(shared: SharedOps, abort: Abort) -> Self {
        Mailbox {
            shared,
            abort,
            commands: Mutex::new(Vec::new()),
            waiting: AtomicBool::new(false),
            reclaim: AtomicU64::new(0),
        }
    }

    /// Executes the waiting commands.
    pub(super) fn obey(
        &self,
        engine: &mut HeapEngine,
        closing: &mut Vec<ConnectionId>,
    ) -> Result<(), OpenError> {
        if !self.is_waiting() {
            return Ok(());
        }
        let commands = {
            let mut commands = self.commands();
            self.waiting.store(false, Ordering::Relaxed);
            std::mem::take(&mut *commands)
        };
        for command in commands {
            match command {
                Command::Open(id, spec) => engine.open(id, spec)?,
                Command::Close(id) => closing.push(id),
            }
        }
        Ok(())
    }

    /// Whether commands wait.
    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether the thread has anything to do besides operations.
    pub(super) fn calls(&self) -> bool {
        self.is_waiting() || self.abort.is_set() || self.reclaim.load(Ordering::Relaxed) != 0
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        // A list of commands stays valid even if a holder of the lock panicked.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
