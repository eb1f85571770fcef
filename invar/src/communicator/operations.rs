//! The last operations of a rank with their times, for the flight recorder.
//!
//! The rank's thread notes them by plain stores. It reads the clock only for an operation that is long: one of many
//! bytes, or one that waits for another rank. The thread that watches the rendezvous reads the notes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use invar_core::recorder::{OPERATIONS, RankWait};
use invar_core::rendezvous::NOBODY;

/// Number of operations in memory. It exceeds [`OPERATIONS`], the number that a reader reads, so that the writer
/// does not soon overwrite an operation that is being read.
const SLOTS: u64 = 64;

const _: () = assert!(SLOTS > OPERATIONS as u64 && SLOTS.is_power_of_two());

/// The operations of a rank.
pub(super) struct Operations {
    slots: [Slot; SLOTS as usize],
    /// Number of timed operations that have begun.
    begun: AtomicU64,
    /// Whether the operation that runs is timed.
    is_timed: AtomicBool,
    /// The rank that the operation waits for, and since when.
    waits_for: AtomicU32,
    waits_since_ns: AtomicU64,
    /// Time of all waits that have ended.
    waited_ns: AtomicU64,
}

#[derive(Default)]
struct Slot {
    operation: [AtomicU64; 2],
    number: AtomicU64,
    begun_ns: AtomicU64,
    /// 0 while the operation runs.
    ended_ns: AtomicU64,
    waited_ns: AtomicU64,
    /// The longest wait: the rank, its begin and its time.
    longest_rank: AtomicU32,
    longest_since_ns: AtomicU64,
    longest_ns: AtomicU64,
}

/// An operation as the reader finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    /// The two words of [`Operations::begin`].
    pub(super) operation: [u64; 2],
    pub(super) number: u64,
    pub(super) begun_ns: u64,
    pub(super) took_ns: Option<u64>,
    pub(super) waited_ns: u64,
    pub(super) longest: Option<RankWait>,
}

impl Operations {
    pub(super) fn new() -> Self {
        Operations {
            slots: std::array::from_fn(|_| Slot::default()),
            begun: AtomicU64::new(0),
            is_timed: AtomicBool::new(false),
            waits_for: AtomicU32::new(NOBODY),
            waits_since_ns: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// Whether the operation that runs is timed.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed.load(Ordering::Relaxed)
    }

    /// Begins to time an operation, which two words describe. `number` is that of the collective.
    pub(super) fn begin(&self, operation: [u64; 2], number: u64, now_ns: u64) {
        let begun = self.begun.load(Ordering::Relaxed);
        let slot = self.slot(begun);
        // A reader that sees a new word of the slot must also see the `begun` by which it rejects the slot.
        fence(Ordering::Release);
        for (word, value) in slot.operation.iter().zip(operation) {
            word.store(value, Ordering::Relaxed);
        }
        slot.number.store(number, Ordering::Relaxed);
        slot.begun_ns.store(now_ns, Ordering::Relaxed);
        slot.ended_ns.store(0, Ordering::Relaxed);
        slot.waited_ns.store(0, Ordering::Relaxed);
        slot.longest_rank.store(NOBODY, Ordering::Relaxed);
        slot.longest_ns.store(0, Ordering::Relaxed);
        self.begun.store(begun + 1, Ordering::Release);
        self.is_timed.store(true, Ordering::Relaxed);
    }

    /// Notes that the timed operation waits for a rank.
    pub(super) fn wait(&self, rank: u32, now_ns: u64) {
        self.go_on(now_ns);
        self.waits_since_ns.store(now_ns, Ordering::Relaxed);
        self.waits_for.store(rank, Ordering::Release);
    }

    /// Notes that the timed operation waits no longer.
    pub(super) fn go_on(&self, now_ns: u64) {
        let rank = self.waits_for.swap(NOBODY, Ordering::Relaxed);
        if rank == NOBODY {
            return;
        }
        let slot = self.slot(self.begun.load(Ordering::Relaxed).wrapping_sub(1));
        let since_ns = self.waits_since_ns.load(Ordering::Relaxed);
        let lasted_ns = now_ns.saturating_sub(since_ns);
        let waited_ns = slot.waited_ns.load(Ordering::Relaxed);
        slot.waited_ns.store(waited_ns + lasted_ns, Ordering::Relaxed);
        let all_ns = self.waited_ns.load(Ordering::Relaxed);
        self.waited_ns.store(all_ns + lasted_ns, Ordering::Release);
        if lasted_ns >= slot.longest_ns.load(Ordering::Relaxed) {
            slot.longest_rank.store(rank, Ordering::Relaxed);
            slot.longest_since_ns.store(since_ns, Ordering::Relaxed);
            slot.longest_ns.store(lasted_ns, Ordering::Relaxed);
        }
    }

    /// Notes that the timed operation is done.
    pub(super) fn end(&self, now_ns: u64) {
        self.go_on(now_ns);
        let slot = self.slot(self.begun.load(Ordering::Relaxed).wrapping_sub(1));
        slot.ended_ns.store(now_ns, Ordering::Relaxed);
        self.is_timed.store(false, Ordering::Release);
    }

    /// Returns the number of timed operations, and whether one runs.
    pub(super) fn state(&self) -> (u64, bool) {
        let is_timed = self.is_timed.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire), is_timed)
    }

    /// Returns the time for which all operations have waited. The time may be too short while the rank goes on from
    /// one wait to another.
    pub(super) fn waited_ns(&self, now_ns: u64) -> u64 {
        let ended_ns = self.waited_ns.load(Ordering::Acquire);
        if self.waits_for.load(Ordering::Acquire) == NOBODY {
            return ended_ns;
        }
        ended_ns + now_ns.saturating_sub(self.waits_since_ns.load(Ordering::Relaxed))
    }

    /// Returns the last operations, oldest first. An operation whose slot was taken meanwhile is left out.
    pub(super) fn last(&self, now_ns: u64) -> Vec<Timed> {
        let end = self.begun.load(Ordering::Acquire);
        let numbers = end.saturating_sub(OPERATIONS as u64)..end;
        let mut last: Vec<(u64, Timed)> =
            numbers.map(|number| (number, self.read(self.slot(number), now_ns))).collect();
        fence(Ordering::Acquire);
        // The writer may be at work in the slot after the last one.
        let end = self.begun.load(Ordering::Relaxed);
        last.retain(|(number, _)| number + SLOTS > end);
        last.into_iter().map(|(_, timed)| timed).collect()
    }

    fn read(&self, slot: &Slot, now_ns: u64) -> Timed {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let begun_ns = get(&slot.begun_ns);
        let ended_ns = Some(get(&slot.ended_ns)).filter(|ended_ns| *ended_ns != 0);
        let longest = slot.longest_rank.load(Ordering::Relaxed);
        let mut longest = (longest, get(&slot.longest_since_ns), get(&slot.longest_ns));
        let mut waited_ns = get(&slot.waited_ns);
        let waits_for = self.waits_for.load(Ordering::Relaxed);
        if ended_ns.is_none() && waits_for != NOBODY {
            let since_ns = get(&self.waits_since_ns);
            let lasts_ns = now_ns.saturating_sub(since_ns);
            waited_ns += lasts_ns;
            if lasts_ns >= longest.2 {
                longest = (waits_for, since_ns, lasts_ns);
            }
        }
        let (rank, since_ns, lasted_ns) = longest;
        let after_us = to_us(since_ns.saturating_sub(begun_ns));
        let wait = RankWait { rank, after_us, lasted_us: to_us(lasted_ns) };
        Timed {
            operation: slot.operation.each_ref().map(get),
            number: get(&slot.number),
            begun_ns,
            took_ns: ended_ns.map(|ended_ns| ended_ns.saturating_sub(begun_ns)),
            waited_ns,
            longest: (rank != NOBODY).then_some(wait),
        }
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % SLOTS) as usize]
    }
}

/// Converts nanoseconds to microseconds; a longer time is cut.
pub(super) fn to_us(ns: u64) -> u32 {
    u32::try_from(ns / 1000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_operation_has_its_time_its_waits_and_the_longest_of_them() {
        let operations = Operations::new();
        operations.begin([1, 2], 7, 10_000);
        operations.wait(3, 20_000);
        let runs = operations.last(25_000);
        let wait = |rank, after_us, lasted_us| Some(RankWait { rank, after_us, lasted_us });
        assert_eq!((runs[0].took_ns, runs[0].longest), (None, wait(3, 10, 5)));
        assert_eq!(operations.waited_ns(25_000), 5_000);
        operations.wait(4, 30_000);
        operations.go_on(32_000);
        operations.wait(5, 40_000);
        assert!(operations.is_timed());
        operations.end(41_000);
        assert!(!operations.is_timed());
        operations.begin([3, 4], 8, 50_000);
        let last = operations.last(60_000);
        let first = Timed {
            operation: [1, 2],
            number: 7,
            begun_ns: 10_000,
            took_ns: Some(31_000),
            waited_ns: 13_000,
            longest: wait(3, 10, 10),
        };
        assert_eq!(last[0], first);
        assert_eq!((last.len(), last[1].operation, last[1].longest), (2, [3, 4], None));
        operations.wait(3, 55_000);
        assert_eq!(operations.waited_ns(60_000), 18_000);
    }

    #[test]
    fn a_reader_finds_whole_operations_while_the_rank_goes_on() {
        const COUNT: u64 = 2_000_000;
        let operations = Operations::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=COUNT {
                    operations.begin([number, !number], number, number);
                    operations.end(2 * number);
                }
            });
            while operations.state().0 < COUNT {
                let last = operations.last(0);
                assert!(last.len() <= OPERATIONS);
                assert!(last.windows(2).all(|two| two[0].number + 1 == two[1].number));
                for Timed { operation: [a, b], number, begun_ns, took_ns, .. } in last {
                    assert_eq!((a, b, begun_ns), (number, !number, number));
                    assert!(took_ns.is_none_or(|took_ns| took_ns == number));
                }
            }
        });
        assert_eq!(operations.last(0).len(), OPERATIONS);
    }
}
