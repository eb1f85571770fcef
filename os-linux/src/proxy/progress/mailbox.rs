//! What a progress thread is told of connections.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::proxy::{ConnectionId, ConnectionSpec, OpenError};

use super::HeapEngine;
use crate::proxy::{Abort, SharedOps};

/// What connections the thread is told of; clones tell the same thread.
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

/// What others have to say to the thread.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) shared: SharedOps,
    pub(super) abort: Abort,
    commands: Mutex<Vec<Command>>,
    /// Whether there are any, so that looking is cheap. Set under the lock.
    waiting: AtomicBool,
    /// Whether what is active is to be written.
    pub(super) dump: Arc<AtomicBool>,
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
            dump: Arc::new(AtomicBool::new(false)),
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
        self.is_waiting() || self.abort.is_set() || self.dump.load(Ordering::Relaxed)
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        // Whoever panicked, a list of commands is one.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
