//! One round over the operations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use invar_core::proxy::{
    CloseError, ConnectionId, Engine, Pace, Probe, ProxyEvent, Taker, Transport,
};

use super::mailbox::Mailbox;
use super::{HeapEngine, ProgressFailure, ProgressSettings};
use crate::proxy::{HeapBanks, futex};

/// The object that moves operations. Only the holder of its lock moves them.
pub(super) struct Mover<T, P> {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) engine: HeapEngine,
    pub(super) taker: Taker,
    pub(super) batch: u32,
    pub(super) pace: Pace,
    /// Connections to close once nothing uses them.
    pub(super) closing: Vec<ConnectionId>,
    pub(super) transport: T,
    pub(super) probe: P,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// The round moved or took something.
    Moved,
    /// The active operations wait for the GPU or the network.
    Waiting,
    /// No operation is active.
    Idle,
    /// No operation is active, and none will follow.
    Ended,
}

impl<T: Transport, P: Probe> Mover<T, P>
where
    T::Error: std::fmt::Debug,
{
    /// Makes a mover without operations.
    pub(super) fn new(
        mailbox: &Arc<Mailbox>,
        settings: &ProgressSettings,
        transport: T,
        probe: P,
    ) -> Self {
        Mover {
            mailbox: Arc::clone(mailbox),
            engine: Engine::new(HeapBanks::default(), HeapBanks::default()),
            taker: Taker::default(),
            batch: settings.append_batch.max(1),
            pace: Pace::new(settings.append_every),
            closing: Vec::new(),
            transport,
            probe,
        }
    }

    /// Moves each ready slice by one stage. Takes new operations if `look` is set or if it is time to.
    pub(super) fn round(&mut self, look: bool) -> Result<Round, ProgressFailure<T::Error>> {
        if self.mailbox.abort.is_set() {
            return Err(ProgressFailure::Aborted);
        }
        // Operations that the caller has just posted move in the same round.
        let taken = if look { self.take()? } else { 0 };
        let moved = self
            .engine
            .progress(&mut self.transport, &mut self.probe)
            .map_err(ProgressFailure::Transport)?;
        let (due, event) = self.pace.after_round(moved);
        event.into_iter().for_each(|event| self.probe.record(event));
        if !(look || due) {
            return Ok(Round::Moved);
        }
        // Both come before `take`: operations posted before the list or their connection was closed are then
        // taken.
        let closed = self.mailbox.shared.pool().posted().is_closed();
        self.obey()?;
        let taken = taken + self.take()?;
        // Ranks that post without end must not keep a cell of one that is gone.
        self.reclaim()?;
        if taken > 0 {
            return Ok(Round::Moved);
        }
        self.close_unused();
        Ok(match (self.engine.is_idle(), closed) {
            (true, true) => Round::Ended,
            (true, false) => Round::Idle,
            (false, _) if moved => Round::Moved,
            (false, _) => Round::Waiting,
        })
    }

    /// Lists the active operations in the form of `NCCL_PROXY_DUMP_SIGNAL`.
    pub(super) fn dump(&self) -> String {
        self.engine.to_string()
    }

    /// Takes new operations and returns their number.
    fn take(&mut self) -> Result<u32, ProgressFailure<T::Error>> {
        let Mover { mailbox, engine, taker, closing, probe, batch, .. } = self;
        let pool = mailbox.shared.pool();
        if !taker.has_more() && pool.posted().is_empty() {
            return Ok(0);
        }
        probe.record(ProxyEvent::Append);
        let mut failed = Ok(());
        let taken = taker.take(pool, *batch, |rank, op| {
            // The rank learns of its connection after this thread, so a command for it already waits.
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
        probe.record(ProxyEvent::AppendEnd { ops: taken.ops });
        Ok(taken.ops)
    }

    /// Reclaims the cells of ranks that are gone.
    fn reclaim(&mut self) -> Result<(), ProgressFailure<T::Error>> {
        let gone = self.mailbox.reclaim.load(Ordering::Acquire);
        if gone == 0 {
            return Ok(());
        }
        while self.taker.has_more() {
            self.take()?;
        }
        let Mover { mailbox, taker, .. } = self;
        let pool = mailbox.shared.pool();
        for rank in (0..u64::BITS).filter(|rank| gone & 1 << rank != 0) {
            if taker.reclaim(pool, rank).map_err(ProgressFailure::Take)? {
                mailbox.reclaim.fetch_and(!(1 << rank), Ordering::Release);
                pool.free(rank).into_iter().for_each(futex::wake);
            }
        }
        Ok(())
    }

    fn obey(&mut self) -> Result<(), ProgressFailure<T::Error>> {
        let Mover { mailbox, engine, closing, .. } = self;
        mailbox.obey(engine, closing).map_err(ProgressFailure::Open)
    }

    /// Closes connections that wait for their close and are unused. The mover has taken all operations that
    /// were posted before they were told to close.
    fn close_unused(&mut self) {
        let Mover { engine, closing, transport, .. } = self;
        // Later connections share the buffers of earlier ones, so the loop closes them first.
        closing.sort_unstable();
        let mut left = closing.len();
        while let Some(at) = left.checked_sub(1) {
            if !matches!(engine.close(closing[at]), Err(CloseError::InUse(..))) {
                transport.close(closing.remove(at));
            }
            left = at;
        }
    }
}
