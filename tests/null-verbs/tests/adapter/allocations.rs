//! Checks that calls of the data path allocate nothing, from the protocol down to libibverbs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request};
use invar_core::conn::CommSettings;
use invar_testkit::duo::{self, Buffer, Duo};
use invar_verbs::VerbsNic;

use crate::on_devices;

/// The system's allocator with a counter of allocations for each thread.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator. The counter needs no memory of it and is never
// dropped.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is the same for
        // `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, which is the same for
        // `System`.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The number of allocations that `body` makes.
fn asked(body: impl FnOnce()) -> u64 {
    let before = ASKED.get();
    body();
    ASKED.get() - before
}

/// The number of rounds. It exceeds the rows of the request ring and of the FIFO.
const ROUNDS: usize = 600;
const LEN: u32 = 64;

/// A connection, and a buffer at each end.
struct Line {
    duo: Duo<VerbsNic>,
    from: Buffer<VerbsNic>,
    to: Buffer<VerbsNic>,
}

impl Line {
    fn new(nics: &[VerbsNic; 2], settings: CommSettings) -> Self {
        let [a, b] = nics;
        let duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
        let from = Buffer::new(a, &duo.send_pd, LEN as usize);
        let to = Buffer::new(b, &duo.recv_pd, 8 * LEN as usize);
        Line { duo, from, to }
    }

    /// Passes `n` messages into one receive, between calls that find nothing to do.
    fn pass(&mut self, n: u32) {
        let Line { duo: Duo { send, recv, .. }, from, to } = self;
        let message = from.message(0, LEN);
        assert_eq!(send.isend(&message, 0), Ok(None));
        let room = |tag: usize| to.room(tag * LEN as usize, LEN, tag as u32);
        let rooms: [RecvBuf; 8] = std::array::from_fn(room);
        let received = recv.irecv(&rooms[..n as usize]).expect("irecv").expect("a request");
        assert_eq!(recv.test(&received), Ok(None));
        let mut sent: [Option<Request>; 8] = [const { None }; 8];
        for (tag, sent) in (0..n).zip(&mut sent) {
            *sent = send.isend(&message, tag).expect("isend");
        }
        for sent in sent.iter().flatten() {
            assert_eq!(send.test(sent), Ok(Some(LEN)));
        }
        let sizes = [LEN; 8];
        assert_eq!(recv.test(&received), Ok(Some(&sizes[..n as usize])));
        let flushed = FlushBuf { addr: to.addr(0), len: LEN, rkey: to.rkey() };
        if let Flush::Started(flush) = recv.iflush(&[flushed]).expect("iflush") {
            assert_eq!(recv.test(&flush), Ok(Some(&[][..])));
        }
    }
}

#[test]
fn sends_receives_tests_and_flushes_allocate_nothing() {
    on_devices(|nics| {
        assert!(asked(|| drop(std::hint::black_box(Box::new(1)))) > 0, "it counts");
        let base = CommSettings { flush: true, ..CommSettings::default() };
        for settings in [
            base,
            CommSettings { qps: 4, ..base },
            CommSettings { use_inline: true, ..base },
            CommSettings { ar_threshold_bytes: 1, ..base },
        ] {
            let mut line = Line::new(&nics, settings);
            for n in [1, 8] {
                let count = asked(|| (0..ROUNDS).for_each(|_| line.pass(n)));
                assert_eq!(count, 0, "of {n} messages each, {settings:?}");
            }
        }
    });
}
