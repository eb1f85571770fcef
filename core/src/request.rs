//! Requests: a fixed pool with take and give in constant time.
//!
//! NCCL scans its array for a free request (`net_ib.cc ncclIbGetRequest`); here free indices lie
//! on a stack. An index is what `wr_id` carries, so there are at most 256.

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

    /// Back from [`Request::raw`].
    pub const fn from_raw(raw: u32) -> Self {
        Request(raw)
    }
}

/// Up to 256 requests of kind `T`.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    entries: [Entry<T>; DEPTH_MAX],
    free: [u8; DEPTH_MAX],
    free_count: u16,
}

/// A request, live or free.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry<T> {
    /// The token while completions are awaited; otherwise a number that names no request here.
    /// One comparison thus tells a test that has to wait from all others.
    waiting: u32,
    /// The token of the request that lives here: generation times 256, plus the index. Even
    /// generations are free, odd ones taken.
    token: u32,
    /// Completions still awaited.
    events: u16,
    pub(crate) value: T,
}

const GENERATION: u32 = DEPTH_MAX as u32;

impl<T> Entry<T> {
    /// A completion came; says whether one was awaited.
    #[inline]
    pub(crate) fn book(&mut self) -> bool {
        let awaited = self.waiting == self.token;
        if awaited {
            self.events -= 1;
            if self.events == 0 {
                self.stop();
            }
        }
        awaited
    }

    /// Awaits this many completions, at least one.
    #[inline]
    pub(crate) fn arm(&mut self, events: u16) {
        self.events = events;
        self.waiting = self.token;
    }

    /// The token by which the caller names this request.
    #[inline]
    pub(crate) fn request(&self) -> Request {
        Request(self.token)
    }

    fn stop(&mut self) {
        self.waiting = !self.token;
    }

    fn is_live(&self) -> bool {
        self.token & GENERATION != 0
    }
}

impl<T: Copy + Default> Pool<T> {
    /// `capacity` is at most 256.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(DEPTH_MAX);
        let entry = |i| {
            let token = i as u32;
            Entry { waiting: !token, token, events: 0, value: T::default() }
        };
        let mut pool = Pool {
            entries: core::array::from_fn(entry),
            free: [0; DEPTH_MAX],
            free_count: capacity as u16,
        };
        for (i, slot) in pool.free[..capacity].iter_mut().rev().enumerate() {
            *slot = i as u8;
        }
        pool
    }

    /// Takes the request that was given back last; the caller fills it in and arms it.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u8, &mut Entry<T>)> {
        let top = self.free_count.checked_sub(1)?;
        let index = *self.free.get(usize::from(top))?;
        self.free_count = top;
        let entry = &mut self.entries[usize::from(index)];
        entry.token = entry.token.wrapping_add(GENERATION);
        Some((index, entry))
    }

    /// Whether `request` is live and awaits completions.
    #[inline]
    pub(crate) fn is_waiting(&self, request: &Request) -> bool {
        self.entries[request.index()].waiting == request.0
    }

    /// The live request that `request` names.
    #[inline]
    pub(crate) fn get(&self, request: &Request) -> Option<&T> {
        let entry = &self.entries[request.index()];
        (entry.token == request.0 && entry.is_live()).then_some(&entry.value)
    }

    /// The entry at `index`, as a completion's `wr_id` names it.
    #[inline]
    pub(crate) fn at(&mut self, index: u8) -> &mut Entry<T> {
        &mut self.entries[usize::from(index)]
    }

    /// Gives a live request back.
    #[inline]
    pub(crate) fn give(&mut self, request: &Request) {
        let index = request.index();
        let entry = &mut self.entries[index];
        if entry.token == request.0 && entry.is_live() {
            entry.stop();
            entry.token = entry.token.wrapping_add(GENERATION);
            if let Some(slot) = self.free.get_mut(usize::from(self.free_count)) {
                *slot = index as u8;
                self.free_count += 1;
            }
        }
    }

    /// No completion will come any more: no request waits from now on.
    pub(crate) fn stop_waiting(&mut self) {
        self.entries.iter_mut().for_each(Entry::stop);
    }

    /// The live requests; linear, for reports.
    pub(crate) fn live(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter(|entry| entry.is_live()).map(|entry| &entry.value)
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
                            entry.arm(2);
                            entry.request().raw()
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
                        let (token, ..) = live.swap_remove(which.index(live.len()));
                        pool.give(&Request::from_raw(token));
                        prop_assert!(!pool.at(token as u8).book());
                        dead.push(token).unwrap();
                    }
                    _ => {}
                }
                for &(token, value, awaited) in &live {
                    let request = Request::from_raw(token);
                    prop_assert_eq!(pool.get(&request), Some(&value));
                    prop_assert_eq!(pool.is_waiting(&request), awaited > 0);
                }
                for request in dead.iter().map(|&token| Request::from_raw(token)) {
                    prop_assert_eq!(pool.get(&request), None);
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
                live.push(pool.take().unwrap().1.request().raw()).unwrap();
            }
            let request = Request::from_raw(raw);
            prop_assert!(!pool.is_waiting(&request));
            prop_assert_eq!(pool.get(&request).is_some(), live.contains(&raw));
        }
    }
}
