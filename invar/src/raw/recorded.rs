//! The flight recorder's part of the keeper: writes what a look at an end has found.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use invar_core::comm::RailStates;
use invar_core::conn::StreamError;
use invar_core::error::{Ends, Error as CoreError};
use invar_core::metrics::EndNumbers;
use invar_core::nic::NicCounters;
use invar_core::recorder::{Event, EventKind, MessageTimes, Record};
use invar_core::stall::{EndView, FlightRecorder, Role, Verdict, Watch};
use invar_linux::clock::now_ns;

use crate::recorder_place::{NoPlace, RecorderPlace};

/// The state of an end at one look, for the flight recorder.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Direction of the end.
    pub role: Role,
    /// Names of both ends.
    pub ends: Ends,
    /// The end's view.
    pub view: EndView,
    /// The verdict that the user was told, while the stall lasts.
    pub verdict: Option<Verdict>,
    /// The end's numbers.
    pub numbers: EndNumbers,
    /// The counters of the end's device, if they were asked for.
    pub nic: Option<NicCounters>,
    /// The state whose changes are events.
    pub state: EndState,
    /// The last messages, oldest first, if their times are kept.
    pub messages: Vec<MessageTimes>,
}

/// The state of an end whose changes the flight recorder keeps as events.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndState {
    /// The error that has ended the connection.
    pub error: Option<CoreError>,
    /// The attempt of a recovery that has stopped the end's queue pairs.
    pub fenced: Option<u32>,
    /// The rails of a connection over NICs.
    pub rails: RailStates,
}

impl Snapshot {
    /// Returns what the flight recorder keeps of an end, if it keeps any.
    pub(super) fn of(
        watch: &Watch,
        ends: &Ends,
        numbers: EndNumbers,
        nic: Option<NicCounters>,
        state: EndState,
        now_ns: u64,
    ) -> Option<Self> {
        (watch.recorder() != FlightRecorder::Off).then(|| Snapshot {
            role: watch.role(),
            ends: ends.clone(),
            view: watch.view(now_ns),
            verdict: watch.verdict(),
            numbers,
            nic,
            state,
            messages: Vec::new(),
        })
    }
}

/// A record without changes is written this often, or at each look if those are fewer, so that it shows when the end
/// was looked at.
const WRITE_EVERY_NS: u64 = 1_000_000_000;

/// The record of one end.
#[derive(Default)]
pub(super) struct Recording {
    /// A record takes about 8 KiB, which an end without a record does not pay.
    open: Mutex<Option<Box<Open>>>,
    /// Whether there was no place for the record.
    is_refused: AtomicBool,
}

struct Open {
    record: Record,
    verdict: Option<Verdict>,
    state: EndState,
    written_ns: u64,
    counted_ns: u64,
    /// Whether the end has changed since the device's counters were read.
    has_moved: bool,
    place: RecorderPlace,
}

impl Recording {
    /// Whether the next look is to read the device's counters, for a record. An end that rests leaves them alone,
    /// since many ends share a device.
    pub(super) fn is_counting_due(&self) -> bool {
        match self.open.lock().unwrap_or_else(PoisonError::into_inner).as_deref() {
            Some(Open { has_moved, counted_ns, .. }) => {
                *has_moved && now_ns().saturating_sub(*counted_ns) >= WRITE_EVERY_NS
            }
            None => !self.is_refused.load(Ordering::Relaxed),
        }
    }

    /// Takes what a look has found.
    pub(super) fn look(&self, snapshot: &Snapshot) {
        let Snapshot { role, ends, view, verdict, numbers, nic, state, messages } = snapshot;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = now_ns();
        let Some(of_end) = open.as_deref_mut() else {
            *open = Open::new(snapshot, now_ns).map(Box::new);
            self.is_refused.store(open.is_none(), Ordering::Relaxed);
            return;
        };
        let has_edge = of_end.note_edges(*state, now_ns);
        let Open { record, verdict: told, written_ns, counted_ns, has_moved, place, .. } = of_end;
        (record.role, record.qpn, record.numbers) = (*role, ends.qpn, *numbers);
        (record.rail_count, record.rails_down) = (state.rails.count, state.rails.down);
        record.note_messages(messages);
        if let Some(nic) = nic {
            (record.nic, *counted_ns, *has_moved) = (*nic, now_ns, false);
        }
        let mut has_changed = record.look(*view, now_ns) || has_edge;
        if let Some(verdict) = verdict
            && told.as_ref() != Some(verdict)
        {
            record.stall(&verdict.to_string(), now_ns);
            has_changed = true;
        }
        *told = *verdict;
        if has_changed {
            *has_moved = true;
            trace(record);
        }
        if has_changed || now_ns.saturating_sub(*written_ns) >= WRITE_EVERY_NS {
            *written_ns = now_ns;
            place.write(|turn| record.to_bytes(turn));
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Open { record, place, state, .. }) = open.as_deref_mut() {
            record.closed(now_ns());
            trace(record);
            place.write(|turn| record.to_bytes(turn));
            if state.error.is_some_and(|error| is_failure(error, &record.view)) {
                place.keep_file();
            }
        }
    }
}

/// Whether an error is a failure. A peer that closes its end while nobody waits for it has only come to its end.
fn is_failure(error: CoreError, view: &EndView) -> bool {
    error != CoreError::PeerClosed(StreamError::Closed) || view.is_waiting
}

impl Open {
    fn new(snapshot: &Snapshot, now_ns: u64) -> Option<Self> {
        let Snapshot { role, ends, view, verdict, numbers, nic, state, messages } = snapshot;
        let place = match RecorderPlace::take(view.process) {
            Ok(place) => place,
            Err(NoPlace::NoFile) => return None,
            Err(NoPlace::Full) => {
                static TOLD: Once = Once::new();
                TOLD.call_once(|| {
                    log::info!(
                        "{ends}: the flight recorder of this process is full: this connection and later ones \
                         are neither recorded nor have metrics until others close"
                    );
                });
                return None;
            }
        };
        let mut record = Record::new(*role, ends.qpn, &ends.to_string(), *view, now_ns);
        let peer = ends.peer.map(|peer| peer.ip().to_canonical().to_string()).unwrap_or_default();
        record.name(&ends.device, &peer);
        (record.numbers, record.nic) = (*numbers, nic.unwrap_or_default());
        (record.number, record.peer_clock) = (ends.number, ends.peer_clock);
        (record.rail_count, record.rails_down) = (state.rails.count, state.rails.down);
        record.note_messages(messages);
        place.write(|turn| record.to_bytes(turn));
        trace(&record);
        let (written_ns, counted_ns) = (now_ns, now_ns);
        let (verdict, state) = (*verdict, *state);
        let has_moved = false;
        Some(Open { record, verdict, state, written_ns, counted_ns, has_moved, place })
    }

    /// Adds events for an error, a fence and changes of rails. Returns whether there was any.
    fn note_edges(&mut self, new: EndState, now_ns: u64) -> bool {
        let Open { record, state, .. } = self;
        let before = record.events.back().copied();
        let old = std::mem::replace(state, new);
        if let (None, Some(error)) = (old.error, new.error) {
            let status = match error {
                CoreError::Completion(error) => error.status.0 as u16,
                _ => 0,
            };
            record.push(EventKind::Error, status, now_ns);
        }
        if let (None, Some(attempt)) = (old.fenced, new.fenced) {
            record.push(EventKind::Fence, attempt as u16, now_ns);
        }
        for rail in 0..u8::BITS as u16 {
            let kind = match [old.rails, new.rails].map(|rails| rails.in_use >> rail & 1) {
                [1, 0] => EventKind::RailDown,
                [0, 1] => EventKind::RailUp,
                _ => continue,
            };
            record.push(kind, rail, now_ns);
        }
        record.events.back().copied() != before
    }
}

/// Logs the last event of a record.
fn trace(record: &Record) {
    if let Some(event @ Event { begun, done, untested, .. }) = record.events.back() {
        let ends = &record.ends;
        log::trace!("{ends}: {event}: {begun} begun, {done} done, {untested} untested");
    }
}
