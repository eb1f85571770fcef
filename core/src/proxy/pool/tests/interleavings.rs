//! Loom runs the pool on every interleaving of threads, and on all values that a thread may see of
//! another thread's writes.

extern crate std;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::vec::Vec;

use super::{Memory, op};
use crate::proxy::{Appended, Head, Poster, Taker};

/// A futex. Waiting and waking exclude each other, and a waiting thread first checks the word.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn wait_while_zero(&self, head: &Head) {
        let guard = self.lock.lock().unwrap();
        if head.word().load(loom::sync::atomic::Ordering::Relaxed) == 0 {
            drop(self.woken.wait(guard).unwrap());
        }
    }

    fn wake(&self) {
        let _guard = self.lock.lock().unwrap();
        self.woken.notify_all();
    }
}

fn append(poster: &mut Poster, memory: &Memory, futex: &Futex, op_count: u64, peer: u32) {
    loop {
        match poster.append(memory.pool(), &op(op_count, peer)).unwrap() {
            Appended::NoRoom => thread::yield_now(),
            Appended::Queued => return,
            Appended::Posted { wake } => {
                if wake {
                    futex.wake();
                }
                return;
            }
        }
    }
}

/// Takes operations until there are `n`, and sleeps while no operation is posted.
fn take(memory: &Memory, futex: &Futex, n: usize) -> Vec<(u32, u32)> {
    let (mut taker, mut got) = (Taker::default(), Vec::new());
    while got.len() < n {
        if !taker.has_more() {
            futex.wait_while_zero(memory.pool().posted());
        }
        let taken = taker.take(memory.pool(), 1, |rank, op| {
            got.push((rank, op.peer));
            Ok::<_, ()>(())
        });
        taken.unwrap();
    }
    got
}

#[test]
fn a_cell_is_written_again_only_after_it_was_read_and_every_post_wakes() {
    loom::model(|| {
        let shared = Arc::new((Memory::new(1, 2), Futex::default()));
        let rank = Arc::clone(&shared);
        let rank = thread::spawn(move || {
            let (memory, futex) = &*rank;
            let mut poster = Poster::new(0);
            for n in 0..3 {
                append(&mut poster, memory, futex, n, n as u32);
            }
            if poster.post(memory.pool()).unwrap() {
                futex.wake();
            }
        });
        let got = take(&shared.0, &shared.1, 3);
        assert_eq!(got, [(0, 0), (0, 1), (0, 2)]);
        rank.join().unwrap();
    });
}

/// Checks a model of three threads on all interleavings with at most three preemptions.
fn model_of_three(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

#[test]
fn two_ranks_post_at_once_and_nothing_is_lost() {
    model_of_three(|| {
        let shared = Arc::new((Memory::new(2, 1), Futex::default()));
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (memory, futex) = &*shared;
                    let mut poster = Poster::new(rank);
                    // The operation fills the pool of this rank, and the rank cannot post a part of it.
                    assert!(poster.append(memory.pool(), &op(1, rank)).is_err());
                    if poster.post(memory.pool()).unwrap() {
                        futex.wake();
                    }
                })
            })
            .collect();
        let mut got = take(&shared.0, &shared.1, 2);
        got.sort_unstable();
        assert_eq!(got, [(0, 0), (1, 1)]);
        for rank in ranks {
            rank.join().unwrap();
        }
    });
}

#[test]
fn closing_wakes_who_waits_and_loses_nothing_that_was_posted() {
    model_of_three(|| {
        let shared = Arc::new((Memory::new(1, 2), Futex::default()));
        let rank = Arc::clone(&shared);
        let rank = thread::spawn(move || {
            let (memory, futex) = &*rank;
            let mut poster = Poster::new(0);
            append(&mut poster, memory, futex, 1, 1);
            match poster.post(memory.pool()) {
                Ok(wake) => {
                    if wake {
                        futex.wake();
                    }
                    1
                }
                Err(_) => 0,
            }
        });
        let closer = Arc::clone(&shared);
        let closer = thread::spawn(move || {
            closer.0.pool().posted().close();
            closer.1.wake();
        });
        let (memory, futex) = &*shared;
        let (mut taker, mut got) = (Taker::default(), 0);
        loop {
            // The loop reads `closed` first, so it then sees everything that was posted before the
            // close.
            let closed = memory.pool().posted().is_closed();
            let taken = taker.take(memory.pool(), 1, |_, _| Ok::<_, ()>(())).unwrap();
            got += taken.ops;
            if closed && taken.ops == 0 {
                break;
            }
            futex.wait_while_zero(memory.pool().posted());
        }
        assert_eq!(rank.join().unwrap(), got);
        closer.join().unwrap();
    });
}
