//! Memory of simulated hosts. The histories of a thread use the same regions one after the other,
//! since mapping new ones for each would take a third of the time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use invar_core::nic::{Memory, NicError};
use invar_linux::memory::HostMemory;

thread_local! {
    /// Regions that nobody uses, by their length.
    static FREE: RefCell<HashMap<usize, Vec<HostMemory>>> = RefCell::default();
}

/// The user of a region; gives it back when dropped.
struct Lease(HostMemory);

impl Drop for Lease {
    fn drop(&mut self) {
        let give_back = |free: &RefCell<HashMap<usize, Vec<HostMemory>>>| {
            free.borrow_mut().entry(self.0.len()).or_default().push(self.0.clone());
        };
        // A thread that is ending has no list any more: then the region is unmapped.
        let _ = FREE.try_with(give_back);
    }
}

/// A zeroed region for one user.
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
    // SAFETY: the lease keeps the region mapped; before it is dropped nobody else gets the region.
    Ok(unsafe { HostMemory::from_raw(start, len, Lease(region)) })
}
