//! The engine runs the operations of one rank.

use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use invar_core::coll::{Operation, Order, Task};
use invar_linux::rendezvous::Bootstrap;

use super::backoff::{Backoff, Idle};
use super::board::Board;
use super::call::{Call, Work};
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
    /// Whether this host has more ranks than processors.
    pub(super) crowded: bool,
    pub(super) timeout: Duration,
    /// What this rank is at, for the other ranks.
    pub(super) board: Arc<Board>,
}

/// If a rank sees a peer's connection end, it waits this long for the reason from the hub.
const NEWS_WITHIN: Duration = Duration::from_millis(300);
/// A rank that is done waits this long for the other ranks to be done too.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// The data of a rank that has left the communicator needs at most this long to arrive.
const LEFT_GRACE: Duration = Duration::from_secs(2);

impl Engine {
    /// Runs all calls: first the collectives one after the other, then the sends and receives at once.
    ///
    /// # Safety
    ///
    /// The input and output of each call have as many elements as [`Operation::input_count`] and
    /// [`Operation::output_count`] say. During the call nobody else writes the input or accesses the
    /// output. Input and output of a call are the same if NCCL has the call in place; otherwise they do
    /// not overlap. Memory of different calls does not overlap if any of the calls writes it.
    pub(super) unsafe fn run(&mut self, calls: &[Call]) -> Result<(), Error> {
        self.bootstrap.check().map_err(Error::failure)?;
        let at_work = AtWork(self);
        // SAFETY: the caller has promised what `run_all` demands.
        let done = unsafe { at_work.0.run_all(calls) };
        match done {
            Ok(()) => std::mem::forget(at_work),
            // The ranks must know the reason before they see links end.
            Err(error) => {
                let error = match at_work.0.board.told() {
                    Some(verdict) => error.after(&verdict),
                    None => error,
                };
                at_work.0.board.leave();
                return Err(failed(&at_work.0.bootstrap, error));
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// The caller makes the promises of [`run`](Self::run).
    unsafe fn run_all(&mut self, calls: &[Call]) -> Result<(), Error> {
        let mut transfers = Plan::default();
        let mut own = Vec::new();
        // The first transfer stands for all of a group.
        let mut transfer = None;
        for call in calls {
            match call.work.operation {
                Operation::Send { peer } | Operation::Recv { peer } if peer == self.rank() => {
                    own.push(call);
                }
                Operation::Send { .. } | Operation::Recv { .. } => {
                    // SAFETY: the caller has promised what `plan` demands.
                    unsafe { self.plan(call, &mut transfers) }?;
                    transfer.get_or_insert(call.work);
                }
                _ => {
                    // SAFETY: the caller has promised what `collective` demands.
                    let mut plan = unsafe { self.collective(call) }?;
                    self.board.enter(&call.work);
                    self.drive(&mut plan)?;
                    self.board.leave();
                    self.last = Some((call.work, plan));
                }
            }
        }
        // SAFETY: the caller has promised what `copy_own` demands.
        unsafe { copy_own(&own) }?;
        if let Some(work) = transfer {
            self.board.enter(&work);
            self.drive(&mut transfers)?;
            self.board.leave();
        }
        Ok(())
    }

    /// Returns a plan of one call. If the last call had the same work, this is the plan of that call,
    /// restarted.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`plan`](Self::plan).
    unsafe fn collective(&mut self, call: &Call) -> Result<Plan, Error> {
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

    /// Adds a call to a plan, one share for each channel.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`run`](Self::run), until the plan is done or dropped.
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

    /// Runs all jobs of a plan.
    fn drive(&mut self, plan: &mut Plan) -> Result<(), Error> {
        plan.prepare(&mut self.links)?;
        let mut backoff = Backoff::new(self.crowded, self.timeout);
        let mut grace = Grace::None;
        let mut has_waited = false;
        loop {
            let done = plan.advance(&mut self.links)?;
            let peer = match (done, self.links.progress()?) {
                (Progress::Done, None) => return Ok(()),
                (Progress::Moved, _) => {
                    backoff.renew();
                    if has_waited {
                        self.board.moved();
                        has_waited = false;
                    }
                    grace = Grace::None;
                    continue;
                }
                (Progress::Waiting(peer), _) | (Progress::Done, Some(peer)) => peer,
            };
            match backoff.idle() {
                Idle::Again => {}
                Idle::Look => {
                    self.board.wait_for(peer);
                    has_waited = true;
                    grace.look_after(&self.bootstrap, peer)?;
                }
                Idle::TooLong(waited) => {
                    let turned_away = self.links.turned_away(peer);
                    let text = format!("it did not do its part within {waited:?}{turned_away}");
                    return Err(Kind::SilentRank { rank: peer, text }.into());
                }
            }
        }
    }

    fn rank(&self) -> u32 {
        self.bootstrap.rank()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.bootstrap.check().is_ok() {
            self.links.end(LEAVE_WITHIN);
        }
    }
}

/// Calls in progress, and links that work in their memory. If the calls end early, `drop` cuts the
/// links.
struct AtWork<'a>(&'a mut Engine);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.links.cut();
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
                let text = "it has left the communicator, and is waited for".to_owned();
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
    match bootstrap.fail(&error.to_string()) {
        true => error,
        false => bootstrap.check().err().map_or(error, Error::failure),
    }
}

/// Copies the data that a rank sends to itself.
///
/// # Safety
///
/// The caller makes the promises of [`Engine::run`].
unsafe fn copy_own(calls: &[&Call]) -> Result<(), Error> {
    let is_send = |call: &&&Call| matches!(call.work.operation, Operation::Send { .. });
    let (sends, recvs): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(is_send);
    if sends.len() != recvs.len() {
        let text = "a rank sends to itself what it does not receive in the same group";
        return Err(Kind::Usage(text.to_owned()).into());
    }
    let size = |call: &Call| call.work.count * call.work.data_type.bytes();
    for (send, recv) in sends.into_iter().zip(recvs) {
        let (sent, received) = (size(send), size(recv));
        if sent != received {
            let text = format!("a rank sends {sent} bytes to itself and receives {received}");
            return Err(Kind::Usage(text).into());
        }
        // SAFETY: both buffers have `sent` bytes; the caller has promised that they exist and do not
        // overlap.
        unsafe { ptr::copy_nonoverlapping(send.input, recv.output, sent) };
    }
    Ok(())
}
