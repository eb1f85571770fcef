//! The receive window of adaptive routing: which packets came ahead of their turn, and which holes
//! before them to ask for.

use core::mem;

use heapless::Vec;

use super::psn_set::{LEN, PsnSet};
use crate::roce::{ImmDt, Psn};

/// Maximum number of immediates that may wait for earlier packets.
const IMMEDIATES_MAX: usize = 32;
/// An asked-for hole that stays is asked for again. The wait is a hole's age plus this many times the
/// time that holes take to close. Each further wait doubles while nothing arrives in order.
const ASK_AGAIN_CLOSINGS: u64 = 2;
/// Length of that wait in hole ages, as long as no asked-for hole has closed.
const ASK_AGAIN_AGES: u64 = 8;
const DOUBLINGS_MAX: u32 = 6;
/// Only holes this near to the expected PSN are asked for again. A peer that leaves a thousand holes
/// is not asked for all of them repeatedly.
const ASK_AGAIN_PACKETS: u32 = 64;

/// A WRITE_WITH_IMM whose turn to complete has not come.
#[derive(Clone, Copy)]
pub(super) struct Immediate {
    pub(super) psn: Psn,
    pub(super) imm: ImmDt,
    pub(super) byte_len: u32,
    pub(super) solicited: bool,
}

#[derive(Default)]
pub(super) struct Reorder {
    /// PSNs that have arrived, from the expected PSN on.
    seen: PsnSet,
    /// One past the newest PSN that has arrived.
    newest: Psn,
    /// Waiting immediates, in the order of their PSNs.
    immediates: Vec<Immediate, IMMEDIATES_MAX>,
    hole_age_ns: u64,
    /// A PSN and a time: the holes before this PSN will have aged at this time.
    aging: Option<(Psn, u64)>,
    /// Holes before this PSN have been asked for.
    asked: Psn,
    /// Time at which these holes are asked for again.
    ask_again_at: Option<u64>,
    /// The expected PSN at the last choice of `ask_again_at`, and how often in a row it had stayed
    /// unchanged.
    stuck: Option<(Psn, u32)>,
    /// First and end PSN of the range whose holes are to be asked for now.
    asking: Option<(Psn, Psn)>,
    /// A hole that was asked for exactly once, and the time of asking.
    timed: Option<(Psn, u64)>,
    /// Smoothed time from asking for a hole until it closes.
    closing_ns: Option<u64>,
}

impl Reorder {
    pub(super) fn set_hole_age(&mut self, hole_age_ns: u64) {
        self.hole_age_ns = hole_age_ns.max(1);
    }

    /// Forgets all packets. The hole age and the closing time stay.
    pub(super) fn clear(&mut self) {
        let Reorder { hole_age_ns, closing_ns, .. } = *self;
        *self = Reorder { hole_age_ns, closing_ns, ..Reorder::default() };
    }

    /// Returns whether no packet came ahead of its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.seen.contains(psn)
    }

    /// Returns whether there is room to note a packet this far ahead, with an immediate or without.
    pub(super) fn has_room(&self, ahead: u32, immediate: bool) -> bool {
        ahead < LEN && !(immediate && self.immediates.is_full())
    }

    /// Handles the arrival of a packet that was missing.
    #[inline]
    pub(super) fn on_arrival(&mut self, now: u64, psn: Psn) {
        if let Some((_, asked_at)) = self.timed.take_if(|(hole, _)| *hole == psn) {
            let sample = now.saturating_sub(asked_at);
            let mean = self.closing_ns.unwrap_or(sample);
            self.closing_ns = Some(mean - mean / 4 + sample / 4);
        }
    }

    /// Notes a packet that came ahead of its turn. The caller has checked that there is room.
    pub(super) fn note(&mut self, now: u64, expected: Psn, psn: Psn, imm: Option<Immediate>) {
        if self.seen.is_empty() {
            self.newest = psn;
            self.asked = expected;
        }
        self.seen.insert(psn);
        if let Some(immediate) = imm {
            let at = self.immediates.iter().take_while(|other| other.psn.since(psn) < 0).count();
            let _ = self.immediates.insert(at, immediate);
        }
        if psn.since(self.newest) < 0 {
            return;
        }
        self.newest = psn.add(1);
        let aged_at = now.saturating_add(self.hole_age_ns);
        if self.aging.is_none_or(|(_, at)| at > aged_at) {
            self.aging = Some((self.newest, aged_at));
        }
    }

    /// Immediate of the packet whose turn it is.
    pub(super) fn immediate(&self, expected: Psn) -> Option<Immediate> {
        self.immediates.first().filter(|immediate| immediate.psn == expected).copied()
    }

    /// Removes a packet whose turn has come and which is done.
    pub(super) fn release(&mut self, expected: Psn) {
        if self.immediate(expected).is_some() {
            self.immediates.remove(0);
        }
        self.seen.remove(expected);
        if self.seen.is_empty() {
            (self.aging, self.asking) = (None, None);
            (self.ask_again_at, self.stuck, self.timed) = (None, None, None);
        }
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.aging.map(|(_, at)| at)
    }

    pub(super) fn handle_timeout(&mut self, now: u64, expected: Psn) {
        let Some((aged, _)) = self.aging.filter(|(_, at)| *at <= now) else { return };
        if self.asked.since(expected) < 0 {
            self.asked = expected;
        }
        let (from, end) = if self.ask_again_at.take_if(|at| *at <= now).is_some() {
            // With two requests for one hole, the answer would not tell which request it belongs to.
            self.timed = None;
            let near = expected.add(ASK_AGAIN_PACKETS);
            (expected, if near.since(self.asked) < 0 { near } else { self.asked })
        } else {
            let from = mem::replace(&mut self.asked, aged);
            if self.timed.is_none() {
                self.timed = self.hole(from, aged).map(|hole| (hole, now));
            }
            (from, aged)
        };
        if self.hole(from, end).is_some() {
            self.asking = Some((from, end));
        }
        if self.ask_again_at.is_none() && self.hole(expected, self.asked).is_some() {
            self.ask_again_at = Some(now.saturating_add(self.again_ns(expected)));
        }
        self.aging = if self.hole(self.asked, self.newest).is_some() {
            Some((self.newest, now.saturating_add(self.hole_age_ns)))
        } else {
            self.ask_again_at.map(|at| (self.newest, at))
        };
    }

    /// Computes how long to wait until holes are asked for again.
    fn again_ns(&mut self, expected: Psn) -> u64 {
        let times = match self.stuck {
            Some((psn, times)) if psn == expected => (times + 1).min(DOUBLINGS_MAX),
            _ => 0,
        };
        self.stuck = Some((expected, times));
        let once_ns = match self.closing_ns {
            Some(ns) => self.hole_age_ns.saturating_add(ns.saturating_mul(ASK_AGAIN_CLOSINGS)),
            None => self.hole_age_ns.saturating_mul(ASK_AGAIN_AGES),
        };
        once_ns.saturating_mul(1 << times)
    }

    /// Takes the next hole to ask for.
    pub(super) fn next_ask(&mut self, expected: Psn) -> Option<Psn> {
        let (next, end) = self.asking?;
        let from = if next.since(expected) > 0 { next } else { expected };
        let hole = self.hole(from, end);
        self.asking = hole.map(|psn| (psn.add(1), end));
        hole
    }

    /// Finds the first hole in a range. A range that ends before it starts is empty.
    fn hole(&self, from: Psn, end: Psn) -> Option<Psn> {
        self.seen.first_absent(from, end.since(from).max(0) as u32)
    }
}

#[cfg(test)]
mod tests;
