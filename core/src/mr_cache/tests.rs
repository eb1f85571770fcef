extern crate std;

use std::format;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

type Cache = MrCache<u32, Vec<Slot<u32>>>;

const RW: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn slots(count: usize) -> Vec<Slot<u32>> {
    (0..count).map(|_| Slot::default()).collect()
}

fn cache(count: usize) -> Cache {
    MrCache::new(slots(count), 4096).unwrap()
}

/// Looks up, and on a miss inserts `mr`.
fn register(cache: &mut Cache, access: Access, addr: u64, len: u64, mr: u32) -> MrHandle {
    match cache.lookup(0, access, addr, len).unwrap() {
        Lookup::Hit(handle) => handle,
        Lookup::Miss(pages) => cache.insert(pages, mr).unwrap().handle,
    }
}

#[test]
fn a_part_of_a_registration_is_a_hit_and_keeps_it_alive() {
    let mut cache = cache(4);
    let whole = register(&mut cache, RW, 0x10000, 0x8000, 1);
    let part = register(&mut cache, RW, 0x13004, 0x1000, 2);
    assert_eq!((cache.len(), cache.get(part)), (1, Some(&1)));
    assert_eq!(cache.release(whole), Ok(None));
    assert_eq!(cache.release(part), Ok(Some(1)));
    assert!(cache.is_empty());
}

#[test]
fn access_and_domain_set_registrations_apart() {
    let mut cache = cache(4);
    let _ = register(&mut cache, RW, 0, 4096, 1);
    for (domain, access) in [(0, RW | Access::RELAXED_ORDERING), (0, Access::LOCAL_WRITE), (1, RW)]
    {
        let Lookup::Miss(pages) = cache.lookup(domain, access, 0, 4096).unwrap() else {
            panic!("{domain} {access:?} hit another class");
        };
        assert_eq!((pages.domain(), pages.access()), (domain, access));
    }
}

#[test]
fn of_two_that_register_the_same_the_second_gets_its_own_back() {
    let mut cache = cache(4);
    let Lookup::Miss(pages) = cache.lookup(0, RW, 1, 1).unwrap() else { panic!("hit") };
    let first = cache.insert(pages, 1).unwrap();
    let second = cache.insert(pages, 2).unwrap();
    assert_eq!((first.unused, second.unused), (None, Some(2)));
    assert_eq!(first.handle, second.handle);
    assert_eq!(cache.iter().map(|(_, refs, mr)| (refs, *mr)).collect::<Vec<_>>(), [(2, 1)]);
}

#[test]
fn a_handle_is_stale_once_released_even_when_its_slot_is_used_again() {
    let mut cache = cache(1);
    let old = register(&mut cache, RW, 0, 1, 1);
    assert_eq!(cache.release(old), Ok(Some(1)));
    let new = register(&mut cache, RW, 0, 1, 2);
    assert_eq!(old.index, new.index);
    let error = cache.release(old).unwrap_err();
    assert_eq!(format!("{error}"), "MR cache: handle 0.0 is not a live registration");
    assert_eq!((cache.get(old), cache.get(new)), (None, Some(&2)));
}

#[test]
fn a_full_cache_gives_the_registration_back_and_grows() {
    let mut cache = cache(1);
    let first = register(&mut cache, RW, 0, 1, 1);
    let Lookup::Miss(pages) = cache.lookup(0, RW, 4096, 1).unwrap() else { panic!("hit") };
    assert_eq!(cache.insert(pages, 2), Err(Full { mr: 2 }));
    assert_eq!(cache.grow(slots(0)).map_err(|storage| storage.len()).unwrap_err(), 0);
    assert_eq!(cache.grow(slots(3)).unwrap().len(), 1);
    let second = cache.insert(pages, 2).unwrap().handle;
    assert_eq!((cache.get(first), cache.get(second)), (Some(&1), Some(&2)));
    assert_eq!(register(&mut cache, RW, 5, 5, 3), first);
}

#[test]
fn storage_that_held_something_is_emptied() {
    let mut storage = slots(2);
    let mut cache = MrCache::new(storage.as_mut_slice(), 4096).unwrap();
    let Lookup::Miss(pages) = cache.lookup(0, RW, 0, 1).unwrap() else { panic!("hit") };
    let old = cache.insert(pages, 1).unwrap().handle;
    let cache = MrCache::new(storage, 4096).unwrap();
    assert_eq!((cache.len(), cache.get(old), cache.iter().count()), (0, None, 0));
}

#[test]
fn impossible_ranges_are_errors() {
    let mut cache = cache(1);
    assert_eq!(cache.lookup(0, RW, 5, 0), Err(MrCacheError::EmptyRange { addr: 5 }));
    for (addr, len) in [(u64::MAX, 2), (1, u64::MAX), (u64::MAX - 4095, 4096), (u64::MAX, 1)] {
        assert_eq!(cache.lookup(0, RW, addr, len), Err(MrCacheError::RangeOverflow { addr, len }));
    }
    let last_but_one = u64::MAX - 2 * 4096 + 1;
    assert!(matches!(cache.lookup(0, RW, last_but_one, 4096), Ok(Lookup::Miss(_))));
    assert_eq!(MrCache::new(slots(1), 4095).unwrap_err(), MrCacheError::PageSize(4095));
}

/// Checks order, balance and reach of the subtree at `at`; its height and furthest slot.
fn check_subtree(slots: &[Slot<u32>], at: u32) -> (u8, Option<PageRange>) {
    let Some(slot) = slots.get(at as usize) else { return (0, None) };
    let [left, right] = slot.node.child;
    let range_of = |child: u32| slots.get(child as usize).map(|slot| slot.range);
    assert!(range_of(left).is_none_or(|range| range < slot.range));
    assert!(range_of(right).is_none_or(|range| range > slot.range));
    let (left_height, left_reach) = check_subtree(slots, left);
    let (right_height, right_reach) = check_subtree(slots, right);
    assert!(left_height.abs_diff(right_height) <= 1, "{left_height} beside {right_height}");
    let furthest = |ranges: [Option<PageRange>; 2]| {
        ranges.into_iter().flatten().max_by_key(|range| (range.class, range.end))
    };
    let reach = furthest([left_reach, Some(slot.range)]);
    let key = |range: Option<PageRange>| range.map(|range| (range.class, range.end));
    assert_eq!(key(range_of(slot.node.furthest_left)), key(reach));
    let reach = furthest([reach, right_reach]);
    assert_eq!(key(range_of(slot.node.furthest)), key(reach));
    (1 + left_height.max(right_height), reach)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_tree_stays_ordered_and_balanced(
        steps in prop::collection::vec((any::<bool>(), 0..3u32, 0..64u64, 1..32u64), 0..150),
    ) {
        let mut cache = cache(150);
        let mut held = Vec::new();
        for (release, domain, page, pages) in steps {
            if release && !held.is_empty() {
                let handle = held.swap_remove(page as usize % held.len());
                prop_assert!(cache.release(handle).is_ok());
            } else {
                held.push(match cache.lookup(domain, RW, page * 4096, pages * 4096).unwrap() {
                    Lookup::Hit(handle) => handle,
                    Lookup::Miss(pages) => cache.insert(pages, 0).unwrap().handle,
                });
            }
            check_subtree(&cache.slots, cache.root);
        }
    }
}
