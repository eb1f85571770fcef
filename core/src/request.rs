//! Requests: a ring of fixed size that takes and frees a request in constant time.
//!
//! NCCL scans its array for a free request (`net_ib.cc ncclIbGetRequest`). Invar takes the requests in the
//! order of a ring, because transfers end roughly in the order in which they began. The receiver has one
//! request for each row of the FIFO, and the sender has one for each message.
//!
//! The low bits of a request's token are its index in the ring. A request can begin once the previous
//! request at its index is over. A request is over only when the caller has tested it as done. If the
//! caller leaves a request untested, the ring stops at its index, and no request is free.

use core::hint::cold_path;

use crate::fifo::{DEPTH_MAX, RECVS_MAX};

/// Number of entries of a ring with one entry for each row of the FIFO.
pub(crate) const ROWS: usize = DEPTH_MAX;
/// Number of entries of a ring with one entry for each message of each row.
pub(crate) const MESSAGES: usize = DEPTH_MAX * RECVS_MAX;

/// Names a request that is under way. Pass it to `test` until `test` says done.
///
/// A `Request` is a number, not a resource: dropping it does not end the transfer. `test` refuses a
/// token as unknown if its request is over or belongs to another comm.
#[must_use = "a request ends only by `test`"]
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Request(u32);

impl Request {
    /// One more than the largest [`Request::index`].
    pub const INDEX_END: usize = MESSAGES;

    /// Index of the request among its comm's sends, receives or flushes. Two requests of one kind that
    /// are under way at the same time never share an index.
    #[inline(always)]
    pub const fn index(&self) -> usize {
        self.0 as usize % Self::INDEX_END
    }

    /// Index of the row to which the request belongs, below 256, for kinds with one request for each row.
    /// Sends over a NIC have several requests for each row, so they need [`Request::index`].
    #[inline(always)]
    pub const fn row(&self) -> usize {
        self.0 as usize % ROWS
    }

    /// The request as a plain number, for a caller that must pass it through a C interface.
    #[inline(always)]
    pub const fn raw(&self) -> u32 {
        self.0
    }

    /// Restores a request from [`Request::raw`]. Any other number gives a request that no comm knows.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Request(raw & (NUMBER | FLUSH))
    }

    /// The request of message `r` of a row; `self` must be the request of the row's first message.
    #[inline(always)]
    pub(crate) const fn message(&self, r: usize) -> Self {
        Request(self.0 + r as u32)
    }

    /// Marks the request as a flush. Flushes are counted apart from receives.
    pub(crate) const fn of_flush(self) -> Self {
        Request(self.0 | FLUSH)
    }

    /// Returns whether the request is a flush. A flush does not depend on the peer.
    pub const fn is_flush(&self) -> bool {
        self.0 & FLUSH != 0
    }
}

/// `N` requests, each with a `T` beside it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct RequestRing<T, const N: usize = ROWS> {
    entries: [Entry<T>; N],
    /// The number of the next request; its low bits are the request's index. Numbers whose low bits are
    /// no index of this ring are skipped.
    next: u32,
}

/// The entry of a request, live or free.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry<T> {
    /// The token of the request that lives here, with [`DONE`] set once all its completions have
    /// arrived, or [`CUT`] if they never will. Otherwise [`FREE`] or [`BEYOND`].
    key: u32,
    /// The number of completions still awaited, negative if too many came.
    awaited: i32,
    pub(crate) value: T,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The request awaits completions.
    Pending,
    Done,
    /// No such request lives in the entry, or it is cut short.
    Unknown,
}

const FREE: u32 = u32::MAX;
/// The key of an entry that a smaller ring does not use.
const BEYOND: u32 = FREE - 1;
const DONE: u32 = 1 << 31;
const CUT: u32 = 1 << 30;
const FLUSH: u32 = 1 << 29;
/// The bits of a request's number.
const NUMBER: u32 = FLUSH - 1;

impl<T> Entry<T> {
    /// Makes this entry the request of `token`, which awaits `events` completions, at least one.
    #[inline(always)]
    pub(crate) fn arm(&mut self, token: u32, events: u32) {
        self.key = token;
        self.awaited = events as i32;
    }

    /// Returns whether a request may begin here.
    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        self.key == FREE
    }

    /// Counts a completion, and returns whether one was awaited.
    #[inline(always)]
    pub(crate) fn book(&mut self) -> bool {
        self.awaited = self.awaited.wrapping_sub(1);
        match self.awaited {
            ..0 => return false,
            // A completion may come late, after the request was cut short.
            0 => self.key = self.key & !CUT | DONE,
            1.. => {}
        }
        true
    }

    /// Returns whether `token` lives here and its request awaits one completion more.
    #[inline(always)]
    pub(crate) fn is_last(&self, token: u32) -> bool {
        self.awaited == 1 && self.key == token
    }

    /// Returns whether all awaited completions have arrived.
    #[inline(always)]
    pub(crate) fn is_complete(&self) -> bool {
        self.awaited == 0
    }

    /// The number of completions that the request still awaits. It is 0 for a request that is done, and
    /// negative for a free entry.
    pub(crate) fn awaited(&self) -> i32 {
        self.awaited
    }

    /// The request of a message or receive that lives here, if it awaits completions.
    pub(crate) fn awaiting(&self) -> Option<Request> {
        self.is_awaiting().then(|| Request::from_raw(self.key))
    }

    /// Makes the incomplete request that lives here await `events` completions again.
    pub(crate) fn rearm(&mut self, events: u32) {
        self.awaited = events as i32;
    }

    /// Marks an incomplete request that lives here as never done.
    pub(crate) fn cut_short(&mut self) {
        if self.is_awaiting() {
            self.key |= CUT;
        }
    }

    /// Returns whether an incomplete request lives here.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.key < BEYOND && self.awaited != 0
    }

    /// Marks all awaited completions as arrived. A free entry stays free.
    #[inline(always)]
    pub(crate) fn finish(&mut self) {
        self.awaited = 0;
        self.key |= DONE;
    }

    /// Marks the request that lives here as done, even if it was [cut short](RequestRing::cut_short).
    pub(crate) fn finish_late(&mut self) {
        if self.key < BEYOND {
            self.key &= !CUT;
            self.finish();
        }
    }

    /// Returns how far the request of `token` is. The difference of key and token tells; to compare
    /// them once for each answer takes an instruction more per test.
    #[inline(always)]
    pub(crate) fn progress(&self, token: u32) -> Progress {
        match self.key ^ token {
            0 => Progress::Pending,
            DONE => Progress::Done,
            _ => {
                cold_path();
                Progress::Unknown
            }
        }
    }

    /// Returns whether `token` lives here and its request awaits completions.
    #[inline(always)]
    pub(crate) fn is_pending(&self, token: u32) -> bool {
        self.key == token
    }

    /// Returns whether `token` lives here and its request is done.
    #[inline(always)]
    pub(crate) fn is_done(&self, token: u32) -> bool {
        self.key == token | DONE
    }

    /// Returns whether `token` lived here and its request will never be done.
    pub(crate) fn is_cut_short(&self, token: u32) -> bool {
        self.key == token | CUT
    }

    /// Ends the request that lives here, and returns the value beside it.
    #[inline(always)]
    pub(crate) fn end(&mut self) -> &mut T {
        (self.key, self.awaited) = (FREE, -1);
        &mut self.value
    }

    /// Ends the request of `token` if it lives here and is done; returns whether it was.
    pub(crate) fn end_if_done(&mut self, token: u32) -> bool {
        let is_done = self.is_done(token);
        if is_done {
            self.end();
        }
        is_done
    }
}

impl<T, const N: usize> RequestRing<T, N> {
    /// Creates a ring of `depth` entries, a power of two up to `N`. `value` gives the value beside each
    /// index.
    pub(crate) fn new(depth: usize, mut value: impl FnMut(usize) -> T) -> Self {
        let key = |index| if index < depth { FREE } else { BEYOND };
        let entry = |index| Entry { key: key(index), awaited: -1, value: value(index) };
        RequestRing { entries: core::array::from_fn(entry), next: 0 }
    }

    /// The next request and its entry, if the entry is free. The caller arms the entry and then calls
    /// [`RequestRing::advance`].
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

    /// Takes the next request.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// Takes or skips the requests of the next row of messages.
    #[inline(always)]
    pub(crate) fn advance_row(&mut self) {
        self.next = self.next.wrapping_add(RECVS_MAX as u32);
    }

    /// Wraps around at the end of a ring of fewer than `N` entries. Call this after
    /// [`RequestRing::next_free`] returned `None`. Returns whether the ring was at its end.
    #[cold]
    #[inline(never)]
    pub(crate) fn come_around(&mut self) -> bool {
        let is_end = self.at(self.next).key == BEYOND;
        if is_end {
            self.next = (self.next | (N as u32 - 1)).wrapping_add(1);
        }
        is_end
    }

    /// The entry of a token or of a `wr_id`, at the index in its low bits.
    #[inline(always)]
    pub(crate) fn at(&mut self, token: u32) -> &mut Entry<T> {
        &mut self.entries[token as usize % N]
    }

    /// The entries of the row of messages to which `token` belongs.
    #[inline(always)]
    pub(crate) fn row(&mut self, token: u32) -> &mut [Entry<T>; RECVS_MAX] {
        &mut self.entries.as_chunks_mut().0[token as usize % N / RECVS_MAX]
    }

    /// Returns whether all messages of a row may begin. One comparison decides, since a branch for each
    /// entry costs more.
    #[inline(always)]
    pub(crate) fn is_row_free(&mut self, token: u32) -> bool {
        self.row(token).iter().fold(FREE, |keys, entry| keys & entry.key) == FREE
    }

    /// Marks all incomplete requests as never done, because no more completions will arrive.
    pub(crate) fn cut_short(&mut self) {
        self.entries.iter_mut().for_each(Entry::cut_short);
    }

    /// The requests that await completions, each as its number and its entry. The order is that of the
    /// entries.
    pub(crate) fn awaiting(&mut self) -> impl Iterator<Item = (u32, &mut Entry<T>)> {
        let entries = self.entries.iter_mut().filter(|entry| entry.is_awaiting());
        entries.map(|entry| (entry.key & NUMBER, entry))
    }

    /// The number of requests that await completions. The count takes linear time.
    pub(crate) fn pending(&self) -> u32 {
        self.entries.iter().filter(|entry| entry.is_awaiting()).count() as u32
    }

    /// The number of requests that are done and not tested. The count takes linear time.
    pub(crate) fn done(&self) -> u32 {
        let done = self.entries.iter().filter(|entry| entry.key & DONE != 0 && entry.key < BEYOND);
        done.count() as u32
    }

    /// The number of live requests. The count takes linear time, so use it for reports only.
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
            let mut ring = RequestRing::<usize, ROWS>::new(depth, |index| index);
            // The numbers start near their end, so that they wrap around.
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
                    prop_assert_eq!(ring.at(token).is_pending(token), awaited != 0);
                    prop_assert_eq!(ring.at(token).is_done(token), awaited == 0);
                }
                for &token in &dead {
                    let entry = ring.at(token);
                    prop_assert!(!entry.is_pending(token) && !entry.is_done(token));
                }
                prop_assert_eq!(ring.live(), live.len());
            }
        }

        #[test]
        fn no_made_up_token_is_live(raw: u32, taken in 0usize..8) {
            let mut ring = RequestRing::<(), ROWS>::new(8, |_| ());
            let mut live: heapless::Vec<u32, 8> = heapless::Vec::new();
            for _ in 0..taken {
                let (request, entry) = ring.next_free().unwrap();
                entry.arm(request.raw(), 1);
                ring.advance();
                live.push(request.raw()).unwrap();
            }
            let token = Request::from_raw(raw).raw();
            prop_assert_eq!(ring.at(token).is_pending(token), live.contains(&token));
            prop_assert!(!ring.at(token).is_done(token));
            ring.cut_short();
            prop_assert_eq!(ring.at(token).is_cut_short(token), live.contains(&token));
            prop_assert!(!ring.at(token).is_pending(token));
        }

        #[test]
        fn a_completion_too_many_is_noticed(events in 1u32..100) {
            let mut ring = RequestRing::<(), ROWS>::new(1, |_| ());
            let (request, entry) = ring.next_free().unwrap();
            entry.arm(request.raw(), events);
            for _ in 0..events {
                prop_assert!(!ring.at(0).is_done(request.raw()));
                prop_assert!(ring.at(0).book());
            }
            prop_assert!(ring.at(0).is_done(request.raw()));
            prop_assert!(!ring.at(0).book());
            prop_assert!(!ring.at(0).book());
            ring.cut_short();
            prop_assert!(!ring.at(0).is_done(request.raw()));
        }
    }
}
