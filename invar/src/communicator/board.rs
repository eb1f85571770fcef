//! The current operation and wait of a rank. They show why ranks do not go on.
//!
//! The rank's thread notes operations and waits by plain stores. The thread that watches the rendezvous
//! reads them about ten times a second, and measures how long they do not change. It also writes the rank's numbers
//! and the operations that were timed into the flight recorder.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use invar_core::coll::{DataType, Operation, RedOp};
use invar_core::metrics::RankNumbers;
use invar_core::recorder::{RankOperation, RankRecord};
use invar_core::rendezvous::{NOBODY, OperationText, RankView};
use invar_core::stall::{FlightRecorder, Process, StallSettings};
use invar_linux::clock::now_ns;
use invar_linux::rendezvous::{Attendant, GroupVerdict};

use super::call::Work;
use super::choose::Facts;
use super::net::LinkDump;
use super::operations::{Operations, Timed, to_us};
use crate::recorder_place::{NoPlace, RecorderPlace};

/// A verdict is part of the error that follows it within this time.
const VERDICT_LASTS: Duration = Duration::from_secs(5);
/// An operation of so many bytes is timed from its begin. A shorter one is timed once it waits for another rank.
const TIMED_BYTES: usize = 64 << 10;

pub(super) struct Board {
    rank: u32,
    communicator: u64,
    process: Process,
    /// Time after which a stall is reported; zero for never.
    stuck_after: Duration,
    /// Number of collectives entered.
    entered: AtomicU64,
    is_inside: AtomicBool,
    /// The number of operations that are done, and their bytes.
    done: [AtomicU64; 2],
    /// The operation, as [`code`] packs it, and its count.
    operation: [AtomicU64; 2],
    waits_for: AtomicU32,
    /// Whether the operation meets a different one of a peer.
    differs: AtomicBool,
    /// Number of waits that have ended.
    waits: AtomicU64,
    links: OnceLock<LinkDump>,
    watched: Mutex<Watched>,
    /// The facts by which the rank chooses algorithms.
    facts: OnceLock<Facts>,
    /// Whether the flight recorder keeps the rank's numbers and operations.
    is_recorded: bool,
    operations: Operations,
    recording: Mutex<Recording>,
}

/// The rank in the flight recorder.
#[derive(Default)]
struct Recording {
    /// The place of the record, once there is an operation to write.
    place: Option<Result<RecorderPlace, NoPlace>>,
    /// The state of the operations and the rank's numbers when they were written last.
    written: ((u64, bool), RankNumbers),
}

/// What the watching thread saw last.
struct Watched {
    state: (u64, bool, u32, u64),
    since: Instant,
    told: Option<(GroupVerdict, Instant)>,
    warn_at: Duration,
    /// Number of stalls that were reported.
    stalls: u64,
}

impl Board {
    /// Makes the board of a rank. All ranks know the communicator by one number.
    pub(super) fn new(rank: u32, communicator: u64, settings: &StallSettings) -> Self {
        let StallSettings { after_ns, process, recorder, .. } = *settings;
        let stuck_after = Duration::from_nanos(after_ns);
        let watched = Watched {
            state: (0, false, NOBODY, 0),
            since: Instant::now(),
            told: None,
            warn_at: stuck_after,
            stalls: 0,
        };
        Board {
            rank,
            communicator,
            process,
            stuck_after,
            entered: AtomicU64::new(0),
            is_inside: AtomicBool::new(false),
            done: Default::default(),
            operation: Default::default(),
            waits_for: AtomicU32::new(NOBODY),
            differs: AtomicBool::new(false),
            waits: AtomicU64::new(0),
            links: OnceLock::new(),
            watched: Mutex::new(watched),
            facts: OnceLock::new(),
            is_recorded: recorder != FlightRecorder::Off,
            operations: Operations::new(),
            recording: Mutex::default(),
        }
    }

    /// Notes the rank's links over the network.
    pub(super) fn joined(&self, links: LinkDump) {
        // A rank joins only once, so the value is not set yet.
        let _ = self.links.set(links);
    }

    /// Notes the facts by which the rank chooses algorithms.
    pub(super) fn chooses_by(&self, facts: Facts) {
        // A rank joins only once, so the value is not set yet.
        let _ = self.facts.set(facts);
    }

    /// Notes that the rank enters an operation.
    #[inline]
    pub(super) fn enter(&self, work: &Work) {
        self.operation[0].store(code(work), Ordering::Relaxed);
        self.operation[1].store(work.count as u64, Ordering::Relaxed);
        if !work.operation.is_transfer() {
            // Only the rank's thread writes.
            let entered = self.entered.load(Ordering::Relaxed);
            self.entered.store(entered + 1, Ordering::Relaxed);
        }
        if self.is_recorded && work.bytes() >= TIMED_BYTES {
            self.begin_timing(now_ns());
        }
        self.is_inside.store(true, Ordering::Release);
    }

    #[cold]
    fn begin_timing(&self, now_ns: u64) {
        self.operations.begin(load(&self.operation), self.entered.load(Ordering::Relaxed), now_ns);
    }

    /// Counts operations that are done.
    #[inline]
    pub(super) fn done<'a>(&self, works: impl Iterator<Item = &'a Work>) {
        // Only the rank's thread writes.
        let [mut count, mut bytes] = load(&self.done);
        for work in works {
            (count, bytes) = (count + 1, bytes.saturating_add(work.bytes() as u64));
        }
        self.done[0].store(count, Ordering::Relaxed);
        self.done[1].store(bytes, Ordering::Relaxed);
    }

    /// Notes that the rank's thread is no longer in the operation.
    #[inline]
    pub(super) fn leave(&self) {
        if self.operations.is_timed() {
            self.end_timing();
        }
        self.is_inside.store(false, Ordering::Release);
    }

    #[cold]
    fn end_timing(&self) {
        self.moved();
        self.operations.end(now_ns());
    }

    /// Notes that the operation has failed, and keeps the recorder's file.
    pub(super) fn failed(&self) {
        self.leave();
        self.record(false);
        if let Some(Ok(place)) = &self.recording().place {
            place.keep_file();
        }
    }

    /// Notes that the rank waits for a peer.
    pub(super) fn wait_for(&self, peer: u32) {
        if self.waits_for.swap(peer, Ordering::Relaxed) == peer {
            return;
        }
        if self.is_recorded {
            let now_ns = now_ns();
            if !self.operations.is_timed() {
                self.begin_timing(now_ns);
            }
            self.operations.wait(peer, now_ns);
        }
    }

    /// Notes that data has moved, which ends a wait.
    #[inline]
    pub(super) fn moved(&self) {
        if self.waits_for.load(Ordering::Relaxed) != NOBODY {
            self.wait_is_over();
        }
    }

    #[cold]
    fn wait_is_over(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.waits_for.store(NOBODY, Ordering::Relaxed);
        if self.operations.is_timed() {
            self.operations.go_on(now_ns());
        }
    }

    /// Writes the rank's numbers and the timed operations into the flight recorder, if they have changed, a timed
    /// operation runs or the rank has left.
    fn record(&self, has_left: bool) {
        if !self.is_recorded {
            return;
        }
        let mut recording = self.recording();
        let Recording { place, written } = &mut *recording;
        let now_ns = now_ns();
        let (begun, is_timed) = self.operations.state();
        let mut numbers = self.numbers(now_ns);
        // A counter must not go back.
        numbers.waited_ns = numbers.waited_ns.max(written.1.waited_ns);
        let state = ((begun, is_timed), numbers);
        let is_new = state != *written || is_timed || has_left;
        if !is_new || (begun, numbers.operations) == (0, 0) {
            return;
        }
        let Ok(place) = place.get_or_insert_with(|| RecorderPlace::take(self.process)) else {
            return;
        };
        *written = state;
        let operations = self.operations.last(now_ns);
        let record = RankRecord {
            communicator: self.communicator,
            rank: self.rank,
            nranks: self.facts.get().map_or(0, |facts| facts.nranks),
            looked_ns: now_ns,
            has_left,
            numbers,
            operations: operations.iter().map(|timed| self.recorded(timed)).collect(),
        };
        place.write(|turn| record.to_bytes(turn));
    }

    fn numbers(&self, now_ns: u64) -> RankNumbers {
        let [operations, bytes] = load(&self.done);
        let waited_ns = self.operations.waited_ns(now_ns);
        RankNumbers { operations, bytes, waited_ns, stalls: self.watched().stalls }
    }

    fn recorded(&self, timed: &Timed) -> RankOperation {
        let Timed { operation: [code, count], number, begun_ns, took_ns, waited_ns, longest } =
            *timed;
        let element_bytes = data_type(code).map_or(0, DataType::bytes);
        let bytes = count.saturating_mul(element_bytes as u64);
        let mut text = describe(code, count);
        if let Some((facts, operation)) = self.facts.get().zip(operation(code))
            && !operation.is_transfer()
            && operation != Operation::AllToAll
        {
            // What does not fit is cut.
            let _ = write!(text, " by {:?}", facts.choose(operation, bytes as usize).algorithm);
        }
        let waited_us = to_us(waited_ns);
        let mut recorded = RankOperation {
            number,
            begun_ns,
            took_ns,
            bytes,
            waited_us,
            longest,
            ..RankOperation::default()
        };
        recorded.describe(&text);
        recorded
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this rank's operation meets a different one. If all ranks must run the operation, asks the hub
    /// which rank differs from most, and returns true.
    pub(super) fn differ(&self) -> bool {
        let is_collective = is_collective(&self.text());
        self.differs.store(is_collective, Ordering::Relaxed);
        is_collective
    }

    /// Returns the last verdict on why the ranks do not go on, if it is younger than [`VERDICT_LASTS`].
    pub(super) fn told(&self) -> Option<GroupVerdict> {
        let watched = self.watched();
        let (verdict, at) = watched.told.as_ref()?;
        (at.elapsed() < VERDICT_LASTS).then(|| verdict.clone())
    }

    /// Returns the rank at fault for a wait that has lasted for `waited`, if a verdict has named one meanwhile.
    pub(super) fn culprit(&self, waited: Duration) -> Option<u32> {
        let watched = self.watched();
        let (verdict, at) = watched.told.as_ref()?;
        verdict.culprit.filter(|_| at.elapsed() < waited.min(VERDICT_LASTS))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rank's state and for how long it has not changed.
    fn look(&self) -> ((u64, bool, u32, u64), Duration) {
        let is_inside = self.is_inside.load(Ordering::Acquire);
        let state = (
            self.entered.load(Ordering::Relaxed),
            is_inside,
            if is_inside { self.waits_for.load(Ordering::Relaxed) } else { NOBODY },
            self.waits.load(Ordering::Relaxed),
        );
        let mut watched = self.watched();
        if watched.state != state {
            (watched.state, watched.since) = (state, Instant::now());
        }
        (state, watched.since.elapsed())
    }

    fn text(&self) -> OperationText {
        let [code, count] = load(&self.operation);
        describe(code, count)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.record(true);
    }
}

impl Attendant for Board {
    fn view(&self) -> RankView {
        self.record(false);
        let ((entered, is_inside, waits_for, _), still) = self.look();
        let differs = self.differs.load(Ordering::Relaxed);
        let waits_for = Some(waits_for).filter(|rank| *rank != NOBODY && !differs);
        let has_waited =
            waits_for.is_some() && !self.stuck_after.is_zero() && still >= self.stuck_after / 2;
        let is_stuck = is_inside && (differs || has_waited);
        // A rank outside of an operation does not look whether its last data was acknowledged.
        let in_flight_to =
            if is_stuck { self.links.get().and_then(LinkDump::in_flight) } else { None };
        let operation = self.text();
        RankView {
            process: self.process,
            entered,
            is_collective: is_collective(&operation),
            operation,
            is_inside,
            waits_for,
            in_flight_to,
            still_ms: u32::try_from(still.as_millis()).unwrap_or(u32::MAX),
            is_stuck,
        }
    }

    fn verdict(&self, verdict: GroupVerdict) {
        let mut watched = self.watched();
        let is_new = watched.told.as_ref().is_none_or(|(last, _)| verdict.still < last.still);
        if is_new {
            watched.warn_at = self.stuck_after;
        }
        if !self.stuck_after.is_zero() && verdict.still >= watched.warn_at {
            watched.stalls += u64::from(watched.warn_at == self.stuck_after);
            watched.warn_at = 2 * verdict.still;
            log::warn!("rank {}: {}", self.rank, verdict.text);
        }
        watched.told = Some((verdict, Instant::now()));
    }

    fn hub_is_silent(&self, host: Option<u32>, host_answers: Option<bool>) {
        let RankView { waits_for, still_ms, operation, .. } = self.view();
        let still = Duration::from_millis(still_ms.into());
        let of = host.map_or_else(
            || "the process that runs the rendezvous".to_owned(),
            |rank| format!("rank {rank}, which runs the rendezvous,"),
        );
        let process = "the process that runs the rendezvous (ps -o stat,wchan)";
        let (why, look_at) = match host_answers {
            Some(true) => {
                ("and its host does: its process is stopped (SIGSTOP, a debugger)", process)
            }
            Some(false) => (
                "nor does its host: it is down, or the network to it is cut",
                "the console and the link of the host that runs the rendezvous",
            ),
            None => ("its process is stopped, or its host is gone", process),
        };
        let waits_for = waits_for.map_or_else(String::new, |peer| format!(" for rank {peer}"));
        let text = format!(
            "{of} does not answer, {why}; rank {} ({}) has waited{waits_for} in {operation} for \
             {:.1} s; look at {look_at}",
            self.rank,
            self.process,
            still.as_secs_f64()
        );
        self.verdict(GroupVerdict { still, culprit: host, is_mismatch: false, text });
    }
}

/// Whether all ranks must run the operation with this description.
fn is_collective(operation: &OperationText) -> bool {
    !operation.starts_with("send") && !operation.starts_with("recv")
}

fn load(words: &[AtomicU64; 2]) -> [u64; 2] {
    words.each_ref().map(|word| word.load(Ordering::Relaxed))
}

/// Packs a work but its count: kind, type, reduction, and root or peer.
fn code(work: &Work) -> u64 {
    let (kind, rank) = match work.operation {
        Operation::AllReduce => (1, 0),
        Operation::AllGather => (2, 0),
        Operation::ReduceScatter => (3, 0),
        Operation::Broadcast { root } => (4, root),
        Operation::Reduce { root } => (5, root),
        Operation::AllToAll => (6, 0),
        Operation::Send { peer } => (7, peer),
        Operation::Recv { peer } => (8, peer),
    };
    let redop = work.redop.map_or(0, |op| op as u64 + 1);
    kind | (work.data_type as u64) << 8 | redop << 16 | u64::from(rank) << 32
}

/// Returns the operation of a packed work; `None` if there was none yet.
fn operation(code: u64) -> Option<Operation> {
    let rank = (code >> 32) as u32;
    Some(match code & 255 {
        1 => Operation::AllReduce,
        2 => Operation::AllGather,
        3 => Operation::ReduceScatter,
        4 => Operation::Broadcast { root: rank },
        5 => Operation::Reduce { root: rank },
        6 => Operation::AllToAll,
        7 => Operation::Send { peer: rank },
        8 => Operation::Recv { peer: rank },
        _ => return None,
    })
}

/// Returns the type of a packed work's elements.
fn data_type(code: u64) -> Option<DataType> {
    DataType::ALL.get((code >> 8 & 255) as usize).copied()
}

/// Describes a work for people; empty if there was none yet.
fn describe(code: u64, count: u64) -> OperationText {
    let redop = code >> 16 & 255;
    let Some(operation) = operation(code) else { return OperationText::new() };
    let name = match operation {
        Operation::AllReduce => "all_reduce",
        Operation::AllGather => "all_gather",
        Operation::ReduceScatter => "reduce_scatter",
        Operation::Broadcast { .. } => "broadcast",
        Operation::Reduce { .. } => "reduce",
        Operation::AllToAll => "all_to_all",
        Operation::Send { .. } => "send",
        Operation::Recv { .. } => "recv",
    };
    let mut text = OperationText::new();
    // What does not fit is cut.
    let _ = write!(text, "{name} of {count}");
    if let Some(data_type) = data_type(code) {
        let _ = write!(text, " {data_type:?}");
    }
    if let Some(op) = redop.checked_sub(1).and_then(|at| RedOp::ALL.get(at as usize)) {
        let _ = write!(text, ", {op:?}");
    }
    let _ = match operation {
        Operation::Broadcast { root: rank } | Operation::Recv { peer: rank } => {
            write!(text, " from rank {rank}")
        }
        Operation::Reduce { root: rank } | Operation::Send { peer: rank } => {
            write!(text, " to rank {rank}")
        }
        _ => Ok(()),
    };
    text
}

#[cfg(test)]
mod tests;
