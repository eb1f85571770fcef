//! Loom tests of a slot that is written while it is read.

use core::array;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

use super::*;

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// A slot whose fields all depend on the number of its receive.
fn slot(idx: u64) -> FifoSlot {
    let n = idx as u32;
    FifoSlot { addr: 100 + idx, size: 200 + n as i32, rkey: 300 + n, nreqs: 1, tag: 400 + n, idx }
}

/// The writer stands for the receiver, whose NIC writes the last word of a slot last. The writer reuses
/// the row only after the first message has arrived.
#[test]
fn a_slot_that_is_there_is_there_as_a_whole() {
    loom::model(|| {
        let words = || array::from_fn(|_| AtomicU64::new(0));
        let memory: [[AtomicU64; SLOT_WORDS]; RECVS_MAX] = array::from_fn(|_| words());
        let shared = Arc::new((memory, AtomicBool::new(false)));
        let receiver = Arc::clone(&shared);
        let receiver = thread::spawn(move || {
            let (memory, is_sent) = &*receiver;
            Row(memory).store(0, &slot(1));
            while !is_sent.load(Ordering::Acquire) {
                thread::yield_now();
            }
            Row(memory).store(0, &slot(2));
        });
        let (memory, is_sent) = &*shared;
        for idx in [1, 2] {
            let seen = loop {
                match Row(memory).load(0, idx) {
                    Some(seen) => break seen,
                    None => thread::yield_now(),
                }
            };
            let FifoSlot { addr, size, rkey, nreqs, tag, .. } = slot(idx);
            assert_eq!(seen.room(), Room { addr, size, rkey });
            assert_eq!(seen.nreqs_tag(), (nreqs, tag));
            assert!(seen.is_single(tag));
            is_sent.store(true, Ordering::Release);
        }
        receiver.join().unwrap();
    });
}
