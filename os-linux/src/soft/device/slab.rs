//! Objects under names that are not used again soon.

use std::collections::VecDeque;

/// Bits of a name that count the uses of its place.
const USE_BITS: u32 = 8;
const USE_MASK: u32 = (1 << USE_BITS) - 1;
/// The first use. With it no name is 0, which means "none" to NCCL's protocol, nor 1, which is a
/// queue pair number that InfiniBand keeps for itself.
const USE_MIN: u8 = 2;

/// Objects of one kind. A name is a place in a table and the number of the use of it, so that
/// whatever still carries the name of a removed object finds nothing:
///
/// ```text
/// 31 (23 for queue pairs)              8 7            0
/// +-------------------------------------+--------------+
/// |                place                |     use      |
/// +-------------------------------------+--------------+
/// ```
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// Places to use again, the one left longest ago first.
    free: VecDeque<u32>,
    places_max: u32,
    seed: u64,
}

struct Slot<T> {
    used: u8,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// No objects yet, at most `places_max`; `seed` decides where the uses begin.
    pub(super) const fn new(places_max: u32, seed: u64) -> Self {
        Slab { slots: Vec::new(), free: VecDeque::new(), places_max, seed }
    }

    /// Puts in what `make` makes for the name that it is given; `None` where all places are taken.
    pub(super) fn insert<E>(
        &mut self,
        make: impl FnOnce(u32) -> Result<T, E>,
    ) -> Option<Result<u32, E>> {
        let reused = self.free.front().copied();
        let place = reused.unwrap_or(self.slots.len() as u32);
        if place >= self.places_max {
            return None;
        }
        let used = match self.slots.get(place as usize) {
            Some(slot) => slot.used.checked_add(1).unwrap_or(USE_MIN),
            None => first_use(self.seed, place),
        };
        let name = place << USE_BITS | u32::from(used);
        let slot = match make(name) {
            Ok(value) => Slot { used, value: Some(value) },
            Err(error) => return Some(Err(error)),
        };
        if reused.is_some() {
            self.free.pop_front();
            self.slots[place as usize] = slot;
        } else {
            self.slots.push(slot);
        }
        Some(Ok(name))
    }

    #[inline]
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        let slot = self.slots.get((name >> USE_BITS) as usize)?;
        if u32::from(slot.used) == name & USE_MASK { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((name >> USE_BITS) as usize)?;
        if u32::from(slot.used) == name & USE_MASK { slot.value.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        self.get(name)?;
        let place = name >> USE_BITS;
        self.free.push_back(place);
        self.slots[place as usize].value.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }
}

/// Two processes that follow each other on one UDP port begin differently.
fn first_use(seed: u64, place: u32) -> u8 {
    let mixed = (seed ^ u64::from(place)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 56) as u8).max(USE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::convert::Infallible;

    fn insert(slab: &mut Slab<u32>, value: u32) -> Option<u32> {
        slab.insert(|_| Ok::<_, Infallible>(value)).map(|Ok(name)| name)
    }

    proptest! {
        #[test]
        fn only_the_names_of_what_is_there_find_it(
            seed: u64,
            moves in proptest::collection::vec(any::<Option<u8>>(), 0..300),
        ) {
            let mut slab = Slab::new(8, seed);
            let mut live = HashMap::new();
            let mut gone = Vec::new();
            for (i, step) in (0..).zip(moves) {
                match step {
                    None => {
                        let name = insert(&mut slab, i);
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
                        prop_assert_eq!(slab.remove(name), live.remove(&name));
                        prop_assert_eq!(slab.remove(name), None);
                        gone.push(name);
                    }
                }
                for (&name, &value) in &live {
                    prop_assert_eq!(slab.get(name), Some(&value));
                    prop_assert_eq!(slab.get_mut(name).copied(), Some(value));
                }
                prop_assert!(gone.iter().all(|&name| slab.get(name).is_none()));
                prop_assert_eq!(slab.iter().count(), live.len());
            }
        }
    }

    #[test]
    fn a_place_comes_back_under_another_name_each_of_254_times() {
        let mut slab = Slab::new(1, 7);
        let names: Vec<u32> = (0..255)
            .map(|i| {
                let name = insert(&mut slab, i).unwrap();
                slab.remove(name);
                name
            })
            .collect();
        assert_eq!(names[0], names[254]);
        let mut distinct = names[..254].to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct, Vec::from_iter(2..=255));
    }

    #[test]
    fn what_could_not_be_made_takes_no_place() {
        let mut slab = Slab::<u32>::new(1, 0);
        assert_eq!(slab.insert(|_| Err::<u32, _>("no")), Some(Err("no")));
        assert!(insert(&mut slab, 1).is_some());
    }
}
