//! Counts of memory that this process has registered and staged, for the flight recorder and the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use invar_core::metrics::MemoryNumbers;

/// A number that only grows.
pub(crate) struct Count(AtomicU64);

pub(crate) static REGISTRATIONS: Count = Count(AtomicU64::new(0));
pub(crate) static REGISTRATION_HITS: Count = Count(AtomicU64::new(0));
pub(crate) static STAGED_BYTES: Count = Count(AtomicU64::new(0));

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the numbers as they are now.
pub(crate) fn now() -> MemoryNumbers {
    MemoryNumbers {
        registrations: REGISTRATIONS.get(),
        registration_hits: REGISTRATION_HITS.get(),
        staged_bytes: STAGED_BYTES.get(),
    }
}
