//! Numbers that tell allocations of GPU memory apart over time.

use std::collections::HashMap;

/// Numbers for allocations of GPU memory, used as the `domain` of
/// [`MrCache::lookup`](invar_core::mr_cache::MrCache::lookup).
///
/// GPU memory that is freed and allocated again often gets the same address. A registration of the old
/// memory still reaches the old bytes. CUDA gives each allocation a 64-bit number that it never reuses
/// ([`Pointer::buffer_id`](crate::Pointer::buffer_id)). This table maps that number to one of 32 bits
/// while the allocation has a registration.
#[derive(Debug, Default)]
pub struct BufferDomains {
    of_buffer: HashMap<u64, Domain>,
    last: u32,
}

#[derive(Debug)]
struct Domain {
    number: u32,
    registrations: u32,
}

impl BufferDomains {
    /// Adds a registration of an allocation and returns the allocation's number. The number is never 0,
    /// which stands for host memory.
    pub fn acquire(&mut self, buffer_id: u64) -> u32 {
        if let Some(domain) = self.of_buffer.get_mut(&buffer_id) {
            domain.registrations += 1;
            return domain.number;
        }
        let number = self.unused();
        self.of_buffer.insert(buffer_id, Domain { number, registrations: 1 });
        number
    }

    /// Removes one registration of an allocation.
    pub fn release(&mut self, buffer_id: u64) {
        if let Some(domain) = self.of_buffer.get_mut(&buffer_id) {
            domain.registrations -= 1;
            if domain.registrations == 0 {
                self.of_buffer.remove(&buffer_id);
            }
        }
    }

    /// Whether no allocation has a registration.
    pub fn is_empty(&self) -> bool {
        self.of_buffer.is_empty()
    }

    fn unused(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if self.of_buffer.values().all(|domain| domain.number != self.last) {
                return self.last;
            }
        }
    }
}
