//! Numbers that tell allocations of GPU memory apart over time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Numbers for allocations of GPU memory, used as the `domain` of
/// [`MrCache::lookup`](invar_core::mr_cache::MrCache::lookup).
///
/// GPU memory that is freed and allocated again often gets the same address. A registration of the old
/// memory still reaches the old bytes. CUDA gives each allocation a 64-bit number that it never reuses
/// ([`Pointer::buffer_id`](crate::Pointer::buffer_id)). A registration may have several allocations. This table maps
/// the list of their numbers to a number of 32 bits while the list has a registration.
#[derive(Debug, Default)]
pub struct BufferDomains {
    numbers: HashMap<Arc<[u64]>, u32>,
    by_number: HashMap<u32, Domain>,
    last: u32,
}

#[derive(Debug)]
struct Domain {
    buffer_ids: Arc<[u64]>,
    registrations: u32,
}

impl BufferDomains {
    /// Adds a registration of allocations and returns their number. The number is never 0, which stands for host
    /// memory. The list has CUDA's numbers of the allocations, in the order of their addresses.
    pub fn acquire(&mut self, buffer_ids: &[u64]) -> u32 {
        let number = self.numbers.get(buffer_ids).copied().unwrap_or_else(|| self.unused());
        let domain = self.by_number.entry(number).or_insert_with(|| {
            let buffer_ids = Arc::<[u64]>::from(buffer_ids);
            self.numbers.insert(Arc::clone(&buffer_ids), number);
            Domain { buffer_ids, registrations: 0 }
        });
        domain.registrations += 1;
        number
    }

    /// Removes one registration of the allocations with this number. Of 0, host memory, nothing is kept.
    pub fn release(&mut self, number: u32) {
        if let Entry::Occupied(mut domain) = self.by_number.entry(number) {
            domain.get_mut().registrations -= 1;
            if domain.get().registrations == 0 {
                self.numbers.remove(&domain.remove().buffer_ids);
            }
        }
    }

    /// Whether no allocation has a registration.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    fn unused(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if !self.by_number.contains_key(&self.last) {
                return self.last;
            }
        }
    }
}
