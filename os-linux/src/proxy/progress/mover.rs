//! The progress thread's loop.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::yield_now;

use invar_core::proxy::{CloseError, ConnectionId, Event, Pace, Probe, Taker, Transport};

use super::mailbox::Mailbox;
use super::{HeapEngine, ProgressFailure};
use crate::proxy::abort::TICK;
use crate::proxy::{Abort, futex};

/// The thread's own.
pub(super) struct Mover<T, P> {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) abort: Abort,
    pub(super) engine: HeapEngine,
    pub(super) taker: Taker,
    pub(super) batch: u32,
    /// Connections to be closed when nothing uses them.
    pub(super) closing: Vec<ConnectionId>,
    pub(super) dump_to: Option<Box<dyn Write + Send>>,
    pub(super) transport: T,
    pub(super) probe: P,
}

impl<T: Transport, P: Probe> Mover<T, P>
where
    T::Error: std::fmt::Debug,
{
    pub(super) fn run(&mut self, mut pace: Pace) -> Result<(), ProgressFailure<T::Error>> {
        loop {
            if self.abort.is_set() {
                return Err(ProgressFailure::Aborted);
            }
            if self.mailbox.dump.swap(false, Ordering::Relaxed)
                && let Some(to) = &mut self.dump_to
            {
                // Nobody is there to be told that it can't be written.
                let _ = write!(to, "{}", self.engine).and_then(|()| to.flush());
            }
            let moved = self
                .engine
                .progress(&mut self.transport, &mut self.probe)
                .map_err(ProgressFailure::Transport)?;
            let (look, event) = pace.after_round(moved);
            event.into_iter().for_each(|event| self.probe.record(event));
            if !look {
                continue;
            }
            // Looked at before taking: what was posted before it was closed is then taken.
            let closed = self.mailbox.shared.pool().posted().is_closed();
            if self.take()? > 0 {
                continue;
            }
            self.close_unused()?;
            match (self.engine.is_idle(), closed) {
                (true, true) => return Ok(()),
                (true, false) => self.sleep(),
                (false, _) => yield_now(),
            }
        }
    }

    /// Takes new operations; says how many.
    fn take(&mut self) -> Result<u32, ProgressFailure<T::Error>> {
        let Mover { mailbox, engine, taker, closing, probe, batch, .. } = self;
        let pool = mailbox.shared.pool();
        if !taker.has_more() && pool.posted().is_empty() {
            return Ok(0);
        }
        probe.record(Event::Append);
        let mut failed = Ok(());
        let taken = taker.take(pool, *batch, |rank, op| {
            // The rank was told of its connection after we were.
            if failed.is_ok() {
                failed = mailbox.obey(engine, closing);
            }
            engine.append(rank, op)
        });
        failed.map_err(ProgressFailure::Open)?;
        let taken = taken.map_err(ProgressFailure::Take)?;
        for rank in (0..pool.nranks()).filter(|rank| taken.wake_ranks & 1 << rank != 0) {
            pool.free(rank).into_iter().for_each(futex::wake);
        }
        probe.record(Event::AppendEnd { ops: taken.ops });
        Ok(taken.ops)
    }

    /// Closes what is to be closed and used by nothing. All that was posted is taken by now.
    fn close_unused(&mut self) -> Result<(), ProgressFailure<T::Error>> {
        let Mover { mailbox, engine, closing, .. } = self;
        mailbox.obey(engine, closing).map_err(ProgressFailure::Open)?;
        // The later share the buffers of the earlier.
        closing.sort_unstable();
        let mut left = closing.len();
        while let Some(at) = left.checked_sub(1) {
            if !matches!(engine.close(closing[at]), Err(CloseError::InUse(..))) {
                closing.remove(at);
            }
            left = at;
        }
        Ok(())
    }

    /// Until a rank posts something, or it is to stop, or to dump.
    fn sleep(&mut self) {
        let mailbox = &*self.mailbox;
        let posted = mailbox.shared.pool().posted();
        self.probe.record(Event::Sleep);
        while posted.is_empty()
            && !posted.is_closed()
            && !self.abort.is_set()
            && !mailbox.dump.load(Ordering::Relaxed)
            && !mailbox.is_waiting()
        {
            futex::wait_while_empty(posted, TICK);
        }
        self.probe.record(Event::Wakeup);
    }
}
