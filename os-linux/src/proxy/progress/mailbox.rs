//! The messages to a progress thread about connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use invar_core::proxy::{ConnectionId, ConnectionSpec, OpenError};

use super::HeapEngine;
use crate::proxy::abort::Bound;
use crate::proxy::{Abort, SharedOps, futex};

/// How long to wait for cells to be taken back, which takes the thread a round or two.
const RECLAIM_WITHIN: Duration = Duration::from_secs(1);
const RECLAIM_NAP: Duration = Duration::from_micros(50);

/// Tells the progress thread of connections. Clones tell the same thread.
#[derive(Clone, Debug)]
pub struct ProgressConnections(pub(super) Arc<Mailbox>);

impl ProgressConnections {
    /// Opens a connection, before any operation that names it: one that is posted later finds it.
    pub fn open(&self, id: ConnectionId, spec: ConnectionSpec) {
        self.tell(Command::Open(id, spec));
    }

    /// Closes a connection once all that was posted is done with it.
    pub fn close(&self, id: ConnectionId) {
        self.tell(Command::Close(id));
    }

    /// Takes back the cells of a local rank that is gone, all that it held. Whoever is that rank
    /// next may be told of the pool then.
    pub fn reclaim(&self, local_rank: u32) {
        let Mailbox { shared, abort, reclaim, .. } = &*self.0;
        let bit = 1u64.checked_shl(local_rank).unwrap_or(0);
        reclaim.fetch_or(bit, Ordering::Release);
        let posted = shared.pool().posted();
        futex::wake(posted);
        let bound = Bound::new(abort, RECLAIM_WITHIN);
        while reclaim.load(Ordering::Acquire) & bit != 0 && !posted.is_closed() {
            // It is taken back later then, or nobody is left to need it.
            let Ok(nap) = bound.nap() else { return };
            thread::sleep(nap.min(RECLAIM_NAP));
        }
    }

    /// A descriptor of the pool of operations, for a rank.
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
    /// Whether there are any, so that looking is cheap. Set under the lock.
    waiting: AtomicBool,
    /// Ranks, a bit each, whose cells are to be taken back.
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

    /// Does what others have said.
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

    /// Whether others have said something of connections.
    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether there is anything but operations to see to.
    pub(super) fn calls(&self) -> bool {
        self.is_waiting() || self.abort.is_set() || self.reclaim.load(Ordering::Relaxed) != 0
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        // Whoever panicked, a list of commands is one.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
