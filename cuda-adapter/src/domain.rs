//! Numbers that tell allocations of GPU memory apart over time.

use std::collections::HashMap;

/// Numbers for allocations of GPU memory, used as the `domain` of
/// [`MrCache::lookup`](invar_core::mr_cache::MrCache::lookup).
///
/// GPU memory that is freed and allocated again often gets the same address. A registration of the old
/// memory still reaches the old bytes. CUDA gives each allocation a 64-bit number that it never reuses
/// ([`Pointer::buffer_id`](crate::Pointer::buffer_id)). A registration may have several allocations. This table maps
/// the list of their numbers to a number of 32 bits while the list has a registration.
#[derive(Debug, Default)]
pub struct BufferDomains {
    of_buffers: HashMap<Box<[u64]>, Domain>,
    last: u32,
}

#[derive(Debug)]
struct Domain {
    number: u32,
    registrations: u32,
}

impl BufferDomains {
    /// Adds a registration of allocations and returns their number. The number is never 0, which stands for host
    /// memory. The list has CUDA's numbers of the allocations, in the order of their addresses.
    pub fn acquire(&mut self, buffer_ids: &[u64]) -> u32 {
        if let Some(domain) = self.of_buffers.get_mut(buffer_ids) {
            domain.registrations += 1;
            return domain.number;
        }
        let number = self.unused();
        self.of_buffers.insert(buffer_ids.into(), Domain { number, registrations: 1 });
        number
    }

    /// Removes one registration of allocations.
    pub fn release(&mut self, buffer_ids: &[u64]) {
        if let Some(domain) = self.of_buffers.get_mut(buffer_ids) {
            domain.registrations -= 1;
            if domain.registrations == 0 {
                self.of_buffers.remove(buffer_ids);
            }
        }
    }

    /// Whether no allocation has a registration.
    pub fn is_empty(&self) -> bool {
        self.of_buffers.is_empty()
    }

    fn unused(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if self.of_buffers.values().all(|domain| domain.number != self.last) {
                return self.last;
            }
        }
    }
}
