//! The buffers of work requests that have several.

use invar_core::nic::{NicError, Sge, Verb};

/// Maximum number of buffers of a work request.
pub const SGES_MAX: u32 = 32;

/// Lists of buffers, by slot of a work queue.
pub(super) struct Lists {
    pub(super) sges: Vec<Sge>,
    pub(super) slot_sges: usize,
}

impl Lists {
    /// Makes room for `slots` lists of up to `sges_max` buffers. One buffer needs no list.
    pub(super) fn new(slots: usize, sges_max: u32) -> Self {
        let slot_sges = if sges_max > 1 { sges_max as usize } else { 0 };
        Lists { sges: vec![Sge::default(); slots * slot_sges], slot_sges }
    }

    /// Returns the length of all buffers together.
    ///
    /// # Errors
    /// `EINVAL`: there are more buffers than a slot has room for, or more than 2^32 - 1 bytes.
    pub(super) fn check(&self, list: &[Sge], verb: Verb) -> Result<u32, NicError> {
        let refuse = |cause| NicError::new(verb, libc::EINVAL, cause);
        if list.len() > self.slot_sges {
            return Err(refuse("more buffers than the queue pair was created for"));
        }
        let length: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        u32::try_from(length).map_err(|_| refuse("message exceeds 2^31 bytes"))
    }

    /// Keeps a list that [`Lists::check`] accepted.
    pub(super) fn set(&mut self, slot: u16, list: &[Sge]) {
        let start = usize::from(slot) * self.slot_sges;
        let room = &mut self.sges[start..start + self.slot_sges];
        let (used, unused) = room.split_at_mut(list.len());
        used.copy_from_slice(list);
        unused.fill(Sge::default());
    }

    /// Returns a list that [`Lists::set`] keeps. Buffers behind its end are empty.
    pub(super) fn get(&self, slot: u16) -> &[Sge] {
        let start = usize::from(slot) * self.slot_sges;
        &self.sges[start..start + self.slot_sges]
    }

    /// Returns the pieces of buffers that `len` bytes from `offset` on lie in, without empty ones. The
    /// bytes must lie in the list.
    pub(super) fn pieces(&self, slot: u16, offset: u32, len: u32) -> impl Iterator<Item = Sge> {
        let start = usize::from(slot) * self.slot_sges;
        let (mut skip, mut left) = (offset, len);
        self.sges[start..start + self.slot_sges].iter().filter_map(move |sge| {
            let skipped = skip.min(sge.length);
            skip -= skipped;
            let length = (sge.length - skipped).min(left);
            left -= length;
            let addr = sge.addr.wrapping_add(skipped.into());
            (length > 0).then_some(Sge { addr, length, lkey: sge.lkey })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_pieces_of_a_range_are_its_bytes_in_order(
            lens in proptest::collection::vec(0u32..9, 0..5),
            from: prop::sample::Index,
            to: prop::sample::Index,
            slot in 0u16..4,
        ) {
            // Each byte of the list has an address of its own.
            let list: Vec<Sge> = lens.iter().zip(1..).map(|(&length, at)| {
                Sge { addr: at * 100, length, lkey: at as u32 }
            }).collect();
            let bytes = |sge: &Sge| (sge.addr..sge.addr + u64::from(sge.length)).collect::<Vec<_>>();
            let all: Vec<u64> = list.iter().flat_map(bytes).collect();
            let mut lists = Lists::new(4, 5);
            prop_assert_eq!(lists.check(&list, Verb::PostSend), Ok(all.len() as u32));
            lists.set(slot, &[Sge { addr: 7, length: 9, lkey: 9 }; 5]);
            lists.set(slot, &list);
            let (from, to) = (from.index(all.len() + 1), to.index(all.len() + 1));
            let (from, to) = (from.min(to), from.max(to));
            let pieces: Vec<Sge> = lists.pieces(slot, from as u32, (to - from) as u32).collect();
            prop_assert_eq!(&pieces.iter().flat_map(bytes).collect::<Vec<_>>(), &all[from..to]);
            prop_assert!(pieces.iter().all(|sge| sge.length > 0 && u64::from(sge.lkey) == sge.addr / 100));
        }
    }

    #[test]
    fn too_many_buffers_or_bytes_are_refused() {
        let lists = Lists::new(1, 2);
        let sge = Sge { addr: 0, length: 1 << 31, lkey: 0 };
        assert!(lists.check(&[sge; 3], Verb::PostSend).is_err());
        assert!(lists.check(&[sge; 2], Verb::PostSend).is_err());
        assert_eq!(lists.check(&[sge; 1], Verb::PostSend), Ok(1 << 31));
        assert!(Lists::new(1, 1).check(&[sge; 2], Verb::PostSend).is_err());
    }
}
