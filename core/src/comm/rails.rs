//! The rails of a connection: which of them carry data, and when another set of them is tried.
//!
//! All queue pairs of a connection stop together, and an attempt of the recovery ([`super::recovery`]) makes
//! new ones on every rail whose port is up at both ends. So a rail leaves and joins a connection by an
//! attempt, and nothing else moves messages from rail to rail.
//!
//! - Both ends trust rails that work. If there are such rails, only they carry data. The others are on
//!   probation.
//! - At each look an end asks each rail with an empty WRITE ([`PROBE`]), whose acknowledge is the answer. If
//!   a rail on probation answers the sender, the sender begins a planned attempt, in which the rail carries
//!   data. If a rail that carries data does not answer for [`STALL_NS`], and another one does, an attempt
//!   goes on without it. A peer that is stopped answers on no rail.
//! - A user may keep rails as *standby*: they carry data only while no other rail does. A standby rail has queue
//!   pairs and is asked as the others are, so the ends know whether it works. If nothing arrives and a standby
//!   answers, the rail that carries data is to blame.
//! - An end that sees the port of a rail go down begins an attempt at once. It also tells the peer which of
//!   its ports are up.
//! - After a rail has failed, each end lets its NIC look for the way to the peer, before it says that its port is up
//!   ([`Nic::resolve`](crate::nic::Nic::resolve)). Otherwise the start of a queue pair could keep the calling thread
//!   for a second, and the data of the other rails with it.
//! - A rail that fails again soon is left alone for longer and longer, up to [`PAUSE_NS`]'s end.

use crate::conn::{PROBE, RAILS_MAX, RailSet, rail_of};
use crate::error::RailFaults;
use crate::nic::{Gid, Resolution, Wc, WcStatus};

/// The first and the longest pause before a rail that has failed is tried again.
const PAUSE_NS: core::ops::RangeInclusive<u64> = 100_000_000..=4_000_000_000;
/// A rail that fails within this time after it has joined is tried later than the time before.
const TRIAL_NS: u64 = 10_000_000_000;
/// The time after which a rail that does not answer is given up, if another rail answers.
const STALL_NS: u64 = 500_000_000;
/// The shortest and the longest time after which a rail is tried although its way was not found: the peer may have
/// another GID by now, which only an attempt tells.
const UNRESOLVED_NS: core::ops::RangeInclusive<u64> = 2_000_000_000..=64_000_000_000;
/// The time between two questions to all ports, unless a NIC reports about one.
const PORTS_EVERY_NS: u64 = 250_000_000;

/// The state of a connection's rails at one end.
pub(super) struct Rails {
    /// The number of rails that both ends have. With one, the rest means nothing.
    pub(super) count: usize,
    /// The rails that carry data only while no other rail works.
    standby: RailSet,
    /// Whether the log says that only software NICs carry data although there are other rails.
    is_fallback: bool,
    /// The rails of this end's new queue pairs.
    pub(super) usable: RailSet,
    /// The rails among these that this end's report calls trusted.
    pub(super) offered: RailSet,
    /// The rails whose queue pairs work at this end, as far as it knows. Those of other rails were created and
    /// not started, since the peer has none there.
    pub(super) started: RailSet,
    /// The rails that carry data.
    pub(super) in_use: RailSet,
    /// The rail whose completion queue a test polls next; see [`super::turns`].
    pub(super) turn: usize,
    /// The rails of which this end knows nothing bad. The sender has seen these work.
    pub(super) trusted: RailSet,
    /// The rails whose answer is awaited.
    pub(super) asked: RailSet,
    /// The rails that have answered since their queue pairs started.
    pub(super) heard: RailSet,
    /// The rails in use that have not answered for a while at the last look, although another rail has.
    pub(super) stale: RailSet,
    /// The rails whose queue pairs could not be started in the last attempt.
    pub(super) shunned: RailSet,
    /// The rails on which this end could not make queue pairs, or not start them, when it tried last.
    pub(super) refused: RailSet,
    /// The rails that failed since the last look.
    pub(super) failed: RailSet,
    /// The rails whose ports were up when this end looked last, the number of reports about ports by then, and the
    /// time of the next look.
    up: (RailSet, u32, u64),
    /// The rails whose ports are up at the peer, as far as this end knows.
    pub(super) peer_up: RailSet,
    /// The rails whose ports are up at this end, as the peer was told.
    pub(super) told: RailSet,
    pub(super) retries: [Retry; RAILS_MAX],
    /// The rails that have failed, and whose way to the peer is not known since.
    pub(super) unresolved: RailSet,
    /// The peer's GID on each rail, as its last report had it.
    pub(super) peer_gids: [Option<Gid>; RAILS_MAX],
    /// The key of the peer's control memory on the first of the rails in use.
    pub(super) peer_rkey: u32,
}

/// The rails of an end, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailStates {
    /// Number of rails; 0 if the end has none.
    pub count: u8,
    /// The rails that carry data, a bit for each rail.
    pub in_use: u8,
    /// The rails whose port is down at an end, or that did not answer, a bit for each rail.
    pub down: u8,
}

/// When a rail may be tried again, and how it answers.
#[derive(Clone, Copy)]
pub(super) struct Retry {
    not_before_ns: u64,
    pause_ns: u64,
    pub(super) joined_ns: u64,
    /// The time since which the rail is silent: of the question, or of the last completion that was seen.
    pub(super) silent_ns: u64,
    /// The number of completions at the last look.
    pub(super) done: u32,
    /// The time since which the way to the peer is looked for, and how long it is.
    sought_ns: Option<u64>,
    seek_for_ns: u64,
}

/// Counts of completions on each rail.
pub(super) struct RailWork {
    /// The rails that have answered.
    pub(super) answered: RailSet,
    /// The number of completions on each rail.
    pub(super) done: [u32; RAILS_MAX],
    /// The number of long messages that each rail has finished after all other rails.
    pub(super) last: [u32; RAILS_MAX],
}

impl RailWork {
    pub(super) const NONE: Self =
        RailWork { answered: RailSet::NONE, done: [0; RAILS_MAX], last: [0; RAILS_MAX] };

    /// Counts a completion. Returns whether it is only the answer of a rail.
    #[inline(always)]
    pub(super) fn book(&mut self, wc: &Wc) -> bool {
        let rail = rail_of(wc.qp_num);
        self.done[rail] = self.done[rail].wrapping_add(1);
        let is_answer = wc.wr_id == PROBE && wc.status == WcStatus::SUCCESS;
        if is_answer {
            self.answered = self.answered.or(RailSet::one(rail));
        }
        is_answer
    }

    /// Notes that a rail has finished a long message after all other rails.
    #[inline(always)]
    pub(super) fn was_last(&mut self, wc: &Wc) {
        // On a connection of one rail nobody resets the counts.
        let last = &mut self.last[rail_of(wc.qp_num)];
        *last = last.saturating_add(1);
    }
}

impl Rails {
    /// `lead` is the rail of the first queue pairs.
    pub(super) fn new(count: usize, lead: usize, standby: RailSet) -> Self {
        let pause_ns = *PAUSE_NS.start();
        let retry = Retry {
            not_before_ns: 0,
            pause_ns,
            joined_ns: 0,
            silent_ns: 0,
            done: 0,
            sought_ns: None,
            seek_for_ns: *UNRESOLVED_NS.start(),
        };
        Rails {
            count,
            standby,
            is_fallback: false,
            usable: RailSet::one(lead),
            offered: RailSet::one(lead),
            started: RailSet::one(lead),
            in_use: RailSet::one(lead),
            turn: lead,
            trusted: RailSet::one(lead),
            asked: RailSet::NONE,
            heard: RailSet::NONE,
            stale: RailSet::NONE,
            shunned: RailSet::NONE,
            refused: RailSet::NONE,
            failed: RailSet::NONE,
            up: (RailSet::NONE, 0, 0),
            peer_up: RailSet::first(count),
            told: RailSet::first(count),
            retries: [retry; RAILS_MAX],
            unresolved: RailSet::NONE,
            peer_gids: [None; RAILS_MAX],
            peer_rkey: 0,
        }
    }

    /// Returns the rails whose ports are up at this end. Asking all ports takes many system calls, so this
    /// happens now and then, and after each report about a port.
    pub(super) fn ports_up(
        &mut self,
        changes: u32,
        now_ns: u64,
        ask: impl FnOnce() -> RailSet,
    ) -> RailSet {
        let (up, known, next_ns) = self.up;
        if now_ns < next_ns && known == changes {
            return up;
        }
        let up = ask();
        self.up = (up, changes, now_ns.saturating_add(PORTS_EVERY_NS));
        up
    }

    /// Whether the connection has several rails.
    pub(super) const fn has_several(&self) -> bool {
        self.count > 1
    }

    /// Lets these rails carry data.
    pub(super) fn carry_over(&mut self, in_use: RailSet) {
        (self.in_use, self.turn) = (in_use, in_use.iter().next().unwrap_or(0));
    }

    /// The rails among `rails` that should carry data: those that are no standby, if there are any.
    pub(super) fn preferred(&self, rails: RailSet) -> RailSet {
        let active = rails.without(self.standby);
        if active.is_empty() { rails } else { active }
    }

    /// Whether only the rails `software` carry data although there are other rails. Returns `None` if the last
    /// call gave the same answer.
    pub(super) fn fallback_news(&mut self, software: RailSet) -> Option<bool> {
        let has_others = software != RailSet::first(self.count);
        let is_fallback = has_others && self.in_use.without(software).is_empty();
        let was_fallback = core::mem::replace(&mut self.is_fallback, is_fallback);
        (is_fallback != was_fallback).then_some(is_fallback)
    }

    /// The rails whose port is down at an end, or that did not answer.
    pub(super) fn down(&self) -> RailSet {
        let is_put_off = |rail: &usize| self.retries[*rail].pause_ns != *PAUSE_NS.start();
        let all = RailSet::first(self.count);
        let idle = all.without(self.in_use);
        all.without(self.told.and(self.peer_up)).or(idle.iter().filter(is_put_off).collect())
    }

    pub(super) fn states(&self) -> RailStates {
        RailStates { count: self.count as u8, in_use: self.in_use.0, down: self.down().0 }
    }

    /// The standby rails that have queue pairs and are not needed now.
    pub(super) fn reserve(&self) -> RailSet {
        let is_needed = self.in_use.without(self.standby).is_empty();
        let idle = self.started.and(self.standby).without(self.in_use);
        if is_needed { RailSet::NONE } else { idle }
    }

    /// Takes the peer's word about its ports.
    pub(super) fn peer_up(&mut self, up: RailSet) {
        let back = up.without(self.peer_up);
        self.peer_up = up;
        self.forgive(back);
    }

    /// Lets rails whose ports have come up be tried at once.
    pub(super) fn forgive(&mut self, back: RailSet) {
        for rail in back.iter() {
            self.retries[rail].not_before_ns = 0;
        }
    }

    /// Blames the rails that have not answered for a while, although another one has. Somebody has seen that
    /// nothing moves, and the rails that answer are not to blame.
    pub(super) fn blame_stale(&mut self) {
        self.failed = self.failed.or(self.stale);
    }

    /// Leaves out of the next attempt a rail that could not be started.
    pub(super) fn shun(&mut self, rail: usize) {
        self.failed = self.failed.or(RailSet::one(rail));
        self.shunned = self.shunned.or(RailSet::one(rail));
        self.refused = self.refused.or(RailSet::one(rail));
    }

    /// Returns the fault of each rail, for the error that ends the connection. `up` has the rails whose ports are up
    /// at this end.
    pub(super) fn faults(&self, up: RailSet) -> RailFaults {
        let refused = up.and(self.refused);
        RailFaults {
            count: self.count as u8,
            port_down: RailSet::first(self.count).without(up).0,
            refused: refused.0,
            peer_down: up.without(refused).without(self.peer_up).0,
        }
    }

    /// Blames the rail of a queue pair.
    pub(super) fn blame(&mut self, qp_num: u32) {
        self.failed = self.failed.or(RailSet::one(rail_of(qp_num)));
    }

    /// Takes answers, and returns the rails that have been silent for too long while others answered.
    pub(super) fn hear(&mut self, work: &mut RailWork, now_ns: u64) -> RailSet {
        let answered = core::mem::take(&mut work.answered).and(self.asked);
        self.asked = self.asked.without(answered);
        let heard = |rails: RailSet| !rails.without(self.asked).is_empty();
        let is_one_in_use_heard = heard(self.in_use);
        // A standby answers at once, and a rail in use after the messages that were posted before. So it alone is
        // no reason to give up a rail.
        let is_any_heard = is_one_in_use_heard || heard(self.reserve());
        let mut silent = RailSet::NONE;
        self.stale = RailSet::NONE;
        for rail in self.in_use.and(self.asked).iter() {
            let retry = &mut self.retries[rail];
            if retry.done != work.done[rail] {
                (retry.done, retry.silent_ns) = (work.done[rail], now_ns);
            }
            let silent_ns = now_ns.saturating_sub(retry.silent_ns);
            if is_any_heard && silent_ns >= STALL_NS / 4 {
                self.stale = self.stale.or(RailSet::one(rail));
            }
            if is_one_in_use_heard && silent_ns >= STALL_NS {
                silent = silent.or(RailSet::one(rail));
            }
        }
        (self.trusted, self.heard) = (self.trusted.or(answered), self.heard.or(answered));
        silent
    }

    /// The rails that are to be left alone for now.
    pub(super) fn put_off_at(&self, now_ns: u64) -> RailSet {
        let idle = RailSet::first(self.count).without(self.in_use);
        let put_off = idle.iter().filter(|rail| now_ns < self.retries[*rail].not_before_ns);
        put_off.collect()
    }

    /// Looks for the way of the rails among `up` that have failed, by `resolve`. Returns the rails that may join.
    pub(super) fn resolved(
        &mut self,
        up: RailSet,
        now_ns: u64,
        resolve: impl Fn(usize, &Gid) -> Resolution,
    ) -> RailSet {
        for rail in up.and(self.unresolved).iter() {
            let Retry { sought_ns, seek_for_ns, .. } = &mut self.retries[rail];
            let since_ns = *sought_ns.get_or_insert(now_ns);
            let is_late = now_ns.saturating_sub(since_ns) >= *seek_for_ns;
            let found = self.peer_gids[rail].as_ref().map(|gid| resolve(rail, gid));
            *seek_for_ns = match found {
                None | Some(Resolution::Done) => *UNRESOLVED_NS.start(),
                _ if is_late => (2 * *seek_for_ns).min(*UNRESOLVED_NS.end()),
                _ => continue,
            };
            *sought_ns = None;
            self.unresolved = self.unresolved.without(RailSet::one(rail));
        }
        up.without(self.unresolved)
    }

    /// Puts off the next try of the rails that have failed.
    pub(super) fn put_off(&mut self, now_ns: u64) {
        for rail in self.failed.iter() {
            let retry = &mut self.retries[rail];
            if self.in_use.has(rail) && now_ns.saturating_sub(retry.joined_ns) >= TRIAL_NS {
                retry.pause_ns = *PAUSE_NS.start();
            }
            retry.not_before_ns = now_ns.saturating_add(retry.pause_ns);
            retry.pause_ns = (2 * retry.pause_ns).min(*PAUSE_NS.end());
        }
        self.started = self.started.without(self.failed.without(self.in_use));
        self.trusted = self.trusted.without(self.failed);
        self.asked = self.asked.without(self.failed);
        self.unresolved = self.unresolved.or(self.failed);
        self.failed = RailSet::NONE;
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    #[test]
    fn a_rail_that_has_failed_joins_once_its_way_is_known_or_was_looked_for_long_enough() {
        let all = RailSet::first(3);
        let mut rails = Rails::new(3, 0, RailSet::NONE);
        assert_eq!(rails.resolved(all, 0, |_, _| unreachable!()), all, "no rail has failed");
        rails.failed = RailSet::one(1);
        rails.put_off(0);
        assert_eq!(rails.resolved(all, 0, |_, _| unreachable!()), all, "no GID is known");
        rails.peer_gids[1] = Some(Gid::from(IpAddr::from([192, 0, 2, 1])));
        let mut now_ns = 0;
        let mut joins_after = |answer: Resolution, ns: u64| {
            rails.failed = RailSet::one(1);
            rails.put_off(now_ns);
            let mut joins = |now_ns| rails.resolved(all, now_ns, |_, _| answer) == all;
            let joined = joins(now_ns);
            now_ns += ns;
            [joined, joins(now_ns - 1), joins(now_ns)]
        };
        assert_eq!(joins_after(Resolution::Done, 1), [true; 3]);
        let vain = [(Resolution::Failed, 1), (Resolution::Pending, 2), (Resolution::Failed, 4)];
        for _ in 0..2 {
            for (answer, times) in vain {
                let ns = times * UNRESOLVED_NS.start();
                assert_eq!(joins_after(answer, ns), [false, false, true], "{answer:?} {ns}");
            }
            assert_eq!(joins_after(Resolution::Done, 1), [true; 3]);
        }
    }
}
