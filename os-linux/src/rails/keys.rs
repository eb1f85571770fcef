//! The keys of registrations on several rails.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use invar_core::conn::RAILS_MAX;

/// The number of keys that are allocated at once.
const CHUNK: usize = 1024;
/// The most chunks.
const CHUNKS_MAX: usize = 1024;

/// All keys. Readers take no lock, since each work request needs keys.
pub(super) struct Keys(Arc<Table>);

struct Table {
    chunks: [OnceLock<Box<[Row; CHUNK]>>; CHUNKS_MAX],
    free: Mutex<Free>,
}

/// The local and the remote key on each rail.
#[derive(Default)]
struct Row {
    lkeys: [AtomicU32; RAILS_MAX],
    rkeys: [AtomicU32; RAILS_MAX],
}

struct Free {
    /// The lowest number that was never given out.
    next: u32,
    /// Numbers that were given back. They are used again as late as possible, since a peer may still know
    /// them.
    returned: VecDeque<u32>,
}

/// A number that stands for a registration on all rails. Dropping it gives the number back.
pub(super) struct Key {
    number: u32,
    table: Arc<Table>,
}

impl Keys {
    pub(super) fn new() -> Self {
        // No key is 0.
        let free = Mutex::new(Free { next: 1, returned: VecDeque::new() });
        let chunks = [const { OnceLock::new() }; CHUNKS_MAX];
        Keys(Arc::new(Table { chunks, free }))
    }

    /// Gives a number to a registration, whose keys are given for each rail: first the local one. Returns
    /// `None` if there are too many registrations.
    pub(super) fn take(&self, keys: impl Iterator<Item = (u32, u32)>) -> Option<Key> {
        let number = self.0.take()?;
        let chunk = self.0.chunks.get(number as usize / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Row::default())));
        let Row { lkeys, rkeys } = &chunk[number as usize % CHUNK];
        for ((lkey, rkey), (local, remote)) in keys.zip(lkeys.iter().zip(rkeys)) {
            local.store(lkey, Ordering::Release);
            remote.store(rkey, Ordering::Release);
        }
        Some(Key { number, table: Arc::clone(&self.0) })
    }

    /// The local key on a rail; 0 for a number that was not given out.
    pub(super) fn lkey(&self, number: u32, rail: usize) -> u32 {
        let row = self.0.row(number);
        row.map_or(0, |row| row.lkeys[rail % RAILS_MAX].load(Ordering::Acquire))
    }

    /// The remote key on a rail; 0 for a number that was not given out.
    pub(super) fn rkey(&self, number: u32, rail: usize) -> u32 {
        let row = self.0.row(number);
        row.map_or(0, |row| row.rkeys[rail % RAILS_MAX].load(Ordering::Acquire))
    }
}

impl Table {
    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if (free.next as usize) < CHUNK * CHUNKS_MAX {
            free.next += 1;
            return Some(free.next - 1);
        }
        free.returned.pop_front()
    }

    fn row(&self, number: u32) -> Option<&Row> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.get()?;
        Some(&chunk[number as usize % CHUNK])
    }
}

impl Key {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let mut free = self.table.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.returned.push_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_keys_of_its_rails_and_comes_back_last() {
        let keys = Keys::new();
        let one = keys.take([(10, 20), (11, 21)].into_iter()).unwrap();
        let two = keys.take([(30, 40)].into_iter()).unwrap();
        assert_eq!((one.number(), two.number()), (1, 2));
        assert_eq!((keys.lkey(1, 1), keys.rkey(1, 0), keys.rkey(2, 0)), (11, 20, 40));
        assert_eq!((keys.lkey(0, 0), keys.rkey(999_999, 0), keys.rkey(u32::MAX, 0)), (0, 0, 0));
        drop(one);
        assert_eq!(keys.take([(1, 1)].into_iter()).unwrap().number(), 3);
        keys.0.free.lock().unwrap().next = (CHUNK * CHUNKS_MAX) as u32;
        assert_eq!(keys.take([(1, 1)].into_iter()).map(|key| key.number()), Some(1));
    }
}
