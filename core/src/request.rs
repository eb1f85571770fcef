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

#[derive(Debug)]
struct Entry<T> {
    /// The token of the request that lives here: generation times 256, plus the index. Even
    /// generations are free, odd ones taken.
    token: u32,
    value: T,
}

const GENERATION: u32 = DEPTH_MAX as u32;

impl<T: Copy + Default> Pool<T> {
    /// `capacity` is at most 256.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(DEPTH_MAX);
        let mut pool = Pool {
            entries: core::array::from_fn(|i| Entry { token: i as u32, value: T::default() }),
            free: [0; DEPTH_MAX],
            free_count: capacity as u16,
        };
        for (i, slot) in pool.free[..capacity].iter_mut().rev().enumerate() {
            *slot = i as u8;
        }
        pool
    }

    /// Takes the request that was given back last; the caller fills it in.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(u8, &mut T)> {
        let top = self.free_count.checked_sub(1)?;
        let index = *self.free.get(usize::from(top))?;
        self.free_count = top;
        let entry = &mut self.entries[usize::from(index)];
        entry.token = entry.token.wrapping_add(GENERATION);
        Some((index, &mut entry.value))
    }

    /// The token by which the caller names the request at `index`.
    #[inline]
    pub(crate) fn token(&self, index: u8) -> Request {
        Request(self.entries[usize::from(index)].token)
    }

    /// The live request that `token` names.
    #[inline]
    pub(crate) fn get(&self, token: &Request) -> Option<&T> {
        let entry = &self.entries[token.index()];
        (entry.token == token.0 && is_live(entry.token)).then_some(&entry.value)
    }

    /// The live request at `index`, as a completion's `wr_id` names it.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        let entry = self.entries.get_mut(index)?;
        is_live(entry.token).then_some(&mut entry.value)
    }

    /// Gives a live request back.
    #[inline]
    pub(crate) fn give(&mut self, token: &Request) {
        let index = token.index();
        let entry = &mut self.entries[index];
        if entry.token == token.0 && is_live(entry.token) {
            entry.token = entry.token.wrapping_add(GENERATION);
            if let Some(slot) = self.free.get_mut(usize::from(self.free_count)) {
                *slot = index as u8;
                self.free_count += 1;
            }
        }
    }

    /// The live requests with their indices; linear, for reports.
    pub(crate) fn live(&self) -> impl Iterator<Item = (usize, &T)> {
        let entries = self.entries.iter().enumerate();
        entries.filter(|(_, e)| is_live(e.token)).map(|(i, e)| (i, &e.value))
    }
}

const fn is_live(token: u32) -> bool {
    token & GENERATION != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pool_agrees_with_a_list_of_live_requests(
            capacity in 1usize..=DEPTH_MAX,
            operations in prop::collection::vec(any::<(bool, prop::sample::Index)>(), 0..400),
        ) {
            let mut pool = Pool::<u32>::new(capacity);
            let mut live: heapless::Vec<(u32, u32), DEPTH_MAX> = heapless::Vec::new();
            let mut dead: heapless::Vec<u32, 512> = heapless::Vec::new();
            for (step, (take, which)) in operations.into_iter().enumerate() {
                if take {
                    let got = pool.take().map(|(index, value)| {
                        *value = step as u32;
                        index
                    });
                    prop_assert_eq!(got.is_some(), live.len() < capacity);
                    if let Some(index) = got {
                        let token = pool.token(index).raw();
                        prop_assert!(live.iter().all(|&(t, _)| t % 256 != token % 256));
                        live.push((token, step as u32)).unwrap();
                    }
                } else if !live.is_empty() {
                    let (token, value) = live.swap_remove(which.index(live.len()));
                    prop_assert_eq!(pool.get(&Request::from_raw(token)), Some(&value));
                    pool.give(&Request::from_raw(token));
                    dead.push(token).unwrap();
                }
                for &(token, value) in &live {
                    prop_assert_eq!(pool.get(&Request::from_raw(token)), Some(&value));
                }
                for &token in &dead {
                    prop_assert_eq!(pool.get(&Request::from_raw(token)), None);
                }
                prop_assert_eq!(pool.live().count(), live.len());
            }
        }
    }
}
