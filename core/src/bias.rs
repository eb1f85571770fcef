//! The words of a biased lock: an owner uses a value all the time, and a visitor now and then.
//!
//! The owner enters by a door and leaves, with plain stores. The visitor pays for that: between the change of
//! the door and its look at the owner it makes every processor that runs the owner's program execute a memory
//! barrier (`membarrier(2)` on Linux). After that barrier one of two things is true:
//!
//! - The owner has entered before, and the visitor sees that it is inside.
//! - The owner enters later, and finds the visitor's door.
//!
//! An owner that finds that door leaves and takes a mutex, which the visitor holds during the visit.
//!
//! A door is a pointer of the owner's, such as a function that does the owner's call. So the owner need not
//! compare: it calls the function that it finds.

#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The words of a biased lock.
#[derive(Debug)]
pub struct Bias {
    /// The door that the owner finds.
    door: AtomicPtr<()>,
    /// Whether the owner is inside.
    is_inside: AtomicBool,
}

impl Bias {
    /// Makes the words of a lock with a door.
    pub fn new(door: *mut ()) -> Self {
        Bias { door: AtomicPtr::new(door), is_inside: AtomicBool::new(false) }
    }

    /// For the owner: enters, and returns the door that it finds, one of those that [`Bias::new`] and
    /// [`Bias::set_door`] have got. If it is a visitor's, leave at once. Call [`Bias::leave`] afterwards.
    #[inline(always)]
    pub fn enter(&self) -> *mut () {
        self.is_inside.store(true, Ordering::Relaxed);
        light_barrier();
        self.door.load(Ordering::Acquire)
    }

    /// For the owner: leaves after [`Bias::enter`].
    #[inline(always)]
    pub fn leave(&self) {
        self.is_inside.store(false, Ordering::Release);
    }

    /// For whoever holds the mutex: changes the door. A visitor that has changed it then causes a barrier
    /// on all processors, and waits until [`Bias::is_inside`] returns `false`.
    pub fn set_door(&self, door: *mut ()) {
        self.door.store(door, Ordering::Release);
    }

    /// For the visitor: whether the owner is still inside.
    pub fn is_inside(&self) -> bool {
        self.is_inside.load(Ordering::Acquire)
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
    use core::ptr;
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    const SHUT: *mut () = ptr::null_mut();
    const OPEN: *mut () = ptr::dangling_mut();

    struct Shared {
        bias: Bias,
        slow: Mutex<()>,
        value: UnsafeCell<()>,
    }

    impl Default for Shared {
        fn default() -> Self {
            Shared { bias: Bias::new(OPEN), slow: Mutex::default(), value: UnsafeCell::default() }
        }
    }

    impl Shared {
        fn own(&self) {
            if self.bias.enter() == OPEN {
                self.touch();
                self.bias.leave();
            } else {
                self.bias.leave();
                let _slow = self.slow.lock().unwrap();
                self.touch();
            }
        }

        fn visit(&self) {
            let _slow = self.slow.lock().unwrap();
            self.bias.set_door(SHUT);
            loom::sync::atomic::fence(Ordering::SeqCst);
            while self.bias.is_inside() {
                thread::yield_now();
            }
            self.touch();
            self.bias.set_door(OPEN);
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
