//! Memory for the engine's pools.

use invar_core::proxy::{BANK_LEN, Banks};

/// Banks on the heap, without a limit on their number.
#[derive(Debug)]
pub struct HeapBanks<T>(Vec<Box<[T; BANK_LEN]>>);

impl<T> Default for HeapBanks<T> {
    fn default() -> Self {
        HeapBanks(Vec::new())
    }
}

impl<T: Default> Banks<T> for HeapBanks<T> {
    fn bank(&self, bank: usize) -> Option<&[T; BANK_LEN]> {
        self.0.get(bank).map(Box::as_ref)
    }

    fn bank_mut(&mut self, bank: usize) -> Option<&mut [T; BANK_LEN]> {
        self.0.get_mut(bank).map(Box::as_mut)
    }

    fn grow(&mut self) -> bool {
        // The bank is built as a slice, because an array may be too large for the stack.
        let bank: Box<[T]> = (0..BANK_LEN).map(|_| T::default()).collect();
        bank.try_into().map(|bank| self.0.push(bank)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use invar_core::proxy::Pool;
    use proptest::prelude::*;

    #[test]
    fn what_is_in_a_bank_stays_where_it_is() {
        let mut banks = HeapBanks::<u64>::default();
        assert!(banks.at(0).is_none());
        assert!(banks.grow());
        let first: *const u64 = banks.at(0).unwrap();
        for _ in 0..100 {
            assert!(banks.grow());
        }
        assert_eq!(banks.at(0).map(std::ptr::from_ref), Some(first));
        *banks.at_mut(129).unwrap() = 7;
        assert_eq!(banks.bank(1).unwrap()[1], 7);
        assert!(banks.at(101 * 128).is_none());
    }

    proptest! {
        #[test]
        fn a_pool_gives_each_element_to_one_at_a_time(
            acts in prop::collection::vec(prop_oneof![Just(None), any::<usize>().prop_map(Some)], 0..1000),
        ) {
            let mut pool = Pool::new(HeapBanks::default());
            let mut taken: Vec<(u32, u64)> = Vec::new();
            for (value, act) in (1u64..).zip(acts) {
                match act.and_then(|n| n.checked_rem(taken.len())) {
                    Some(n) => {
                        let (index, value) = taken.swap_remove(n);
                        prop_assert_eq!(pool.get(index), Some(&value));
                        prop_assert!(pool.give_back(index));
                        prop_assert!(!pool.give_back(index) && pool.get(index).is_none());
                    }
                    None => {
                        let (index, place) = pool.take().unwrap();
                        *place = value;
                        prop_assert!(taken.iter().all(|(other, _)| *other != index));
                        taken.push((index, value));
                    }
                }
            }
            for (index, value) in taken {
                prop_assert_eq!(pool.get_mut(index), Some(&mut { value }));
            }
        }
    }
}
