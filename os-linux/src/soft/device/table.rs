//! Tables of objects under random names.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use hmac_sha256::Hash;

/// Objects of one kind under random names. Nobody can guess a name, and the name of a removed object
/// finds nothing.
pub(super) struct Table<T> {
    objects: HashMap<u32, T, BuildHasherDefault<Spread>>,
    names: Names,
    len_max: usize,
}

impl<T> Table<T> {
    /// Makes an empty table for at most `len_max` objects.
    pub(super) fn new(len_max: usize, names: Names) -> Self {
        Table { objects: HashMap::default(), names, len_max }
    }

    /// Stores the object that `make` returns for a new name. Returns `None` if the table is full. The
    /// new name is never one for which `is_taken` returns true.
    pub(super) fn insert<E>(
        &mut self,
        is_taken: impl Fn(u32) -> bool,
        make: impl FnOnce(u32) -> Result<T, E>,
    ) -> Option<Result<u32, E>> {
        if self.objects.len() >= self.len_max {
            return None;
        }
        let name = loop {
            let name = self.names.next();
            if !self.objects.contains_key(&name) && !is_taken(name) {
                break name;
            }
        };
        Some(make(name).map(|object| {
            self.objects.insert(name, object);
            name
        }))
    }

    #[inline]
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        self.objects.get(&name)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.objects.get_mut(&name)
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        self.objects.remove(&name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

/// Random numbers of up to 32 bits: SHA-256 of a seed and a counter.
pub(super) struct Names {
    seed: [u8; 32],
    bits: u32,
    first: u32,
    count: u64,
}

impl Names {
    /// Makes a sequence of names with `bits` bits. A name is never 0 ("none" in NCCL's protocol) or 1 (a
    /// queue pair number that InfiniBand reserves). `kind` separates the sequences of one seed.
    pub(super) fn new(seed: &[u8; 32], kind: u8, bits: u32) -> Self {
        let mut hash = Hash::new();
        hash.update(seed);
        hash.update([kind]);
        Names { seed: hash.finalize(), bits, first: 0, count: 0 }
    }

    /// Adds `first` to each name. The lower `bits` bits of `first` must be 0.
    pub(super) fn from(self, first: u32) -> Self {
        Names { first, ..self }
    }

    fn next(&mut self) -> u32 {
        loop {
            let mut hash = Hash::new();
            hash.update(self.seed);
            hash.update(self.count.to_le_bytes());
            self.count += 1;
            let [a, b, c, d, ..] = hash.finalize();
            let name = u32::from_le_bytes([a, b, c, d]) >> (32 - self.bits);
            if name > 1 {
                return self.first | name;
            }
        }
    }
}

/// A hasher for names, which are random already: it only moves their bits to where the table reads them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("names are numbers of 32 bits");
    }

    #[inline]
    fn write_u32(&mut self, name: u32) {
        self.0 = u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::convert::Infallible;

    fn insert(table: &mut Table<u32>, value: u32) -> Option<u32> {
        table.insert(|_| false, |_| Ok::<_, Infallible>(value)).map(|Ok(name)| name)
    }

    proptest! {
        #[test]
        fn only_the_names_of_what_is_there_find_it(
            seed: [u8; 32],
            moves in proptest::collection::vec(any::<Option<u8>>(), 0..300),
        ) {
            let mut table = Table::new(8, Names::new(&seed, 0, 32));
            let mut live = HashMap::new();
            let mut gone = Vec::new();
            for (i, step) in (0..).zip(moves) {
                match step {
                    None => {
                        let name = insert(&mut table, i);
                        prop_assert_eq!(name.is_some(), live.len() < 8);
                        if let Some(name) = name {
                            prop_assert!(name >= 2 && !gone.contains(&name), "{name:#x}");
                            prop_assert_eq!(live.insert(name, i), None);
                        }
                    }
                    Some(pick) => {
                        let mut names: Vec<u32> = live.keys().copied().collect();
                        names.sort_unstable();
                        let Some(&name) = names.get(usize::from(pick) % names.len().max(1)) else {
                            continue;
                        };
                        prop_assert_eq!(table.remove(name), live.remove(&name));
                        prop_assert_eq!(table.remove(name), None);
                        gone.push(name);
                    }
                }
                for (&name, &value) in &live {
                    prop_assert_eq!(table.get(name), Some(&value));
                    prop_assert_eq!(table.get_mut(name).copied(), Some(value));
                }
                prop_assert!(gone.iter().all(|&name| table.get(name).is_none()));
                prop_assert_eq!(table.iter().count(), live.len());
            }
        }
    }

    #[test]
    fn names_use_all_of_their_bits_and_differ_by_seed_and_kind() {
        let names = |seed, kind, bits| {
            let mut names = Names::new(&[seed; 32], kind, bits);
            (0..1000).map(|_| names.next()).collect::<HashSet<_>>()
        };
        for bits in [24, 32] {
            let first = names(0, 0, bits);
            assert_eq!(first.iter().fold(0, |all, name| all | name), u32::MAX >> (32 - bits));
            assert!(first.intersection(&names(0, 1, bits)).count() < 5);
            assert!(first.intersection(&names(1, 0, bits)).count() < 5);
        }
    }

    #[test]
    fn a_name_that_is_taken_elsewhere_is_not_given() {
        let mut table = Table::new(1000, Names::new(&[7; 32], 0, 8));
        for value in 0..100 {
            let name = table.insert(|name| name % 2 == 1, |_| Ok::<_, Infallible>(value));
            assert_eq!(name.map(|Ok(name)| name % 2), Some(0));
        }
    }

    #[test]
    fn what_could_not_be_made_takes_no_room() {
        let mut table = Table::<u32>::new(1, Names::new(&[0; 32], 0, 32));
        assert_eq!(table.insert(|_| false, |_| Err::<u32, _>("no")), Some(Err("no")));
        assert!(insert(&mut table, 1).is_some());
        assert!(insert(&mut table, 2).is_none());
    }
}
