//! Which GPU memory is which, over time.

use std::collections::HashMap;

/// Numbers for allocations of GPU memory, to be the `domain` of
/// [`MrCache::lookup`](invar_core::mr_cache::MrCache::lookup).
///
/// GPU memory that is freed and allocated again often has the same address, while a registration
/// of it goes on to reach what lay there before. CUDA gives each allocation a number that never
/// comes again ([`Pointer::buffer_id`](crate::Pointer::buffer_id)), but of 64 bits; here it has one
/// that fits, as long as something of it is registered.
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
    /// The number of an allocation, never 0, which is that of host memory; for one registration.
    pub fn acquire(&mut self, buffer_id: u64) -> u32 {
        if let Some(domain) = self.of_buffer.get_mut(&buffer_id) {
            domain.registrations += 1;
            return domain.number;
        }
        let number = self.unused();
        self.of_buffer.insert(buffer_id, Domain { number, registrations: 1 });
        number
    }

    /// One registration less.
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
