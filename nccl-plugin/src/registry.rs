//! Numbers by which NCCL holds objects that no fast path looks up.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lowest bit of the kind of object in a number. The numbers below are handles of comms.
const KIND_SHIFT: u32 = 48;

/// NCCL's name of an object. A number is never reused, and it is never the handle of a comm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u64);

impl Number {
    /// Makes the number that C holds as a pointer.
    pub(crate) fn from_ptr(number: *mut c_void) -> Self {
        Number(number.addr() as u64)
    }

    /// Makes the pointer as which C holds the number.
    pub(crate) fn to_ptr(self) -> *mut c_void {
        ptr::without_provenance_mut(self.0 as usize)
    }

    /// Makes the number that [`bits`](Self::bits) returned.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Number(bits)
    }

    /// Returns the number as an integer.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// A table of objects of one kind by number, behind a lock.
pub(crate) struct Registry<T>(Mutex<Entries<T>>);

struct Entries<T> {
    /// In the order of their numbers, so that a search is short, and a table of few objects never allocates.
    entries: VecDeque<(Number, Arc<T>)>,
    next: Number,
}

impl<T> Entries<T> {
    fn find(&self, number: Number) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |(number, _)| *number).ok()
    }
}

impl<T> Registry<T> {
    /// Creates an empty table. `kind` is at least 1; each kind of object has its own, so a number of
    /// one kind names nothing of another.
    pub(crate) const fn new(kind: u64) -> Self {
        let next = Number(kind << KIND_SHIFT);
        Registry(Mutex::new(Entries { entries: VecDeque::new(), next }))
    }

    /// Adds the object that `make` returns for a new number, and returns the number. `make` holds the
    /// table's lock.
    pub(crate) fn put(&self, make: impl FnOnce(Number) -> Arc<T>) -> Number {
        let mut entries = self.lock();
        let number = entries.next;
        entries.next.0 += 1;
        entries.entries.push_back((number, make(number)));
        number
    }

    /// Returns the object with a number.
    pub(crate) fn get(&self, number: Number) -> Option<Arc<T>> {
        self.read(number, Arc::clone)
    }

    /// Returns what `read` makes of the object with a number. `read` holds the table's lock.
    pub(crate) fn read<R>(&self, number: Number, read: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
        let entries = self.lock();
        let at = entries.find(number)?;
        Some(read(&entries.entries[at].1))
    }

    /// Returns all objects for which `is_wanted` holds. `is_wanted` runs under the table's lock.
    pub(crate) fn all(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let entries = self.lock();
        let wanted = entries.entries.iter().filter(|(_, entry)| is_wanted(entry));
        wanted.map(|(_, entry)| Arc::clone(entry)).collect()
    }

    /// Removes an object and returns it.
    pub(crate) fn remove(&self, number: Number) -> Option<Arc<T>> {
        let mut entries = self.lock();
        let at = entries.find(number)?;
        entries.entries.remove(at).map(|(_, entry)| entry)
    }

    /// Removes all objects for which `is_out` holds.
    pub(crate) fn remove_all(&self, is_out: impl Fn(&T) -> bool) {
        let mut out = Vec::new();
        self.lock().entries.retain(|(_, entry)| {
            let stays = !is_out(entry);
            if !stays {
                out.push(Arc::clone(entry));
            }
            stays
        });
        // An object may take its time to end, so it ends without the lock.
        drop(out);
    }

    /// Removes all objects.
    pub(crate) fn clear(&self) {
        self.remove_all(|_| true);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
