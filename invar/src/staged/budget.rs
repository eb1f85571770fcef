//! The budget of pinned host memory, which all ends of this process share.

use std::sync::atomic::{AtomicU64, Ordering};

use invar_core::error::ErrorKind;

use crate::Error;
use crate::error::Kind;
use crate::settings::StagingSize;

static PINNED: Budget = Budget { in_use: AtomicU64::new(0) };

#[derive(Debug)]
struct Budget {
    /// Number of pinned bytes.
    in_use: AtomicU64,
}

/// The part of the budget that one end has until it is dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    budget: &'a Budget,
    slots: u64,
    slot_bytes: u64,
}

impl StagingSize {
    /// Takes the slots of an end on `device`: the number in the settings, or fewer if fewer are left.
    pub(super) fn take_share(self, device: &str) -> Result<Share<'static>, Error> {
        let (wanted, slot_bytes, bytes_max) = (self.slots, self.slot_bytes(), self.bytes_max);
        let share = PINNED.take(bytes_max, slot_bytes as u64, wanted as u64).map_err(|in_use| {
            let text = format!(
                "{device}: no pinned host memory is left to stage GPU memory through: {in_use} bytes \
                 are in use in this process, and {slot_bytes} more would be beyond \
                 INVAR_STAGING_BYTES={bytes_max}; set that higher, or INVAR_STAGING_SLOTS or \
                 INVAR_STAGING_CHUNK_BYTES lower, or close connections or collNet comms"
            );
            Error::from(Kind::Staging { kind: ErrorKind::Usage, text })
        })?;
        let slots = share.slots();
        if slots < wanted {
            log::info!(
                "{device}: GPU memory is staged through {slots} pieces of host memory instead of \
                 {wanted}: no more are left of INVAR_STAGING_BYTES={bytes_max}"
            );
        }
        Ok(share)
    }
}

impl Budget {
    /// Takes the wanted slots, or as many as fit below the limit. If none fits, the error is the number
    /// of bytes in use.
    fn take(&self, bytes_max: u64, slot_bytes: u64, wanted: u64) -> Result<Share<'_>, u64> {
        let mut slots = 0;
        self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
            slots = (bytes_max.saturating_sub(in_use) / slot_bytes).min(wanted);
            (slots > 0).then(|| in_use + slots * slot_bytes)
        })?;
        Ok(Share { budget: self, slots, slot_bytes })
    }
}

impl Share<'static> {
    /// Takes `bytes` of this process' budget. Returns `None` if fewer are left.
    pub(super) fn of_process(bytes_max: u64, bytes: u64) -> Option<Self> {
        PINNED.take(bytes_max, bytes, 1).ok()
    }
}

impl Share<'_> {
    pub(super) fn slots(&self) -> usize {
        self.slots as usize
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.in_use.fetch_sub(self.slots * self.slot_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_take_what_is_left_and_give_it_back() {
        let budget = Budget { in_use: AtomicU64::new(0) };
        let first = budget.take(100, 10, 7).unwrap();
        let second = budget.take(100, 10, 7).unwrap();
        assert_eq!((first.slots(), second.slots()), (7, 3));
        assert_eq!(budget.take(100, 10, 1).err(), Some(100));
        // One end has a higher limit, and another one a lower limit.
        assert_eq!(budget.take(119, 10, 7).map(|share| share.slots()).ok(), Some(1));
        assert_eq!(budget.take(50, 10, 7).err(), Some(100));
        drop(first);
        assert_eq!(budget.take(100, 25, 4).unwrap().slots(), 2);
        drop(second);
        assert_eq!(budget.in_use.into_inner(), 0);
    }

    #[test]
    fn ends_that_come_at_once_stay_below_the_limit_together() {
        let budget = Budget { in_use: AtomicU64::new(0) };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let _share = budget.take(50, 10, 3);
                        assert!(budget.in_use.load(Ordering::Relaxed) <= 50);
                    }
                });
            }
        });
        assert_eq!(budget.in_use.into_inner(), 0);
    }
}
