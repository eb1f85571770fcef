//! Keys of registrations. No two live registrations have the same key.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::nic::MemoryKeys;

/// The source of keys.
#[derive(Clone, Default)]
pub(super) struct Keys(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    live: HashSet<u32>,
    last: u32,
}

/// The key of a registration. Dropping it makes the key free again.
pub(super) struct Key {
    key: u32,
    keys: Keys,
}

impl Keys {
    /// Takes a key that no other live registration has. A key is never 0, because 0 means no key.
    /// Returns `None` if all keys are taken.
    pub(super) fn take(&self) -> Option<Key> {
        let mut state = self.state();
        // Among this many numbers, at least one is neither 0 nor taken.
        let tries = state.live.len() + 2;
        for _ in 0..tries {
            state.last = state.last.wrapping_add(1);
            let key = state.last;
            if key != 0 && state.live.insert(key) {
                return Some(Key { key, keys: self.clone() });
            }
        }
        None
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.keys.state().live.remove(&self.key);
    }
}

impl MemoryKeys for Key {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_live_are_not_given_out_again_when_the_numbers_have_come_around() {
        let keys = Keys::default();
        let [one, _two, three] = [(); 3].map(|()| keys.take().unwrap());
        assert_eq!((one.lkey(), three.rkey()), (1, 3));
        keys.state().last = u32::MAX - 1;
        let last = keys.take().unwrap();
        assert_eq!(last.lkey(), u32::MAX);
        drop(three);
        assert_eq!(keys.take().unwrap().lkey(), 3, "0 is no key; 1 and 2 live; 3 is free again");
        assert_eq!(keys.state().live.len(), 3, "what is dropped is free");
    }
}
