use std::slice;

use super::*;
use proptest::prelude::*;
use std::sync::Barrier;
use std::thread;

/// Length that uses both the loop and the string copy, at every alignment of both ends.
const LEN: usize = 2048;

/// Memory of a simulated application: bytes around the region must not change.
struct App {
    cells: Arc<[AtomicU64]>,
    region: HostMemory,
    start: usize,
}

impl App {
    fn new(start: usize, len: usize) -> App {
        let cells: Arc<[AtomicU64]> =
            (0..(start + len) / 8 + 2).map(|_| AtomicU64::new(u64::MAX)).collect();
        let first = NonNull::from(&cells[0]).cast::<u8>();
        // SAFETY: The region lies within the cells, which the Arc keeps and only atomics access.
        let region = unsafe { HostMemory::from_raw(first.add(start), len, cells.clone()) };
        region.write_at(0, &vec![0; len]).unwrap();
        App { cells, region, start }
    }

    fn outside_is_untouched(&self) -> bool {
        let bytes: Vec<u8> =
            self.cells.iter().flat_map(|cell| cell.load(Ordering::Relaxed).to_ne_bytes()).collect();
        bytes[..self.start].iter().all(|byte| *byte == 0xff)
            && bytes[self.start + self.region.len..].iter().all(|byte| *byte == 0xff)
    }
}

fn write_op() -> impl Strategy<Value = (usize, Vec<u8>)> {
    (0..LEN, prop_oneof![0..24usize, 0..LEN]).prop_flat_map(|(offset, len)| {
        (Just(offset), prop::collection::vec(any::<u8>(), len.min(LEN - offset)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn copies_at_any_alignment_do_what_a_byte_array_does(
        start in 0..16usize,
        writes in prop::collection::vec(write_op(), 1..8),
        read in (0..LEN, 0..LEN),
    ) {
        let owned = HostMemory::alloc(LEN).unwrap();
        let app = App::new(start, LEN);
        let mut model = vec![0u8; LEN];
        for (offset, bytes) in &writes {
            owned.write_at(*offset, bytes).unwrap();
            app.region.write_at(*offset, bytes).unwrap();
            model[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        }
        let range = read.0..(read.0 + read.1).min(LEN);
        for memory in [&owned, &app.region] {
            let mut all = vec![1; LEN];
            memory.read_at(0, &mut all).unwrap();
            prop_assert_eq!(&all, &model);
            let mut part = vec![1; range.len()];
            memory.read_at(range.start, &mut part).unwrap();
            prop_assert_eq!(&part, &model[range.clone()]);
            for (word, bytes) in memory.words().iter().zip(model.chunks_exact(8)) {
                let word = word.load(Ordering::Relaxed);
                prop_assert_eq!(word, u64::from_ne_bytes(bytes.try_into().unwrap()));
            }
        }
        prop_assert!(app.outside_is_untouched());
    }
}

#[test]
fn allocated_memory_is_zero_page_aligned_and_exactly_as_long_as_asked() {
    for len in [0, 1, 7, 8, 4096, 4097, HUGE_PAGE_BYTES + 3] {
        let memory = HostMemory::alloc(len).unwrap();
        assert_eq!(memory.len(), len);
        assert_eq!(memory.is_empty(), len == 0);
        assert_eq!(memory.addr() % page_size() as u64, 0);
        assert_eq!(memory.addr(), memory.as_ptr() as u64);
        assert_eq!(memory.words().len(), len / 8);
        let mut bytes = vec![1; len];
        memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
    assert!(HostMemory::alloc(usize::MAX).is_err());
    assert!(HostMemory::alloc(1 << 60).is_err());
}

#[test]
fn ranges_outside_of_the_region_are_refused() {
    let memory = HostMemory::alloc(100).unwrap();
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 1), (1, usize::MAX)] {
        let refused = OutOfRange { offset, len, region_len: 100 };
        if let Some(end) = offset.checked_add(len) {
            assert_eq!(memory.gather(offset..end).err(), Some(refused));
        }
        if len <= 101 {
            assert_eq!(memory.write_at(offset, &vec![0; len]), Err(refused));
            assert_eq!(memory.read_at(offset, &mut vec![0; len]), Err(refused));
        }
    }
    assert_eq!(memory.write_at(100, &[]), Ok(()));
    assert_eq!(
        memory.write_at(99, &[1, 2]).unwrap_err().to_string(),
        "bytes 99..+2 asked of a region of 100 bytes"
    );
}

#[test]
fn clones_share_the_bytes_and_the_last_one_lets_them_go() {
    let owner = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let start = NonNull::from(&owner[0]).cast();
    // SAFETY: The Arc keeps the array, and only atomics access it.
    let memory = unsafe { HostMemory::from_raw(start, 16, owner.clone()) };
    let clone = memory.clone();
    memory.write_at(8, &7u64.to_ne_bytes()).unwrap();
    drop(memory);
    assert_eq!(clone.words()[1].load(Ordering::Relaxed), 7);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(clone);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn memory_that_is_not_aligned_has_no_words() {
    assert!(App::new(3, 64).region.words().is_empty());
    assert_eq!(App::new(8, 64).region.words().len(), 8);
}

#[test]
fn who_sees_the_last_word_of_a_write_sees_all_of_it() {
    // 32 bytes are a FIFO slot; 1024 take the string copy.
    for words in [4usize, 128] {
        let memory = HostMemory::alloc(words * 8).unwrap();
        let writer = memory.clone();
        thread::scope(|scope| {
            scope.spawn(move || {
                for round in 1..=20_000u64 {
                    writer.write_at(0, &round.to_ne_bytes().repeat(words)).unwrap();
                }
            });
            let mut last = 0;
            while last < 20_000 {
                last = memory.words()[words - 1].load(Ordering::Acquire);
                // Later rounds may already overwrite words, but no word may show an earlier round.
                let oldest = memory.words().iter().map(|w| w.load(Ordering::Relaxed)).min();
                assert!(oldest >= Some(last), "{oldest:?} under {last}");
            }
        });
    }
}

#[test]
fn parts_of_one_word_written_at_once_do_not_undo_each_other() {
    let memory = HostMemory::alloc(8).unwrap();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for at in 0..2 {
            let (memory, start) = (memory.clone(), &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..100_000u32 {
                    memory.write_at(at * 4, &round.to_ne_bytes()).unwrap();
                    let mut back = [0; 4];
                    memory.read_at(at * 4, &mut back).unwrap();
                    assert_eq!(u32::from_ne_bytes(back), round);
                }
            });
        }
    });
}

#[test]
fn a_part_of_a_gather_piece_stays_within_it() {
    let bytes = *b"0123456789";
    let piece = Gather::bytes(&bytes);
    let content = |piece: Gather<'_>| {
        let start = piece.iovec.iov_base.cast::<u8>();
        // SAFETY: The piece is a part of `bytes`, which live and do not change.
        unsafe { slice::from_raw_parts(start, piece.len()) }.to_vec()
    };
    assert_eq!(content(piece.part(2..5)), b"234");
    assert_eq!(content(piece.part(8..20)), b"89");
    assert!(piece.part(11..20).is_empty());
    assert_eq!(content(piece.part(0..10).part(9..10)), b"9");
}

#[test]
fn pieces_join_only_where_one_begins_at_the_end_of_the_other() {
    let bytes = [7; 100];
    let mut piece = Gather::bytes(&bytes[10..40]);
    assert!(!piece.extend(&Gather::bytes(&bytes[41..50])));
    assert!(!piece.extend(&Gather::bytes(&bytes[..10])));
    assert_eq!(piece.len(), 30);
    assert!(piece.extend(&Gather::bytes(&bytes[40..60])));
    assert_eq!(piece.len(), 50);
}
