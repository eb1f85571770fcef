//! The words of a biased lock: an owner uses a value all the time, and a visitor now and then.
//!
//! The owner enters and leaves with plain stores. The visitor pays for that: between its request and its
//! look at the owner it makes every processor that runs the owner's program execute a memory barrier
//! (`membarrier(2)` on Linux). After that barrier one of two things is true:
//!
//! - The owner has entered before, and the visitor sees that it is inside.
//! - The owner enters later, and sees the visitor's request.
//!
//! An owner that sees a request takes a mutex, which the visitor holds during the visit.

#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A visitor wants to come in, or is inside.
const VISIT: u8 = 1;
/// The owner always takes the mutex.
const SLOW: u8 = 2;

/// The words of a biased lock.
#[derive(Debug, Default)]
pub struct Bias {
    /// Whether the owner is inside by its fast path.
    is_inside: AtomicBool,
    /// Nonzero while the owner must take the mutex.
    requests: AtomicU8,
}

impl Bias {
    /// For the owner: enters by the fast path. If it returns `false`, take the mutex. Otherwise call
    /// [`Bias::leave`] afterwards.
    #[inline(always)]
    pub fn enter(&self) -> bool {
        self.is_inside.store(true, Ordering::Relaxed);
        light_barrier();
        let may_enter = self.requests.load(Ordering::Acquire) == 0;
        if !may_enter {
            core::hint::cold_path();
            self.leave();
        }
        may_enter
    }

    /// For the owner: leaves after [`Bias::enter`].
    #[inline(always)]
    pub fn leave(&self) {
        self.is_inside.store(false, Ordering::Release);
    }

    /// For the visitor, with the mutex held: asks the owner to stay out. Then cause a barrier on
    /// all processors, and wait until [`Bias::is_inside`] returns `false`.
    pub fn request(&self) {
        self.requests.fetch_or(VISIT, Ordering::Relaxed);
    }

    /// For the visitor: whether the owner is still inside by its fast path.
    pub fn is_inside(&self) -> bool {
        self.is_inside.load(Ordering::Acquire)
    }

    /// For the visitor: ends the visit.
    pub fn withdraw(&self) {
        self.requests.fetch_and(!VISIT, Ordering::Release);
    }

    /// For whoever holds the mutex: whether the owner shall always take that lock.
    pub fn set_slow(&self, is_slow: bool) {
        match is_slow {
            true => self.requests.fetch_or(SLOW, Ordering::Relaxed),
            false => self.requests.fetch_and(!SLOW, Ordering::Release),
        };
    }
}

/// The owner's half of the barrier. The visitor's half makes a real barrier of it.
#[inline(always)]
fn light_barrier() {
    #[cfg(not(all(loom, test)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    // Loom has no barrier that acts on other threads.
    #[cfg(all(loom, test))]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    #[derive(Default)]
    struct Shared {
        bias: Bias,
        slow: Mutex<()>,
        value: UnsafeCell<()>,
    }

    impl Shared {
        fn own(&self) {
            if self.bias.enter() {
                self.touch();
                self.bias.leave();
            } else {
                let _slow = self.slow.lock().unwrap();
                self.touch();
            }
        }

        fn visit(&self) {
            let _slow = self.slow.lock().unwrap();
            self.bias.request();
            loom::sync::atomic::fence(Ordering::SeqCst);
            while self.bias.is_inside() {
                thread::yield_now();
            }
            self.touch();
            self.bias.withdraw();
        }

        /// Loom fails if two threads are here at once.
        fn touch(&self) {
            self.value.with_mut(|_| ());
        }
    }

    #[test]
    fn owner_and_visitor_are_never_inside_at_once() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let visitor = Arc::clone(&shared);
            let visitor = thread::spawn(move || visitor.visit());
            shared.own();
            shared.own();
            visitor.join().unwrap();
        });
    }

    #[test]
    fn two_visitors_take_turns() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let visitors = [(); 2].map(|()| {
                let visitor = Arc::clone(&shared);
                thread::spawn(move || visitor.visit())
            });
            shared.own();
            let [first, second] = visitors;
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}
