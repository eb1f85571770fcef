//! Requests: a fixed ring with take and give in constant time.
//!
//! NCCL scans its array for a free request (`net_ib.cc ncclIbGetRequest`). Transfers end much in
//! the order in which they began, so here they are taken in a ring: request number `n` lives at
//! index `n` modulo 256, which is what `wr_id` carries, and may begin once request `n` minus the
//! capacity is over. Whoever leaves one untested finds no free request once the ring has come
//! around.

use crate::fifo::DEPTH_MAX;

/// Names a request that is under way; give it to `test` until that says done.
///
/// It is a number, not a resource: dropping it does not end the transfer. A token whose request
/// is done, or that belongs to another comm, is refused by `test` as unknown.
#[must_use = "a request ends only by `test`"]
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Request(u32);

impl Request {
    /// Which of its comm's 256 receives, sends or flushes it is: no two of a kind that are under
    /// way are the same.
    #[inline(always)]
    pub const fn index(&self) -> usize {
        self.0 as u8 as usize
    }

    /// The token of send, or receive, number `number`.
    #[inline(always)]
    pub(crate) const fn message(number: u64) -> Self {
        Request(number as u32 & NUMBER)
    }

    /// The token of flush number `number`.
    pub(crate) const fn flush(number: u64) -> Self {
        Request(number as u32 & NUMBER | FLUSH)
    }

    /// As a plain number, for a caller that must pass it through a C interface.
    pub const fn raw(&self) -> u32 {
        self.0
    }

    /// Back from [`Request::raw`]. Any other number is a request that no comm knows.
    pub const fn from_raw(raw: u32) -> Self {
        Request(raw & (NUMBER | FLUSH))
    }
}

/// Up to 256 requests of kind `T`.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    entries: [Entry<T>; DEPTH_MAX],
    capacity: u32,
}

/// A request, live or free, in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry<T> {
    /// The number of the request that lives here: bare while it awaits completions, with
    /// [`DONE`] once it does not, with [`CUT`] when it never will be done; or [`FREE`]. One
    /// comparison thus tells a test that has to wait from all others.
    key: u32,
    /// Completions still awaited.
    events: u16,
    /// Messages that end together under one `wr_id`, or buffers of a receive.
    pub(crate) nreqs: u16,
    pub(crate) value: T,
}

const DONE: u32 = 1 << 31;
const CUT: u32 = 1 << 30;
const FREE: u32 = DONE | CUT;
/// Tells flushes from receives, which are counted apart.
const FLUSH: u32 = 1 << 29;
/// Bits of a request's number.
const NUMBER: u32 = FLUSH - 1;

impl<T> Entry<T> {
    /// A completion came; says whether one was awaited.
    #[inline(always)]
    pub(crate) fn book(&mut self) -> bool {
        let left = self.events.wrapping_sub(1);
        self.events = left;
        if left == 0 {
            self.key |= DONE;
        }
        left != u16::MAX
    }

    /// Awaits one completion more than it was armed with.
    pub(crate) fn await_one_more(&mut self) {
        self.events += 1;
    }

    /// Becomes `request`, which awaits `events` completions, at least one.
    #[inline(always)]
    pub(crate) fn arm(&mut self, request: Request, events: u16, nreqs: u16) -> Request {
        self.key = request.0;
        self.events = events;
        self.nreqs = nreqs;
        request
    }
}

impl<T: Copy + Default> Ring<T> {
    /// `capacity` is at most 256.
    pub(crate) fn new(capacity: usize) -> Self {
        let entry = |_| Entry { key: FREE, events: 0, nreqs: 0, value: T::default() };
        Ring { entries: core::array::from_fn(entry), capacity: capacity.min(DEPTH_MAX) as u32 }
    }

    /// The index and entry for request `number`, if it is free; the caller fills it in and arms
    /// it.
    #[inline(always)]
    pub(crate) fn take(&mut self, number: u64) -> Option<(u8, &mut Entry<T>)> {
        // That the one before is over implies that all before that one are, so this one is free.
        let before = (number as u32).wrapping_sub(self.capacity) as u8;
        if self.entries[usize::from(before)].key != FREE {
            return None;
        }
        let index = number as u8;
        Some((index, &mut self.entries[usize::from(index)]))
    }

    /// Whether `request` is live and awaits completions.
    #[inline(always)]
    pub(crate) fn is_waiting(&self, request: &Request) -> bool {
        self.entries[request.index()].key == request.0
    }

    /// Gives back the request that `request` names if it is done; what it was can still be read.
    #[inline(always)]
    pub(crate) fn give(&mut self, request: &Request) -> Option<&mut Entry<T>> {
        let entry = &mut self.entries[request.index()];
        if entry.key != request.0 | DONE {
            return None;
        }
        entry.key = FREE;
        Some(entry)
    }

    /// Whether `request` is live but will never be done.
    pub(crate) fn is_cut_short(&self, request: &Request) -> bool {
        self.entries[request.index()].key == request.0 | CUT
    }

    /// The entry at `index`, as a completion's `wr_id` names it.
    #[inline(always)]
    pub(crate) fn at(&mut self, index: u8) -> &mut Entry<T> {
        &mut self.entries[usize::from(index)]
    }

    /// The entry of `request`, whatever lives there.
    pub(crate) fn of(&self, request: &Request) -> &Entry<T> {
        &self.entries[request.index()]
    }

    /// Completions will not come any more: what waits for one never will be done.
    pub(crate) fn cut_short(&mut self) {
        let waiting = self.entries.iter_mut().filter(|entry| entry.key & FREE == 0);
        waiting.for_each(|entry| entry.key |= CUT);
    }

    /// The live requests; linear, for reports.
    pub(crate) fn live(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(|entry| entry.key != FREE).map(|entry| &entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ring_agrees_with_a_list_of_live_requests(
            capacity in 1usize..=DEPTH_MAX,
            operations in prop::collection::vec(any::<(u8, prop::sample::Index)>(), 0..400),
        ) {
            let mut ring = Ring::<u32>::new(capacity);
            let mut number = u64::from(NUMBER) - 100;
            // Number, value, completions awaited.
            let mut live: heapless::Vec<(u64, u32, u16), DEPTH_MAX> = heapless::Vec::new();
            let mut dead: heapless::Vec<u64, 512> = heapless::Vec::new();
            let request = Request::message;
            for (step, (operation, which)) in operations.into_iter().enumerate() {
                match operation % 3 {
                    0 => {
                        let around = |&(n, ..): &(u64, u32, u16)| n + capacity as u64 == number;
                        let taken = ring.take(number).map(|(index, entry)| {
                            entry.value = step as u32;
                            (index, entry.arm(request(number), 2, 1))
                        });
                        prop_assert_eq!(taken.is_none(), live.iter().any(around));
                        if let Some((index, token)) = taken {
                            prop_assert_eq!(usize::from(index), number as usize % DEPTH_MAX);
                            prop_assert_eq!(token, request(number));
                            live.push((number, step as u32, 2)).unwrap();
                            number += 1;
                        }
                    }
                    1 if !live.is_empty() => {
                        let at = which.index(live.len());
                        let (number, _, awaited) = &mut live[at];
                        if *awaited > 0 {
                            prop_assert!(ring.at(*number as u8).book());
                            *awaited -= 1;
                        }
                    }
                    2 if !live.is_empty() => {
                        let at = which.index(live.len());
                        let (number, value, awaited) = live[at];
                        let given = ring.give(&request(number)).map(|entry| entry.value);
                        prop_assert_eq!(given, (awaited == 0).then_some(value));
                        if awaited == 0 {
                            live.swap_remove(at);
                            dead.push(number).unwrap();
                        }
                    }
                    _ => {}
                }
                for &(number, _, awaited) in &live {
                    prop_assert_eq!(ring.is_waiting(&request(number)), awaited > 0);
                }
                for &number in &dead {
                    prop_assert!(!ring.is_waiting(&request(number)));
                    prop_assert!(ring.give(&request(number)).is_none());
                }
                prop_assert_eq!(ring.live().count(), live.len());
            }
        }

        #[test]
        fn no_made_up_token_is_live(raw: u32, taken in 0u64..8) {
            let mut ring = Ring::<()>::new(8);
            let mut live: heapless::Vec<u32, 8> = heapless::Vec::new();
            for number in 0..taken {
                live.push(ring.take(number).unwrap().1.arm(Request::message(number), 1, 1).raw()).unwrap();
            }
            let request = Request::from_raw(raw);
            prop_assert_eq!(ring.is_waiting(&request), live.contains(&request.raw()));
            prop_assert!(ring.give(&request).is_none());
            ring.cut_short();
            prop_assert_eq!(ring.is_cut_short(&request), live.contains(&request.raw()));
            prop_assert!(!ring.is_waiting(&request));
        }

        #[test]
        fn a_completion_too_many_is_noticed(events in 1u16..100) {
            let mut ring = Ring::<()>::new(1);
            let _ = ring.take(0).unwrap().1.arm(Request::message(0), events, 1);
            for _ in 0..events {
                prop_assert!(ring.at(0).book());
            }
            prop_assert!(!ring.at(0).book());
        }
    }
}
