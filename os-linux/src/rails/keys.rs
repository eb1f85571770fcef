//! The keys of registrations on several rails.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use invar_core::conn::RAILS_MAX;

/// The number of keys that are allocated at once.
const CHUNK: usize = 1024;
/// The most chunks.
const CHUNKS_MAX: usize = 1024;
/// The most rows. A number's remainder is its row. The quotient counts how often the row was given back, so a number
/// of an earlier registration is no number of a later one.
const ROWS_MAX: u32 = (CHUNK * CHUNKS_MAX) as u32;

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
    /// The next numbers of rows that were given back, in that order. A chunk of them waits.
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
        let (chunk, row) = place(number);
        let chunk = self.0.chunks.get(chunk)?;
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Row::default())));
        let Row { lkeys, rkeys } = &chunk[row];
        for ((lkey, rkey), (local, remote)) in keys.zip(lkeys.iter().zip(rkeys)) {
            local.store(lkey, Ordering::Release);
            remote.store(rkey, Ordering::Release);
        }
        Some(Key { number, table: Arc::clone(&self.0) })
    }

    /// The local key on a rail; 0 for a number that was not given out.
    #[inline]
    pub(super) fn lkey(&self, number: u32, rail: usize) -> u32 {
        let row = self.0.row(number);
        row.map_or(0, |row| row.lkeys[rail % RAILS_MAX].load(Ordering::Acquire))
    }

    /// The remote keys on all rails; 0 for a number that was not given out.
    #[inline]
    pub(super) fn rkeys(&self, number: u32) -> [u32; RAILS_MAX] {
        let row = self.0.row(number);
        row.map_or([0; RAILS_MAX], |row| {
            row.rkeys.each_ref().map(|key| key.load(Ordering::Acquire))
        })
    }
}

impl Table {
    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.returned.len() < CHUNK && free.next < ROWS_MAX {
            free.next += 1;
            return Some(free.next - 1);
        }
        free.returned.pop_front()
    }

    #[inline]
    fn row(&self, number: u32) -> Option<&Row> {
        let (chunk, row) = place(number);
        Some(&self.chunks.get(chunk)?.get()?[row])
    }
}

/// The chunk of a number, and the row in the chunk.
const fn place(number: u32) -> (usize, usize) {
    let row = (number % ROWS_MAX) as usize;
    (row / CHUNK, row % CHUNK)
}

impl Key {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        let mut free = self.table.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.returned.push_back(self.number.wrapping_add(ROWS_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_keys_of_its_rails() {
        let keys = Keys::new();
        let one = keys.take([(10, 20), (11, 21)].into_iter()).unwrap();
        let two = keys.take([(30, 40)].into_iter()).unwrap();
        assert_eq!((one.number(), two.number()), (1, 2));
        assert_eq!((keys.lkey(1, 1), keys.rkeys(1)[0], keys.rkeys(2)[0]), (11, 20, 40));
        let none = [0; RAILS_MAX];
        assert_eq!((keys.lkey(0, 0), keys.rkeys(999_999), keys.rkeys(u32::MAX)), (0, none, none));
    }

    #[test]
    fn a_row_that_was_given_back_gets_another_number_and_keeps_the_table_small() {
        let keys = Keys::new();
        let mut numbers = std::collections::HashSet::new();
        for _ in 0..10 * CHUNK {
            let key = keys.take([(7, 8)].into_iter()).unwrap();
            assert_eq!((keys.lkey(key.number(), 0), keys.rkeys(key.number())[0]), (7, 8));
            assert!(numbers.insert(key.number()));
        }
        assert!(keys.0.chunks[2..].iter().all(|chunk| chunk.get().is_none()));
    }

    #[test]
    fn when_all_rows_are_taken_there_is_no_number_until_one_is_given_back() {
        let keys = Keys::new();
        let one = keys.take([(1, 1)].into_iter()).unwrap();
        keys.0.free.lock().unwrap().next = ROWS_MAX;
        assert!(keys.take([(1, 1)].into_iter()).is_none());
        drop(one);
        assert_eq!(keys.take([(1, 1)].into_iter()).map(|key| key.number()), Some(1 + ROWS_MAX));
    }
}
