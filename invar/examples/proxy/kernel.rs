//! The part of a GPU's kernel: it fills and empties slots, and waits on flags in memory.

use std::error::Error;
use std::time::Instant;

use invar_core::math::STEPS;

use crate::LIMIT;
use crate::ring::{STEP_BYTES, SharedRing};

/// One end of an operation, at a slice after the other.
pub(crate) struct Slices<'r> {
    pub(crate) ring: &'r SharedRing,
    /// The first step of the next slice.
    pub(crate) step: u64,
    /// Steps of a slice.
    pub(crate) steps: u64,
}

impl Slices<'_> {
    /// Elements that fit in a slice.
    pub(crate) fn room(&self) -> usize {
        self.steps as usize * STEP_BYTES / size_of::<u32>()
    }

    /// Fills the next slice, once the network has emptied it.
    pub(crate) fn send(&mut self, elements: &[u32]) -> Result<(), Box<dyn Error>> {
        assert!(elements.len() <= self.room(), "a slice has no room for {}", elements.len());
        let end = self.step + self.steps;
        until(|| self.ring.head() + u64::from(STEPS) >= end)?;
        let (slot, len) = (self.ring.slot(self.step), size_of_val(elements));
        // SAFETY: a slice's slots lie one behind the other, and are this kernel's until it says that they
        // are filled.
        unsafe { slot.as_ptr().copy_from_nonoverlapping(elements.as_ptr().cast(), len) };
        self.ring.fill(self.step, self.steps, len as u32);
        self.step = end;
        Ok(())
    }

    /// Waits for the next slice and copies it to `elements`, which must be as long.
    pub(crate) fn recv(&mut self, elements: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let (end, len) = (self.step + self.steps, size_of_val(elements));
        until(|| self.ring.tail() >= end)?;
        let size = self.ring.size(self.step) as usize;
        if size != len || elements.len() > self.room() {
            return Err(format!("a slice of {size} bytes where {len} are to come").into());
        }
        let slot = self.ring.slot(self.step);
        // SAFETY: as above; this kernel's until it says that they are empty.
        unsafe { slot.as_ptr().copy_to_nonoverlapping(elements.as_mut_ptr().cast(), len) };
        self.ring.empty(end);
        self.step = end;
        Ok(())
    }
}

/// Waits for a flag. A GPU would spin; here the others need the processors too.
fn until(is_so: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > LIMIT {
            return Err(format!("nothing was moved for {LIMIT:?}; is the proxy alive?").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
