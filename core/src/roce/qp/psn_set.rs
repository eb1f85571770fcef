//! A set of PSNs within a short range.

use crate::roce::Psn;

/// Number of consecutive PSNs that the set can tell apart.
pub(super) const LEN: u32 = 1024;

/// A set of PSNs. All members must lie within [`LEN`] of each other: the caller ensures this.
#[derive(Clone, Default)]
pub(super) struct PsnSet {
    words: [u64; LEN as usize / 64],
    len: u32,
}

impl PsnSet {
    const fn index(psn: Psn) -> (usize, u32) {
        let bit = psn.get() & (LEN - 1);
        ((bit / 64) as usize, bit % 64)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        let (word, bit) = Self::index(psn);
        self.words[word] >> bit & 1 == 1
    }

    pub(super) fn insert(&mut self, psn: Psn) {
        let (word, bit) = Self::index(psn);
        self.len += u32::from(!self.contains(psn));
        self.words[word] |= 1 << bit;
    }

    /// Removes a PSN and returns whether it was a member.
    pub(super) fn remove(&mut self, psn: Psn) -> bool {
        let (word, bit) = Self::index(psn);
        let there = self.contains(psn);
        self.len -= u32::from(there);
        self.words[word] &= !(1 << bit);
        there
    }

    /// Removes the `count` PSNs that start at `from`.
    pub(super) fn remove_range(&mut self, from: Psn, count: u32) {
        for i in 0..count.min(LEN) {
            if self.len == 0 {
                break;
            }
            self.remove(from.add(i));
        }
    }

    /// Finds the first member among the `count` PSNs that start at `from`.
    pub(super) fn first_present(&self, from: Psn, count: u32) -> Option<Psn> {
        self.find(from, count, 0)
    }

    /// Finds the first PSN that is no member among the `count` PSNs that start at `from`.
    pub(super) fn first_absent(&self, from: Psn, count: u32) -> Option<Psn> {
        self.find(from, count, u64::MAX)
    }

    /// Finds the first PSN whose bit differs from `ignore`, one word at a time.
    fn find(&self, from: Psn, count: u32, ignore: u64) -> Option<Psn> {
        let count = count.min(LEN);
        let mut passed = 0;
        while passed < count {
            let (word, bit) = Self::index(from.add(passed));
            let found = (self.words[word] ^ ignore) >> bit;
            if found != 0 {
                passed += found.trailing_zeros();
                return (passed < count).then(|| from.add(passed));
            }
            passed += 64 - bit;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set(
            start: u32,
            changes in proptest::collection::vec((any::<bool>(), 0..LEN), 0..300),
            (from, count) in (0..LEN).prop_flat_map(|from| (Just(from), 0..=LEN - from)),
        ) {
            let (mut set, mut model) = (PsnSet::default(), BTreeSet::new());
            let psn = |i: u32| Psn::new(start).add(i);
            for (insert, i) in changes {
                if insert {
                    set.insert(psn(i));
                    model.insert(i);
                } else {
                    prop_assert_eq!(set.remove(psn(i)), model.remove(&i));
                }
            }
            let range = || from..from + count;
            let present = range().find(|i| model.contains(i)).map(psn);
            let absent = range().find(|i| !model.contains(i)).map(psn);
            prop_assert_eq!(set.first_present(psn(from), count), present);
            prop_assert_eq!(set.first_absent(psn(from), count), absent);
            set.remove_range(psn(from), count);
            model.retain(|i| !range().contains(i));
            prop_assert_eq!(set.is_empty(), model.is_empty());
            for i in 0..LEN {
                prop_assert_eq!(set.contains(psn(i)), model.contains(&i));
            }
        }
    }
}
