//! Requests: a fixed pool with take and give in constant time.
//!
//! NCCL scans its array for a free request (`net_ib.cc ncclIbGetRequest`); here the free ones are
//! linked. An index is what `wr_id` carries, so there are at most 256.

use crate::fifo::DEPTH_MAX;

/// Names a request that is under way; give it to `test` until that says done.
///
/// It is a number, not a resource: dropping it does not end the transfer. A token whose request
/// is done, or that belongs to another comm, is refused by `test` as unknown.
#[must_use = "a request ends only by `test`"]
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Request(u32);

impl Request {
    pub(crate) fn index(&self) -> usize {
        (self.0 % DEPTH_MAX as u32) as usize
    }

    /// As a plain number, for a caller that must pass it through a C interface.
    pub const fn raw(&self) -> u32 {
        self.0
    }

    /// Back from [`Request::raw`]. Any other number is a request that no comm knows.
    pub const fn from_raw(raw: u32) -> Self {
        Request(raw & !(DONE | FREE))
    }
}

/// Up to 256 requests of kind `T`.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    entries: [Entry<T>; DEPTH_MAX],
    /// The free entry that was given back last; [`NONE`] where there is none.
    free: u16,
}

/// A request, live or free, in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry<T> {
    /// The token of the request that lives, or will live, here, with [`DONE`] once no completion
    /// is awaited any more, and with both bits while free. One comparison thus tells a test that
    /// has to wait from all others.
    key: u32,
    /// Completions still awaited.
    events: u16,
    /// While free: the next free entry.
    next: u16,
    pub(crate) value: T,
}

const NONE: u16 = DEPTH_MAX as u16;
const GENERATION: u32 = DEPTH_MAX as u32;
const DONE: u32 = 1 << 31;
const FREE: u32 = 1 << 30;

impl<T> Entry<T> {
    /// A completion came; says whether one was awaited.
    #[inline]
    pub(crate) fn book(&mut self) -> bool {
        let Some(left) = self.events.checked_sub(1) else { return false };
        self.events = left;
        if left == 0 {
            self.key |= DONE;
        }
        true
    }

    /// Awaits this many completions, at least one. The token names the request from now on.
    #[inline]
    pub(crate) fn arm(&mut self, events: u16) -> Request {
        self.events = events;
        self.key &= !(DONE | FREE);
        Request(self.key)
    }

    /// Whether completions were still awaited when waiting stopped.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.events > 0
    }
}

impl<T: Copy + Default> Pool<T> {
    /// `capacity` is at most 256.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(DEPTH_MAX) as u16;
        let entry = |i| {
            let i = i as u16;
            let next = if i + 1 < capacity { i + 1 } else { NONE };
            Entry { key: u32::from(i) | DONE | FREE, events: 0, next, value: T::default() }
        };
        Pool { entries: core::array::from_fn(entry), free: if capacity > 0 { 0 } else { NONE } }
    }

    /// Takes the request that was given back last; the caller fills it in and arms it.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u8, &mut Entry<T>)> {
        let index = self.free;
        let entry = self.entries.get_mut(usize::from(index))?;
        self.free = entry.next;
        Some((index as u8, entry))
    }

    /// Whether `request` is live and awaits completions.
    #[inline]
    pub(crate) fn is_waiting(&self, request: &Request) -> bool {
        self.entries[request.index()].key == request.0
    }

    /// The live request that `request` names, once it does not wait.
    #[inline]
    pub(crate) fn get(&self, request: &Request) -> Option<&Entry<T>> {
        let entry = &self.entries[request.index()];
        (entry.key == request.0 | DONE).then_some(entry)
    }

    /// The entry at `index`, as a completion's `wr_id` names it.
    #[inline]
    pub(crate) fn at(&mut self, index: u8) -> &mut Entry<T> {
        &mut self.entries[usize::from(index)]
    }

    /// Gives back a request that [`Pool::get`] knows.
    #[inline]
    pub(crate) fn give(&mut self, request: &Request) {
        let entry = &mut self.entries[request.index()];
        entry.key = (request.0.wrapping_add(GENERATION)) | DONE | FREE;
        entry.events = 0;
        entry.next = self.free;
        self.free = request.index() as u16;
    }

    /// No completion will come any more: no request waits from now on.
    pub(crate) fn stop_waiting(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.key |= DONE);
    }

    /// The live requests; linear, for reports.
    pub(crate) fn live(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(|entry| entry.key & FREE == 0).map(|entry| &entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pool_agrees_with_a_list_of_live_requests(
            capacity in 1usize..=DEPTH_MAX,
            operations in prop::collection::vec(any::<(u8, prop::sample::Index)>(), 0..400),
        ) {
            let mut pool = Pool::<u32>::new(capacity);
            // Token, value, completions awaited.
            let mut live: heapless::Vec<(u32, u32, u16), DEPTH_MAX> = heapless::Vec::new();
            let mut dead: heapless::Vec<u32, 512> = heapless::Vec::new();
            for (step, (operation, which)) in operations.into_iter().enumerate() {
                match operation % 3 {
                    0 => {
                        let value = step as u32;
                        let token = pool.take().map(|(_, entry)| {
                            entry.value = value;
                            entry.arm(2).raw()
                        });
                        prop_assert_eq!(token.is_some(), live.len() < capacity);
                        if let Some(token) = token {
                            prop_assert!(live.iter().all(|&(t, ..)| t % 256 != token % 256));
                            live.push((token, value, 2)).unwrap();
                        }
                    }
                    1 if !live.is_empty() => {
                        let at = which.index(live.len());
                        let (token, _, awaited) = &mut live[at];
                        prop_assert_eq!(pool.at(*token as u8).book(), *awaited > 0);
                        *awaited = awaited.saturating_sub(1);
                    }
                    2 if !live.is_empty() => {
                        let at = which.index(live.len());
                        if live[at].2 == 0 {
                            let (token, ..) = live.swap_remove(at);
                            pool.give(&Request::from_raw(token));
                            prop_assert!(!pool.at(token as u8).book());
                            dead.push(token).unwrap();
                        }
                    }
                    _ => {}
                }
                for &(token, value, awaited) in &live {
                    let request = Request::from_raw(token);
                    prop_assert_eq!(pool.is_waiting(&request), awaited > 0);
                    let done = pool.get(&request).map(|entry| entry.value);
                    prop_assert_eq!(done, (awaited == 0).then_some(value));
                }
                for request in dead.iter().map(|&token| Request::from_raw(token)) {
                    prop_assert!(pool.get(&request).is_none());
                    prop_assert!(!pool.is_waiting(&request));
                }
                prop_assert_eq!(pool.live().count(), live.len());
            }
        }

        #[test]
        fn no_made_up_token_is_live(raw: u32, taken in 0usize..8) {
            let mut pool = Pool::<()>::new(8);
            let mut live: heapless::Vec<u32, 8> = heapless::Vec::new();
            for _ in 0..taken {
                live.push(pool.take().unwrap().1.arm(1).raw()).unwrap();
            }
            let request = Request::from_raw(raw);
            prop_assert_eq!(pool.is_waiting(&request), live.contains(&request.raw()));
            prop_assert!(pool.get(&request).is_none());
        }
    }
}
