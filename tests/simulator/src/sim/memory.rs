//! Memory of simulated hosts. The histories of a thread reuse regions one after the other. New mappings
//! for each history would take a third of the time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use invar_core::nic::{Memory, NicError};
use invar_linux::memory::HostMemory;

thread_local! {
    /// The free regions, by their length.
    static FREE: RefCell<HashMap<usize, Vec<HostMemory>>> = RefCell::default();
}

/// The owner of a region. Dropping this value gives the region back.
struct Lease(HostMemory);

impl Drop for Lease {
    fn drop(&mut self) {
        let give_back = |free: &RefCell<HashMap<usize, Vec<HostMemory>>>| {
            free.borrow_mut().entry(self.0.len()).or_default().push(self.0.clone());
        };
        // A thread that is ending has no list any more. Then the region is unmapped.
        let _ = FREE.try_with(give_back);
    }
}

/// A zeroed region for one owner.
pub(super) fn alloc(len: usize) -> Result<HostMemory, NicError> {
    let whole_words = len.next_multiple_of(8);
    let used = FREE.with_borrow_mut(|free| free.get_mut(&whole_words)?.pop());
    let region = match used {
        Some(region) => {
            region.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
            region
        }
        None => HostMemory::for_nic(whole_words)?,
    };
    let start = NonNull::new(region.as_ptr()).expect("a mapping is never at 0");
    // SAFETY: the lease keeps the region mapped. Nobody else gets the region before the lease is
    // dropped.
    Ok(unsafe { HostMemory::from_raw(start, len, Lease(region)) })
}
