//! Requests: a fixed ring with take and give in constant time.
//!
//! NCCL scans its array for a free request (`net_ib.cc ncclIbGetRequest`). Transfers end much in
//! the order in which they began, so here each row of the FIFO has its place in a ring, at both
//! ends: one request at the receiver, and at the sender one for each message. A request lives at
//! the index in the low bits of its token, and may begin once the one that lived there before is
//! over. Whoever leaves one untested finds no free request once the ring has come around.

use core::hint::cold_path;

use crate::fifo::{DEPTH_MAX, RECVS_MAX};

/// Entries of a ring that has one for each row of the FIFO.
pub(crate) const ROWS: usize = DEPTH_MAX;
/// Entries of a ring that has one for each message of each row.
pub(crate) const MESSAGES: usize = DEPTH_MAX * RECVS_MAX;

/// Names a request that is under way; give it to `test` until that says done.
///
/// It is a number, not a resource: dropping it does not end the transfer. A token whose request
/// is done, or that belongs to another comm, is refused by `test` as unknown.
#[must_use = "a request ends only by `test`"]
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Request(u32);

impl Request {
    /// One more than the largest [`Request::index`].
    pub const INDEX_END: usize = MESSAGES;

    /// Which of its comm's sends, receives or flushes it is: no two of a kind that are under way
    /// are the same.
    #[inline(always)]
    pub const fn index(&self) -> usize {
        self.0 as usize % Self::INDEX_END
    }

    /// The same in fewer numbers, below 256, for requests that are one to a row: all but the sends
    /// over a NIC.
    #[inline(always)]
    pub const fn row(&self) -> usize {
        self.0 as usize % ROWS
    }

    /// As a plain number, for a caller that must pass it through a C interface.
    #[inline(always)]
    pub const fn raw(&self) -> u32 {
        self.0
    }

    /// Back from [`Request::raw`]. Any other number is a request that no comm knows.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Request(raw & (NUMBER | FLUSH))
    }

    /// That of message `r` of the row whose first this is.
    #[inline(always)]
    pub(crate) const fn message(&self, r: usize) -> Self {
        Request(self.0 + r as u32)
    }

    /// Tells a flush from receives, which are counted apart.
    pub(crate) const fn of_flush(self) -> Self {
        Request(self.0 | FLUSH)
    }

    /// Whether it is a flush: then nothing of it is the peer's.
    pub const fn is_flush(&self) -> bool {
        self.0 & FLUSH != 0
    }
}

/// `N` requests, each with a `T` beside it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Ring<T, const N: usize = ROWS> {
    entries: [Entry<T>; N],
    /// The number of the next request, of which the low bits are its index. Those whose low bits
    /// are no index of this ring are left out.
    next: u32,
}

/// A request, live or free.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry<T> {
    /// The token of the request that lives here, with [`CUT`] when it never will be done; or
    /// [`FREE`], or [`BEYOND`].
    key: u32,
    /// Completions still awaited, negative where more came. Beside `key`, so that "done" is one
    /// comparison of both.
    awaited: i32,
    pub(crate) value: T,
}

const FREE: u32 = u32::MAX;
/// Of the entries that a smaller ring does not use.
const BEYOND: u32 = FREE - 1;
const CUT: u32 = 1 << 30;
const FLUSH: u32 = 1 << 29;
/// Bits of a request's number.
const NUMBER: u32 = FLUSH - 1;

impl<T> Entry<T> {
    /// Becomes the request of `token`, which awaits `events` completions, at least one.
    #[inline(always)]
    pub(crate) fn arm(&mut self, token: u32, events: u32) {
        self.key = token;
        self.awaited = events as i32;
    }

    /// Whether a request may begin here.
    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        self.key == FREE
    }

    /// A completion came; says whether one was awaited.
    #[inline(always)]
    pub(crate) fn book(&mut self) -> bool {
        self.awaited = self.awaited.wrapping_sub(1);
        self.awaited >= 0
    }

    /// Whether all that were awaited came.
    pub(crate) fn is_complete(&self) -> bool {
        self.awaited == 0
    }

    /// Whether a request lives here that is not complete.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.key < BEYOND && self.awaited != 0
    }

    /// All that were awaited came.
    #[inline(always)]
    pub(crate) fn finish(&mut self) {
        self.awaited = 0;
    }

    /// The request that lives here is done after all, even if it was [cut short](Ring::cut_short).
    pub(crate) fn finish_late(&mut self) {
        if self.key < BEYOND {
            (self.key, self.awaited) = (self.key & !CUT, 0);
        }
    }

    /// Whether `token` lives here: it waits, or is done.
    #[inline(always)]
    pub(crate) fn is_live(&self, token: u32) -> bool {
        self.key == token
    }

    /// Whether `token` lives here and is done.
    #[inline(always)]
    pub(crate) fn is_done(&self, token: u32) -> bool {
        u64::from(self.key) | u64::from(self.awaited as u32) << 32 == u64::from(token)
    }

    /// Whether `token` lived here and will never be done.
    pub(crate) fn is_cut_short(&self, token: u32) -> bool {
        self.key == token | CUT
    }

    /// Ends the request that lives here; gives what stands beside it.
    #[inline(always)]
    pub(crate) fn end(&mut self) -> &mut T {
        // All ones, which takes one store.
        (self.key, self.awaited) = (FREE, -1);
        &mut self.value
    }

    /// Ends the request of `token` if it lives here and is done; whether that was so.
    pub(crate) fn end_if_done(&mut self, token: u32) -> bool {
        let is_done = self.is_done(token);
        if is_done {
            self.end();
        }
        is_done
    }
}

impl<T, const N: usize> Ring<T, N> {
    /// `depth` is a power of two up to `N`; `value` gives what stands at each index.
    pub(crate) fn new(depth: usize, mut value: impl FnMut(usize) -> T) -> Self {
        let key = |index| if index < depth { FREE } else { BEYOND };
        let entry = |index| Entry { key: key(index), awaited: -1, value: value(index) };
        Ring { entries: core::array::from_fn(entry), next: 0 }
    }

    /// The next request and its entry, if that is free; the caller arms it, and then goes on with
    /// [`Ring::advance`].
    #[inline(always)]
    pub(crate) fn next_free(&mut self) -> Option<(Request, &mut Entry<T>)> {
        let token = self.next & NUMBER;
        let entry = &mut self.entries[token as usize % N];
        if !entry.is_free() {
            cold_path();
            return None;
        }
        Some((Request(token), entry))
    }

    /// The next request, free or not.
    #[inline(always)]
    pub(crate) fn next(&self) -> Request {
        Request(self.next & NUMBER)
    }

    /// The next request is taken.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// The requests of the next row of messages are taken, or left out.
    #[inline(always)]
    pub(crate) fn advance_row(&mut self) {
        self.next = self.next.wrapping_add(RECVS_MAX as u32);
    }

    /// Comes around at the end of a ring of less than `N`; whether there was reason to, after
    /// [`Ring::next_free`] gave nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn come_around(&mut self) -> bool {
        let is_end = self.at(self.next).key == BEYOND;
        if is_end {
            self.next = (self.next | (N as u32 - 1)).wrapping_add(1);
        }
        is_end
    }

    /// The entry of a token, or that `wr_id` names: at the index in its low bits.
    #[inline(always)]
    pub(crate) fn at(&mut self, token: u32) -> &mut Entry<T> {
        &mut self.entries[token as usize % N]
    }

    /// The entries of a row of messages, of which `token` names one.
    #[inline(always)]
    pub(crate) fn row(&mut self, token: u32) -> &mut [Entry<T>; RECVS_MAX] {
        &mut self.entries.as_chunks_mut().0[token as usize % N / RECVS_MAX]
    }

    /// Whether all messages of a row may begin. In one comparison: a branch each costs more.
    #[inline(always)]
    pub(crate) fn is_row_free(&mut self, token: u32) -> bool {
        self.row(token).iter().fold(FREE, |keys, entry| keys & entry.key) == FREE
    }

    /// Completions will not come any more: what waits for one never will be done.
    pub(crate) fn cut_short(&mut self) {
        let live = self.entries.iter_mut().filter(|entry| entry.key < BEYOND);
        live.filter(|entry| entry.awaited != 0).for_each(|entry| entry.key |= CUT);
    }

    /// How many are live; linear, for reports.
    pub(crate) fn live(&self) -> usize {
        self.entries.iter().filter(|entry| entry.key < BEYOND).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ring_agrees_with_a_list_of_live_requests(
            depth_log2 in 0u32..=8,
            laps in 0u32..3,
            operations in prop::collection::vec(any::<(u8, prop::sample::Index)>(), 0..400),
        ) {
            let depth = 1 << depth_log2;
            let mut ring = Ring::<usize, ROWS>::new(depth, |index| index);
            // Near the end of the numbers, to come around.
            ring.next = 0u32.wrapping_sub(256 * laps);
            let mut count = 0;
            // Token, place in the ring, completions awaited.
            let mut live: heapless::Vec<(u32, usize, u16), DEPTH_MAX> = heapless::Vec::new();
            let mut dead: heapless::Vec<u32, 512> = heapless::Vec::new();
            for (operation, which) in operations {
                match operation % 3 {
                    0 => {
                        let place = count % depth;
                        if ring.next_free().is_none() && ring.come_around() {
                            prop_assert!(!ring.come_around());
                        }
                        let taken = ring.next_free().map(|(request, entry)| {
                            entry.arm(request.raw(), 2);
                            (request, entry.value)
                        });
                        let is_taken = live.iter().any(|&(_, there, _)| there == place);
                        prop_assert_eq!(taken.is_none(), is_taken);
                        if let Some((request, index)) = taken {
                            prop_assert_eq!(index, place);
                            prop_assert_eq!(&Request::from_raw(request.raw()), &request);
                            prop_assert!(!live.iter().any(|&(token, ..)| token == request.raw()));
                            live.push((request.raw(), place, 2)).unwrap();
                            ring.advance();
                            count += 1;
                        }
                    }
                    1 if !live.is_empty() => {
                        let at = which.index(live.len());
                        let (token, _, awaited) = &mut live[at];
                        if *awaited > 0 {
                            prop_assert!(ring.at(*token).book());
                            *awaited -= 1;
                        }
                    }
                    2 if !live.is_empty() => {
                        let at = which.index(live.len());
                        let (token, _, awaited) = live[at];
                        prop_assert_eq!(ring.at(token).end_if_done(token), awaited == 0);
                        if awaited == 0 {
                            live.swap_remove(at);
                            dead.push(token).unwrap();
                        }
                    }
                    _ => {}
                }
                for &(token, _, awaited) in &live {
                    prop_assert!(ring.at(token).is_live(token));
                    prop_assert_eq!(ring.at(token).is_done(token), awaited == 0);
                }
                for &token in &dead {
                    prop_assert!(!ring.at(token).is_live(token));
                }
                prop_assert_eq!(ring.live(), live.len());
            }
        }

        #[test]
        fn no_made_up_token_is_live(raw: u32, taken in 0usize..8) {
            let mut ring = Ring::<(), ROWS>::new(8, |_| ());
            let mut live: heapless::Vec<u32, 8> = heapless::Vec::new();
            for _ in 0..taken {
                let (request, entry) = ring.next_free().unwrap();
                entry.arm(request.raw(), 1);
                ring.advance();
                live.push(request.raw()).unwrap();
            }
            let token = Request::from_raw(raw).raw();
            prop_assert_eq!(ring.at(token).is_live(token), live.contains(&token));
            prop_assert!(!ring.at(token).is_done(token));
            ring.cut_short();
            prop_assert_eq!(ring.at(token).is_cut_short(token), live.contains(&token));
            prop_assert!(!ring.at(token).is_live(token));
        }

        #[test]
        fn a_completion_too_many_is_noticed(events in 1u32..100) {
            let mut ring = Ring::<(), ROWS>::new(1, |_| ());
            let (request, entry) = ring.next_free().unwrap();
            entry.arm(request.raw(), events);
            for _ in 0..events {
                prop_assert!(!ring.at(0).is_done(request.raw()));
                prop_assert!(ring.at(0).book());
            }
            prop_assert!(ring.at(0).is_done(request.raw()));
            prop_assert!(!ring.at(0).book());
            prop_assert!(!ring.at(0).book());
            prop_assert!(!ring.at(0).is_done(request.raw()));
        }
    }
}
