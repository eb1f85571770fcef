extern crate std;

use std::format;
use std::vec::Vec;

use super::*;

// The model of `tests/simulator/src/model/mr_cache.rs` says which ranges are hits and when registrations end.

type Cache = MrCache<u32, Vec<MrSlot<u32>>>;

const RW: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

fn slots(count: usize) -> Vec<MrSlot<u32>> {
    (0..count).map(|_| MrSlot::default()).collect()
}

fn cache(count: usize) -> Cache {
    MrCache::new(slots(count), 4096).unwrap()
}

/// Looks a range up, and inserts `mr` if it is missing.
fn register(cache: &mut Cache, addr: u64, len: u64, mr: u32) -> MrHandle {
    match cache.lookup(0, RW, addr, len).unwrap() {
        Lookup::Hit(handle) => handle,
        Lookup::Miss(pages) => cache.insert(pages, mr).unwrap().handle,
    }
}

#[test]
fn a_handle_is_stale_once_released_even_when_its_slot_is_used_again() {
    let mut cache = cache(1);
    let old = register(&mut cache, 0, 1, 1);
    assert_eq!(cache.release(old), Ok(Some(1)));
    let new = register(&mut cache, 0, 1, 2);
    assert_eq!(old.index, new.index);
    let error = cache.release(old).unwrap_err();
    assert_eq!(format!("{error}"), "MR cache: handle 0.0 is not a live registration");
    assert_eq!((cache.get(old), cache.get(new)), (None, Some(&2)));
}

#[test]
fn a_full_cache_gives_the_registration_back_and_grows() {
    let mut cache = cache(1);
    let first = register(&mut cache, 0, 1, 1);
    let Lookup::Miss(pages) = cache.lookup(0, RW, 4096, 1).unwrap() else { panic!("hit") };
    assert_eq!(cache.insert(pages, 2), Err(Full { mr: 2 }));
    assert_eq!(cache.grow(slots(0)).map_err(|storage| storage.len()).unwrap_err(), 0);
    assert_eq!(cache.grow(slots(3)).unwrap().len(), 1);
    let second = cache.insert(pages, 2).unwrap().handle;
    assert_eq!((cache.get(first), cache.get(second)), (Some(&1), Some(&2)));
    assert_eq!(register(&mut cache, 5, 5, 3), first);
    assert_eq!(register(&mut cache, 4096, 5, 3), second);
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

#[test]
fn ten_thousand_registrations_are_spread_over_the_buckets() {
    const COUNT: usize = 10_000;
    for (class, stride, len) in [(0, 1, 1), (0, 2, 1), (1, 512, 512), (2, 1 << 18, 3)] {
        let mut cache = cache(COUNT);
        for i in 0..COUNT as u64 {
            let (addr, len) = ((0x7f << 40) + i * stride * 4096, len * 4096);
            let Lookup::Miss(pages) = cache.lookup(class, RW, addr, len).unwrap() else {
                panic!("hit")
            };
            let _ = cache.insert(pages, 0).unwrap();
        }
        let length = |slot: &MrSlot<u32>| {
            let next = |index: &u32| cache.slots.get(*index as usize).map(|slot| slot.next);
            core::iter::successors(Some(slot.bucket), next).filter(|at| *at != NIL).count()
        };
        let lengths: Vec<_> = cache.slots.iter().map(length).collect();
        assert_eq!(lengths.iter().sum::<usize>(), COUNT);
        // If all buckets are equally likely, one in 10^9 tables has a longer bucket.
        let longest = lengths.iter().max().unwrap();
        assert!(*longest <= 14, "{longest} of class {class}, {stride} pages apart");
    }
}
