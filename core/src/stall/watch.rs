//! Watches one end: notices that it stands still, asks the peer, and warns.

use core::net::SocketAddr;

use super::flight_recorder::FlightRecorder;
use super::judge::{Contact, judge};
use super::other_wait::{OtherPeer, ProcessWait};
use super::verdict::Verdict;
use super::view::{EndView, OwnNetwork, Process, Role, Wait};
use crate::error::Ends;
use crate::metrics::{EndNumbers, Sampler};
use crate::nic::NicCounters;

const MS: u64 = 1_000_000;
/// A program that waits repeats its call at least this often, unless it has [parked](Watch::park).
const WAITS_WITHIN_NS: u64 = 1000 * MS;
/// A program that has parked repeats its call at least this often.
const PARKS_WITHIN_NS: u64 = 4000 * MS;
/// The longest time between two questions to the peer.
const ASK_EVERY_MAX_NS: u64 = 30_000 * MS;
/// The longest time between two looks at an end that stands still.
const REST_NS: u64 = 2500 * MS;

/// How an end looks for stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallSettings {
    /// Nanoseconds after which a connection that stands still is reported; 0 for never.
    pub after_ns: u64,
    /// Whether the program at this end judges its own waits, as the ranks of a communicator do. The watch
    /// then reports only what the connection itself does not do.
    pub is_judged_above: bool,
    /// Level of the flight recorder for this end.
    pub recorder: FlightRecorder,
    /// The process of this end.
    pub process: Process,
    /// The longest wait of the process, if its ends share one.
    pub process_wait: Option<&'static ProcessWait>,
}

/// How far an end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of receives that the sender has filled, or that the receiver has posted.
    pub begun: u64,
    /// Number of these that are acknowledged, or that have arrived.
    pub done: u64,
    /// For a sender: number of posted receives that it knows of. For a receiver over TCP: number of buffers
    /// that messages have met.
    pub seen: u64,
    /// For a sender: tag of the next receive that it knows of. For a receiver over TCP: tag of its oldest
    /// buffer that no message has met.
    pub seen_tag: u32,
    /// For a sender over TCP: tag of its oldest message that has met no buffer that the sender knows of.
    pub ahead_tag: Option<u32>,
    /// For a sender: number of sends that the group at its head still lacks.
    pub lacking: u32,
    /// Number of requests that are done and were not tested.
    pub untested: u32,
    /// Whether the end makes new queue pairs.
    pub is_recovering: bool,
    /// Whether the end makes them again, because the last new queue pairs have carried nothing.
    pub recovers_in_vain: bool,
}

/// Watches one end of a connection.
#[derive(Clone, Debug)]
pub struct Watch {
    settings: StallSettings,
    role: Role,
    moves_in_calls: bool,
    /// Whether the peer exchanges views.
    is_shared: bool,
    /// The peer, as the peers of other connections hear of it.
    peer: OtherPeer,
    counts: Counts,
    looked_ns: u64,
    /// When the end last made progress, or began to wait.
    moved_ns: u64,
    call_ns: Option<u64>,
    wait: Wait,
    wait_ns: u64,
    /// When the program last went to sleep in a wait, if it has made no call since.
    parked_ns: Option<u64>,
    /// Whether the next call of the program is to be noted.
    is_armed: bool,
    /// The NIC's counters when the end was first seen to stand still, and that time. `None` while it moves, or if the
    /// NIC has no counters.
    counted: Option<(NicCounters, u64)>,
    /// The first ask since the peer's last view, and the time of the next one.
    asked_ns: Option<u64>,
    next_ask_ns: u64,
    /// Whether the peer has asked for this end's view.
    owes_answer: bool,
    /// Whether the peer has had a view, so that it knows this end's process.
    is_introduced: bool,
    /// The peer's view that came last, and the time of the look before it.
    answer: Option<(EndView, u64)>,
    /// The duration at which to warn next.
    warn_at_ns: u64,
    verdict: Option<Verdict>,
    stalls: u64,
    sampler: Sampler,
}

impl Watch {
    /// Watches an end. `is_shared` says whether the peer exchanges views. `moves_in_calls` says whether
    /// data moves only during calls of the program.
    pub fn new(settings: StallSettings, role: Role, is_shared: bool, moves_in_calls: bool) -> Self {
        Watch {
            settings,
            role,
            moves_in_calls,
            is_shared,
            peer: OtherPeer::new(0, None),
            counts: Counts::default(),
            looked_ns: 0,
            moved_ns: 0,
            call_ns: None,
            wait: Wait::None,
            wait_ns: 0,
            parked_ns: None,
            is_armed: false,
            counted: None,
            asked_ns: None,
            next_ask_ns: 0,
            owes_answer: false,
            is_introduced: settings.after_ns == 0,
            answer: None,
            warn_at_ns: settings.after_ns,
            verdict: None,
            stalls: 0,
            sampler: Sampler::default(),
        }
    }

    /// The direction of the end.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Starts again with these settings.
    #[must_use]
    pub fn with_settings(&self, settings: StallSettings) -> Self {
        Watch::new(settings, self.role, self.is_shared, self.moves_in_calls)
    }

    /// Whether the ends exchange views.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Ends the exchange of views. From now on the end sees only itself.
    pub fn stop_sharing(&mut self) {
        self.is_shared = false;
    }

    /// Measures messages of a sender.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The numbers of an end that has moved `bytes` bytes and has been recovered `recoveries` times.
    pub fn numbers(&self, bytes: u64, recoveries: u64) -> EndNumbers {
        let (stalls, sampler) = (self.stalls, &self.sampler);
        let (receive_wait_ns, latency) = (sampler.receive_wait_ns(), sampler.latency());
        EndNumbers { bytes, recoveries, stalls, receive_wait_ns, latency }
    }

    /// Gives the sampler a call of the program, before [`Watch::called`]. `begun` rows have begun, and
    /// `is_done` says whether the measured row is done.
    pub fn sample(&mut self, begun: u64, wait: Wait, is_done: bool, now_ns: u64) {
        let lacked_receive = matches!(wait, Wait::Send { .. });
        self.sampler.called(begun, lacked_receive, is_done, now_ns);
    }

    /// Whether the next call of the program is to be noted with [`Watch::called`].
    #[inline(always)]
    pub fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// If the end stands still, returns the time to the next look. A warning is in time nevertheless.
    pub fn rest_ns(&self) -> Option<u64> {
        self.is_armed.then_some(self.rest_max_ns())
    }

    fn rest_max_ns(&self) -> u64 {
        const PART: u64 = 4;
        match self.settings.after_ns {
            0 => REST_NS,
            after_ns => REST_NS.min(after_ns / PART),
        }
    }

    /// Notes that the program goes to sleep in the wait that it called last, or with `None` that the wait is over.
    pub fn park(&mut self, asleep_ns: Option<u64>) {
        self.parked_ns = asleep_ns;
    }

    /// Notes a call of the program. `wait` is the call that could do nothing, or [`Wait::None`].
    #[cold]
    pub fn called(&mut self, wait: Wait, now_ns: u64) {
        self.is_armed = self.sampler.is_armed();
        self.call_ns = Some(now_ns);
        self.parked_ns = None;
        if wait != Wait::None {
            (self.wait, self.wait_ns) = (wait, now_ns);
        }
    }

    /// Whether everything that had begun at the last look was done and tested, and nothing has begun since.
    pub fn is_idle(&self, begun_now: u64) -> bool {
        let Counts { begun, done, untested, .. } = self.counts;
        begun == begun_now && done == begun && untested == 0
    }

    /// Takes the counts of a look.
    pub fn look(&mut self, counts: Counts, now_ns: u64) {
        let progress = |c: &Counts| (c.begun, c.done, c.seen, c.lacking, c.untested);
        let has_moved = progress(&counts) != progress(&self.counts);
        if counts.begun != self.counts.begun {
            // Only a call of the program begins something.
            self.call_ns = Some(now_ns);
        }
        self.counts = counts;
        if has_moved {
            self.parked_ns = None;
        }
        // A connection may begin with a recovery.
        if has_moved || self.looked_ns == 0 || !self.is_waiting_now(now_ns) {
            self.moved_ns = now_ns;
        }
        if self.settings.recorder != FlightRecorder::Off && self.role == Role::Sender {
            if counts.is_recovering {
                self.sampler.give_up();
            }
            self.sampler.look(counts.begun, counts.begun == counts.done, now_ns);
        }
        // While the connection moves only the sampler needs to know what the program calls.
        self.is_armed = !has_moved || self.sampler.is_armed();
        self.looked_ns = now_ns;
    }

    /// Whether the end waits: the network or the peer owes it something, or its program owes it a test.
    fn is_waiting_now(&self, now_ns: u64) -> bool {
        let Counts { begun, done, untested, is_recovering, .. } = self.counts;
        let calls = self.repeats_call(now_ns);
        if is_recovering {
            return true;
        }
        match (self.role, self.wait) {
            (Role::Sender, _) if begun > done => true,
            (Role::Sender, Wait::Send { .. }) if calls => !self.settings.is_judged_above,
            (_, Wait::Test | Wait::Recv) if calls => true,
            _ => untested > 0 && !self.settings.is_judged_above,
        }
    }

    /// Whether the program repeats a call, or sleeps in one.
    fn repeats_call(&self, now_ns: u64) -> bool {
        // Of the calls between two looks only the first is noted.
        let is_of_this_look = self.wait_ns >= self.looked_ns;
        let gap_ns = if is_of_this_look { now_ns.saturating_sub(self.looked_ns) } else { 0 };
        let is_recent = now_ns.saturating_sub(self.wait_ns) <= WAITS_WITHIN_NS.max(4 * gap_ns);
        self.wait != Wait::None && (is_recent || self.is_parked(now_ns))
    }

    /// Whether the program sleeps in a wait.
    fn is_parked(&self, now_ns: u64) -> bool {
        self.parked_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) <= PARKS_WITHIN_NS)
    }

    /// Whether only the ranks of a communicator can judge a stall: over TCP a program that does nothing looks
    /// like a fault of the network.
    fn is_for_ranks(&self) -> bool {
        self.moves_in_calls && self.settings.is_judged_above
    }

    /// Takes the peer's view. `asks` says whether the peer wants this end's view.
    pub fn heard(&mut self, view: EndView, asks: bool) {
        self.answer = Some((view, self.looked_ns));
        self.asked_ns = None;
        let every_ns = self.ask_every_ns(self.still_ns(self.looked_ns));
        self.next_ask_ns = self.next_ask_ns.min(self.looked_ns + every_ns);
        self.owes_answer |= asks;
    }

    /// Returns the view to send now, if there is one, and whether it asks for the peer's view.
    pub fn to_send(&mut self, now_ns: u64) -> Option<(EndView, bool)> {
        if !self.is_shared {
            return None;
        }
        let still_ns = self.still_ns(now_ns);
        let asks = self.settings.after_ns > 0
            && !self.is_for_ranks()
            && still_ns >= self.settings.after_ns / 2
            && now_ns >= self.next_ask_ns;
        if asks {
            // A peer that is stopped reads nothing: the questions must not fill its buffers.
            let asked_ns = *self.asked_ns.get_or_insert(now_ns);
            let every_ns = self.ask_every_ns(still_ns).max(now_ns.saturating_sub(asked_ns));
            self.next_ask_ns = now_ns + every_ns;
        }
        let owes = core::mem::take(&mut self.owes_answer) || !self.is_introduced;
        self.is_introduced = true;
        (asks || owes).then(|| (self.view(now_ns), asks))
    }

    /// This end's view.
    pub fn view(&self, now_ns: u64) -> EndView {
        let Counts { begun, done, seen, seen_tag, ahead_tag, lacking, untested, .. } = self.counts;
        let is_parked = self.is_parked(now_ns);
        let is_recent = now_ns.saturating_sub(self.wait_ns) <= WAITS_WITHIN_NS || is_parked;
        // A program that sleeps in a wait is in its call still.
        let call_ns = if is_parked { Some(now_ns) } else { self.call_ns };
        EndView {
            process: self.settings.process,
            is_waiting: self.is_waiting_now(now_ns),
            moves_in_calls: self.moves_in_calls,
            is_recovering: self.counts.is_recovering,
            recovers_in_vain: self.counts.recovers_in_vain,
            begun,
            done,
            seen,
            seen_tag,
            ahead_tag,
            lacking,
            untested,
            still_ms: to_ms(self.still_ns(now_ns)),
            call_ms: call_ns.map_or(u32::MAX, |call_ns| to_ms(now_ns.saturating_sub(call_ns))),
            wait: match self.wait {
                wait if is_recent && wait != Wait::None => wait,
                _ => self.elsewhere(now_ns).map_or(Wait::None, Wait::Elsewhere),
            },
        }
    }

    /// The other peer for which the process waits, if that wait may be the reason why this end makes no call.
    fn elsewhere(&self, now_ns: u64) -> Option<OtherPeer> {
        let (peer, since_ns) = self.settings.process_wait?.longest(now_ns)?;
        let least_ns = (self.settings.after_ns / 2).max(WAITS_WITHIN_NS);
        let is_long = now_ns.saturating_sub(since_ns) >= least_ns;
        (is_long && peer != self.peer).then_some(peer)
    }

    /// Tells the other ends of the process if its program waits for the peer, which is another process and may be at
    /// fault.
    fn tell_process(&mut self, peer: Option<SocketAddr>, now_ns: u64) {
        let Some(process_wait) = self.settings.process_wait else { return };
        let process = self.answer.map_or(Process::default(), |(view, _)| view.process);
        self.peer = OtherPeer::new(process.pid, peer);
        let is_at_fault =
            self.verdict.is_some_and(|verdict| verdict.cause.culprit() == Some(self.role));
        if process != self.settings.process
            && !is_at_fault
            && self.is_waiting_now(now_ns)
            && self.repeats_call(now_ns)
        {
            process_wait.note(self.peer, self.moved_ns, now_ns);
        }
    }

    /// Returns a verdict to tell the user of, if it is time. `own` returns what this end knows alone.
    pub fn warning(&mut self, now_ns: u64, own: impl FnOnce() -> OwnNetwork) -> Option<Verdict> {
        if self.settings.after_ns == 0 {
            return None;
        }
        let own_still_ns = self.still_ns(now_ns);
        let still_of = |view: &EndView| {
            let their_still_ns = if view.is_waiting { u64::from(view.still_ms) * MS } else { 0 };
            own_still_ns.max(their_still_ns)
        };
        let theirs = self.answer.filter(|(view, heard_ns)| {
            // The question and the look that finds its answer come late by a rest each.
            let every_ns = self.ask_every_ns(still_of(view)) + self.rest_max_ns();
            now_ns.saturating_sub(*heard_ns) <= 2 * every_ns + self.silent_after_ns()
        });
        let still_ns = theirs.map_or(own_still_ns, |(view, _)| still_of(&view));
        if still_ns < self.settings.after_ns {
            (self.warn_at_ns, self.verdict) = (self.settings.after_ns, None);
            return None;
        }
        if still_ns < self.warn_at_ns {
            return None;
        }
        if self.is_for_ranks() {
            (self.stalls, self.warn_at_ns) = (self.stalls + 1, u64::MAX);
            return None;
        }
        let is_silent = |asked_ns| now_ns.saturating_sub(asked_ns) >= self.silent_after_ns();
        let contact = match (self.is_shared, theirs, self.asked_ns) {
            (false, ..) => Contact::None,
            (_, Some((view, _)), None) => Contact::View(view),
            (_, _, Some(asked_ns)) if is_silent(asked_ns) => {
                Contact::Silent(self.answer.map_or(Process::default(), |(view, _)| view.process))
            }
            (_, Some((view, _)), _) => Contact::View(view),
            // The peer has not had time to answer.
            _ => return None,
        };
        let verdict = judge(self.role, &self.view(now_ns), &contact, own())?;
        if self.verdict.is_none() {
            self.stalls += 1;
        }
        while self.warn_at_ns <= still_ns {
            self.warn_at_ns = self.warn_at_ns.saturating_mul(2);
        }
        self.verdict = Some(verdict);
        // Who judges above knows of processes, and not of the network.
        let is_for_user = !self.settings.is_judged_above || verdict.cause.culprit().is_none();
        is_for_user.then_some(verdict)
    }

    /// Takes the counts of a look, warns if it is time, and keeps the verdict in `ends`. Returns what
    /// [`Watch::to_send`] returns. `own` is as for [`Watch::warning`], and `counters` returns those of the end's NIC.
    pub fn attend(
        &mut self,
        counts: Counts,
        now_ns: u64,
        own: impl FnOnce() -> OwnNetwork,
        counters: impl Fn() -> NicCounters,
        ends: &mut Ends,
    ) -> Option<(EndView, bool)> {
        self.look(counts, now_ns);
        if self.still_ns(now_ns) == 0 {
            self.counted = None;
        } else if self.counted.is_none() {
            let has_any = |counters: &NicCounters| *counters != NicCounters::default();
            self.counted = Some(counters()).filter(has_any).map(|before| (before, now_ns));
        }
        let counted = self.counted;
        let grown =
            |(before, at_ns)| (counters().since(before), to_ms(now_ns.saturating_sub(at_ns)));
        let own = || OwnNetwork { counted: counted.map(grown), ..own() };
        // What was sent before now has had time to arrive.
        if let Some(verdict) = self.warning(now_ns, own) {
            verdict.tell(ends);
        }
        ends.stall = self.verdict;
        self.tell_process(ends.peer, now_ns);
        self.to_send(now_ns)
    }

    /// Returns the level of the flight recorder for this end.
    pub fn recorder(&self) -> FlightRecorder {
        self.settings.recorder
    }

    /// The verdict on the stall that lasts now.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Number of stalls that were reported.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    fn still_ns(&self, now_ns: u64) -> u64 {
        if self.is_waiting_now(now_ns) { now_ns.saturating_sub(self.moved_ns) } else { 0 }
    }

    /// Time between two questions. The longer an end stands still, the less often it asks, as it warns less often.
    fn ask_every_ns(&self, still_ns: u64) -> u64 {
        let least_ns = (self.settings.after_ns / 8).clamp(50 * MS, 1000 * MS);
        (still_ns / 8).clamp(least_ns, ASK_EVERY_MAX_NS)
    }

    /// The peer's keeper looks every 50 ms, or less often if it has many ends.
    fn silent_after_ns(&self) -> u64 {
        (self.settings.after_ns / 4).clamp(400 * MS, 2000 * MS)
    }
}

fn to_ms(ns: u64) -> u32 {
    u32::try_from(ns / MS).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests;
