//! The engine runs the operations of one rank, round by round.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{ptr, slice, thread};

use invar_core::coll::{Operation, Order, Task};
use invar_linux::rendezvous::{Bootstrap, GroupVerdict};

use super::backoff::{Backoff, Idle, Pause};
use super::board::Board;
use super::call::{Call, Work, own_messages};
use super::choose::Facts;
use super::job::Progress;
use super::links::Links;
use super::plan::Plan;
use crate::error::Kind;
use crate::{Error, ErrorKind};

/// The state that a rank needs to run its operations.
pub(super) struct Engine {
    pub(super) bootstrap: Arc<Bootstrap>,
    pub(super) links: Links,
    pub(super) facts: Facts,
    /// The ranks in the order of each channel's ring.
    pub(super) orders: Vec<Order<Arc<[u32]>>>,
    /// The last collective and its plan, for reuse: programs often repeat the same collective.
    pub(super) last: Option<(Work, Plan)>,
    /// A copy of the input of the all-to-all in place that runs now: what a rank receives would replace what it has
    /// not sent yet.
    pub(super) copied: Vec<u8>,
    pub(super) backoff: Backoff,
    /// Shows the other ranks this rank's operation and its wait.
    pub(super) board: Arc<Board>,
    /// A rank that leaves waits this long until its peers have its data: the time in which a connection
    /// recovers.
    pub(super) deliver_within: Duration,
    pub(super) has_left: bool,
}

/// The longest sleep. Data wakes a rank, but the end of another rank does not, nor does an abort.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(10);
/// If a rank sees a peer's connection end, or that its operation differs from a peer's, it waits this long for the
/// reason from the hub.
const NEWS_WITHIN: Duration = Duration::from_secs(2);
/// A rank that is done waits this long for the other ranks to be done too.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// The data of a rank that has left the communicator needs at most this long to arrive.
const LEFT_GRACE: Duration = Duration::from_secs(2);

impl Engine {
    /// Runs all calls: first the collectives one after the other, then the sends and receives at once.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`advance`](Self::advance).
    pub(super) unsafe fn run(&mut self, calls: &[Call]) -> Result<(), Error> {
        let mut batch = self.batch(calls);
        loop {
            // SAFETY: the caller has promised what `advance` demands.
            match unsafe { self.advance(&mut batch) }? {
                Advance::Done => return Ok(()),
                Advance::Moved => {}
                Advance::Waiting => self.pause(SLEEP_MAX),
            }
        }
    }

    /// Creates a batch of calls that have not begun.
    pub(super) fn batch<C: AsRef<[Call]>>(&mut self, calls: C) -> Batch<C> {
        self.awake();
        Batch { calls, begun: 0, current: None, transfers_begun: false, grace: Grace::None }
    }

    /// Pauses the caller, because the batch waits for another rank: at most `within`.
    #[inline]
    pub(super) fn pause(&mut self, within: Duration) {
        match self.backoff.pause() {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => thread::yield_now(),
            Pause::Arm => self.links.arm(),
            Pause::Sleep => self.links.sleep(within.min(SLEEP_MAX)),
        }
    }

    /// Ends a wait, because data has come.
    #[inline]
    fn awake(&mut self) {
        if self.backoff.renew() {
            self.links.disarm();
        }
    }

    /// Moves the batch by one round, without waiting. After an error no link uses the memory of the calls.
    ///
    /// # Safety
    ///
    /// [`check_own`](super::call::check_own) has accepted the calls.
    ///
    /// The following must hold until the batch is done or has failed. The input and output of each call
    /// have as many elements as [`Operation::input_count`] and [`Operation::output_count`] say. Nobody
    /// else writes the input or accesses the output. Input and output of a call are the same if the call is
    /// in place; otherwise they do not overlap. Memory of different calls does not overlap if
    /// any of the calls writes it.
    pub(super) unsafe fn advance<C: AsRef<[Call]>>(
        &mut self,
        batch: &mut Batch<C>,
    ) -> Result<Advance, Error> {
        let at_work = AtWork(self);
        // SAFETY: the caller has promised what `try_advance` demands.
        let advanced = unsafe { at_work.0.try_advance(batch) };
        match advanced {
            Ok(advance) => {
                std::mem::forget(at_work);
                Ok(advance)
            }
            // The ranks must know the reason before they see links end.
            Err(error) => {
                let error = match (error.rank(), at_work.0.board.told()) {
                    (Some(peer), _) if error.is_mismatch() => at_work.0.explain(error, peer),
                    (_, Some(verdict)) => error.after(&verdict.text),
                    _ => error,
                };
                at_work.0.board.failed();
                Err(failed(&at_work.0.bootstrap, error))
            }
        }
    }

    /// Names the rank whose operation differs from that of most ranks, if the hub knows it within
    /// [`NEWS_WITHIN`]. Otherwise names both this rank and the peer.
    #[cold]
    fn explain(&self, error: Error, peer: u32) -> Error {
        let Engine { bootstrap, board, .. } = self;
        let deadline = Instant::now() + NEWS_WITHIN;
        let has_majority = bootstrap.nranks() > 2;
        let mut verdict = None;
        if board.differ() {
            while bootstrap.check().is_ok() && !bootstrap.is_alone() && Instant::now() < deadline {
                verdict = board.told().filter(|verdict| verdict.is_mismatch);
                if verdict.as_ref().is_some_and(|of| of.culprit.is_some() || !has_majority) {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        match verdict {
            Some(GroupVerdict { culprit, text, .. }) => {
                error.explained(culprit.unwrap_or(peer), text)
            }
            None => {
                let text = format!("rank {} and rank {peer} differ: {error}", self.rank());
                error.explained(peer, text)
            }
        }
    }

    /// # Safety
    ///
    /// The caller makes the promises of [`advance`](Self::advance).
    unsafe fn try_advance<C: AsRef<[Call]>>(
        &mut self,
        batch: &mut Batch<C>,
    ) -> Result<Advance, Error> {
        loop {
            let Batch { current, grace, .. } = &mut *batch;
            let Some((_, plan)) = current else {
                // SAFETY: the caller has promised what `next_plan` demands.
                let next = unsafe { self.next_plan(batch) }?;
                let Some(next) = next else {
                    self.board.done(batch.calls.as_ref().iter().map(|call| &call.work));
                    return Ok(Advance::Done);
                };
                // The first transfer stands for all of a group.
                let mut works = batch.calls.as_ref().iter().map(|call| call.work);
                let transfer = || works.find(|work| work.operation.is_transfer());
                if let Some(work) = next.0.or_else(transfer) {
                    self.board.enter(&work);
                }
                next.1.prepare(&mut self.links)?;
                batch.current = Some(next);
                continue;
            };
            let done = plan.advance(&mut self.links)?;
            let peer = match (done, self.links.progress()?) {
                (Progress::Done, None) => {
                    self.awake();
                    *grace = Grace::None;
                    self.copied = Vec::new();
                    self.board.leave();
                    if let Some((Some(work), plan)) = current.take() {
                        self.last = Some((work, plan));
                    }
                    continue;
                }
                (Progress::Moved, _) => {
                    self.awake();
                    *grace = Grace::None;
                    self.board.moved();
                    return Ok(Advance::Moved);
                }
                (Progress::Waiting(peer), _) | (Progress::Done, Some(peer)) => peer,
            };
            match self.backoff.idle() {
                Idle::Again => {}
                Idle::Look => {
                    self.board.wait_for(peer);
                    grace.look_after(&self.bootstrap, peer)?;
                }
                Idle::TooLong(waited) => return Err(self.gives_up(peer, waited)),
            }
            return Ok(Advance::Waiting);
        }
    }

    /// Returns the error of a rank that has waited too long for a peer. The peer may wait too, so the error is
    /// about the rank at fault, if the hub has named one during the wait.
    #[cold]
    fn gives_up(&self, peer: u32, waited: Duration) -> Error {
        let turned_away = self.links.turned_away(peer);
        let text = format!("it did not do its part within {waited:?}{turned_away}");
        let silent = match self.board.culprit(waited) {
            Some(rank) if rank != peer => {
                let text = format!("rank {} waited for rank {peer}, and {text}", self.rank());
                Kind::SilentRank { rank, text }
            }
            _ => Kind::SilentRank { rank: peer, text },
        };
        silent.into()
    }

    /// Returns the plan of the next collective of a batch, and its work. After the last collective,
    /// returns the plan of all sends and receives.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`advance`](Self::advance).
    unsafe fn next_plan<C: AsRef<[Call]>>(
        &mut self,
        batch: &mut Batch<C>,
    ) -> Result<Option<(Option<Work>, Plan)>, Error> {
        if batch.begun == 0 {
            self.bootstrap.check().map_err(Error::failure)?;
        }
        let calls = batch.calls.as_ref();
        while let Some(call) = calls.get(batch.begun) {
            batch.begun += 1;
            if !call.work.operation.is_transfer() {
                // SAFETY: the caller has promised what `collective` demands.
                return Ok(Some((Some(call.work), unsafe { self.collective(call) }?)));
            }
        }
        if std::mem::replace(&mut batch.transfers_begun, true) {
            return Ok(None);
        }
        let mut transfers = Plan::default();
        for call in calls {
            if let Operation::Send { peer } | Operation::Recv { peer } = call.work.operation
                && peer != self.rank()
            {
                // SAFETY: the caller has promised what `plan` demands.
                unsafe { self.plan(call, &mut transfers) }?;
            }
        }
        for (send, recv) in own_messages(calls, self.rank()) {
            // SAFETY: by the caller's promise both buffers exist and do not overlap, and `check_own` has found them
            // equally long.
            unsafe { ptr::copy_nonoverlapping(send.input, recv.output, send.work.bytes()) };
        }
        Ok(if transfers.is_empty() { None } else { Some((None, transfers)) })
    }

    /// Returns a plan of one call. If the last call had the same work, this is the plan of that call,
    /// restarted.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`plan`](Self::plan).
    unsafe fn collective(&mut self, call: &Call) -> Result<Plan, Error> {
        // SAFETY: the caller has promised what `copy_input` demands.
        let call = &unsafe { self.copy_input(call) }?;
        if let Some((work, mut plan)) = self.last.take()
            && work == call.work
        {
            // SAFETY: the caller has promised what `restart` demands.
            unsafe { plan.restart(call.input, call.output) };
            return Ok(plan);
        }
        let mut plan = Plan::default();
        // SAFETY: the caller has promised what `plan` demands.
        unsafe { self.plan(call, &mut plan) }?;
        Ok(plan)
    }

    /// Returns the call, for an all-to-all in place with a copy of its input. No plan may be in progress.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`advance`](Self::advance).
    unsafe fn copy_input(&mut self, call: &Call) -> Result<Call, Error> {
        let Call { work, input, output } = *call;
        let is_in_place = input == output.cast_const() && work.count > 0;
        if work.operation != Operation::AllToAll || !is_in_place {
            return Ok(*call);
        }
        let len = work.bytes().saturating_mul(self.bootstrap.nranks() as usize);
        let none = |_| Kind::Usage(format!("no memory is left for a copy of {len} bytes"));
        let mut copied = Vec::new();
        copied.try_reserve_exact(len).map_err(none)?;
        // SAFETY: by the caller's promise the input has `len` bytes, and nobody writes them meanwhile.
        copied.extend_from_slice(unsafe { slice::from_raw_parts(input, len) });
        self.copied = copied;
        Ok(Call { input: self.copied.as_ptr(), ..*call })
    }

    /// Adds a call to a plan, one share for each channel.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`advance`](Self::advance), until the plan is done or dropped.
    unsafe fn plan(&self, call: &Call, plan: &mut Plan) -> Result<(), Error> {
        let Call { work: Work { operation, count, data_type, redop }, input, output } = *call;
        let choice = self.facts.choose(operation, count.saturating_mul(data_type.bytes()));
        for channel in 0..choice.nchannels {
            let order = self.orders[channel as usize].clone();
            let task = Task {
                operation,
                algorithm: choice.algorithm,
                count,
                data_type,
                rank: self.rank(),
                channel,
                nchannels: choice.nchannels,
                slot_bytes: choice.slot_bytes,
            };
            // SAFETY: the caller has promised what `Plan::add` demands.
            unsafe { plan.add(order, &task, redop, input, output) }?;
        }
        Ok(())
    }

    /// Leaves the communicator once the peers have what this rank has sent. A second call does nothing.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.has_left, true) && self.bootstrap.check().is_ok() {
            self.links.end(self.deliver_within.max(LEAVE_WITHIN), LEAVE_WITHIN);
            self.bootstrap.leave();
        }
    }

    fn rank(&self) -> u32 {
        self.bootstrap.rank()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Calls that a rank runs together, and how far it is with them.
pub(super) struct Batch<C> {
    calls: C,
    /// Number of calls, from the first, that have begun or are transfers.
    begun: usize,
    /// The plan in progress, and its work if the plan is of one collective.
    current: Option<(Option<Work>, Plan)>,
    transfers_begun: bool,
    grace: Grace,
}

/// The result of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// All calls are done.
    Done,
    /// Data has moved.
    Moved,
    /// The batch waits for another rank.
    Waiting,
}

/// Calls in progress, and links that work in their memory. If the calls end early, `drop` cuts the
/// links.
struct AtWork<'a>(&'a mut Engine);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.bootstrap.fail(self.0.rank(), "it has panicked");
        }
        self.0.links.cut();
        self.0.copied = Vec::new();
    }
}

/// The state of waiting for a peer that has left the communicator. The data that such a peer has sent
/// may still be on its way.
enum Grace {
    /// The peer that this rank waits for has not left.
    None,
    /// The peer has left; this rank first saw that at the given time.
    Since(Instant),
    /// All data of the peer has had time to arrive, so this rank looks once more.
    Over,
}

impl Grace {
    /// Returns an error if the data that this rank waits for can no longer come.
    fn look_after(&mut self, bootstrap: &Bootstrap, peer: u32) -> Result<(), Error> {
        bootstrap.check().map_err(Error::failure)?;
        *self = match self {
            _ if !bootstrap.has_left(peer) => Grace::None,
            Grace::None => Grace::Since(Instant::now()),
            Grace::Since(at) if at.elapsed() < LEFT_GRACE => return Ok(()),
            Grace::Since(_) => Grace::Over,
            Grace::Over => {
                let text =
                    "it has left the communicator while others still wait for its data".to_owned();
                return Err(Kind::Rank { rank: peer, text }.into());
            }
        };
        Ok(())
    }
}

/// Tells all ranks of an error of this rank, or returns the error that came before it.
#[cold]
pub(super) fn failed(bootstrap: &Bootstrap, error: Error) -> Error {
    if matches!(error.kind(), ErrorKind::Peer | ErrorKind::Network) && !error.is_mismatch() {
        // If a process has ended, the hub reports that and names the rank.
        let deadline = Instant::now() + NEWS_WITHIN;
        while bootstrap.check().is_ok() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
    match bootstrap.fail(error.rank().unwrap_or(bootstrap.rank()), &error.to_string()) {
        true => error.ending_connection(),
        false => bootstrap.check().err().map_or(error, Error::failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Communicator, FlightRecorder, Hub, PortRange, Settings};

    #[test]
    fn an_all_to_all_in_place_gives_its_copy_back() {
        let (at, within) = (([127, 0, 0, 1], 0).into(), Duration::from_secs(60));
        let hub = Hub::listen(at, PortRange::ANY, 1, None, within).unwrap();
        let settings = Settings::default().recorder(FlightRecorder::Off);
        let communicator = Communicator::join(&hub.id(), 0, 1, &settings).unwrap();
        let mut data = [1_u64, 2, 3];
        communicator.all_to_all_in_place(&mut data).unwrap();
        assert_eq!(data, [1, 2, 3]);
        assert_eq!(communicator.core.workplace().engine.copied.capacity(), 0);
    }
}
