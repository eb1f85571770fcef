//! A biased lock: an owner uses a value all the time, and a visitor now and then.
//!
//! The owner pays two stores and a load for each call. A visit costs a system call that makes every
//! processor that runs this process execute a memory barrier; see [`invar_core::bias`].

use std::cell::UnsafeCell;
use std::hint::cold_path;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use invar_core::bias::Bias;
use rustix::thread::{MembarrierCommand, membarrier};

/// The number of looks at an owner that is inside before a visit is put off. An owner stays inside for
/// one call, unless its thread loses its processor.
const LOOKS_MAX: u32 = 100;

/// Whether the kernel has the barrier. Without it, owners always take the mutex.
static HAS_BARRIER: LazyLock<bool> = LazyLock::new(|| {
    let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited);
    registered.and_then(|()| membarrier(MembarrierCommand::PrivateExpedited)).is_ok()
});

/// A value under a biased lock.
///
/// The owner may have doors of its own, such as functions that do the owner's call; see
/// [`Biased::with_doors`].
#[repr(C)]
pub struct Biased<T> {
    /// The value comes first, so that its address needs no addition.
    value: UnsafeCell<T>,
    bias: Bias,
    doors: Doors,
    slow: Mutex<Slow>,
    /// Whether the owner has taken the mutex since the last visit.
    is_called: AtomicBool,
}

/// The doors by which an owner may come. Nobody here looks behind them.
#[derive(Clone, Copy)]
struct Doors {
    /// The door of the fast path.
    open: *mut (),
    /// The door that leads to the mutex.
    shut: *mut (),
}

// SAFETY: Only the owner uses what the pointers lead to.
unsafe impl Send for Doors {}

/// State that only the holder of the mutex reads and changes.
struct Slow {
    /// Whether visitors are turned away.
    is_closed: bool,
    /// Whether the owner has taken the value.
    is_gone: bool,
    /// Whether the owner always takes the mutex.
    is_slow: bool,
}

// SAFETY: A reference to the value exists only while its holder is inside by `bias`, or holds `slow` while
// nobody is inside. So the value is moved between threads, and never shared.
unsafe impl<T: Send> Sync for Biased<T> {}

/// The only owner of a value. Others visit the value.
pub struct Owner<T>(Arc<Biased<ManuallyDrop<T>>>);

/// The owner is inside by its fast path.
#[repr(transparent)]
pub struct Entered<'a, T>(&'a Biased<T>);

/// The mutex is held.
pub struct Locked<'a, T> {
    biased: &'a Biased<T>,
    slow: MutexGuard<'a, Slow>,
}

impl<T> Biased<T> {
    /// Takes a value.
    pub fn new(value: T) -> Self {
        Biased::with_doors(value, ptr::dangling_mut(), ptr::null_mut())
    }

    /// Takes a value. An owner that enters by [`Biased::bias`] finds one of two doors: `open` if it may use
    /// the value, and `shut` if it must leave and call [`Biased::lock`].
    ///
    /// # Panics
    /// Panics if both doors are one.
    pub fn with_doors(value: T, open: *mut (), shut: *mut ()) -> Self {
        assert_ne!(open, shut, "two doors");
        let is_slow = !*HAS_BARRIER;
        let bias = Bias::new(if is_slow { shut } else { open });
        let slow = Mutex::new(Slow { is_closed: false, is_gone: false, is_slow });
        let (doors, value) = (Doors { open, shut }, UnsafeCell::new(value));
        Biased { value, bias, doors, slow, is_called: AtomicBool::new(false) }
    }

    /// The words of the lock, for an owner that enters by a door of its own.
    ///
    /// # Safety
    /// Only the owner uses them. It leaves once for each time that it enters, and only while nobody holds what
    /// [`Biased::entered`] or [`Biased::enter`] gave.
    #[inline(always)]
    pub unsafe fn bias(&self) -> &Bias {
        &self.bias
    }

    /// For the owner: the value, after [`Bias::enter`] has returned the open door.
    ///
    /// # Safety
    /// The owner is inside by the open door, and takes the value once.
    #[inline(always)]
    pub unsafe fn entered(&self) -> Entered<'_, T> {
        Entered(self)
    }

    /// For the owner: enters by the fast path. After `None` call [`Biased::lock`].
    ///
    /// # Safety
    /// All calls of this function and of [`Biased::lock`] come from one owner, which makes one at a time,
    /// and drops the result before the next.
    #[inline(always)]
    pub unsafe fn enter(&self) -> Option<Entered<'_, T>> {
        if self.bias.enter() == self.doors.open {
            return Some(Entered(self));
        }
        cold_path();
        self.bias.leave();
        None
    }

    /// For the owner: enters by the mutex, which a visitor may hold.
    ///
    /// # Safety
    /// The caller makes the promises of [`Biased::enter`].
    pub unsafe fn lock(&self) -> Locked<'_, T> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_called.store(true, Ordering::Relaxed);
        Locked { biased: self, slow }
    }

    /// For visitors: whether the owner has taken the mutex since the last visit. After [`Locked::set_slow`]
    /// every call takes the mutex.
    pub fn is_called(&self) -> bool {
        self.is_called.load(Ordering::Relaxed)
    }

    /// Calls a function with the value. Returns `None` if the value has gone, or if the owner stays
    /// inside: then try again later.
    pub fn visit<R>(&self, visit: impl FnOnce(&mut Locked<'_, T>) -> R) -> Option<R> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if slow.is_closed {
            return None;
        }
        self.is_called.store(false, Ordering::Relaxed);
        let mut visited = Locked { biased: self, slow };
        self.bias.set_door(self.doors.shut);
        self.await_owner().then(|| visit(&mut visited))
    }

    /// Waits until the owner is outside. Returns `false` if that takes too long.
    fn await_owner(&self) -> bool {
        if *HAS_BARRIER && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            return false;
        }
        (0..LOOKS_MAX).any(|_| {
            let is_outside = !self.bias.is_inside();
            if !is_outside {
                thread::yield_now();
            }
            is_outside
        })
    }
}

impl<T> Owner<T> {
    /// Takes a value.
    pub fn new(value: T) -> Self {
        Owner(Arc::new(Biased::new(ManuallyDrop::new(value))))
    }

    /// The value for visitors. They find it as long as the owner exists.
    pub fn shared(&self) -> Arc<Biased<ManuallyDrop<T>>> {
        Arc::clone(&self.0)
    }

    /// The lock and the value.
    #[inline(always)]
    pub fn biased(&self) -> &Biased<ManuallyDrop<T>> {
        &self.0
    }

    /// Enters by the fast path. After `None` call [`Owner::lock`].
    #[inline(always)]
    pub fn enter(&mut self) -> Option<Entered<'_, ManuallyDrop<T>>> {
        // SAFETY: This is the only owner, and the result borrows it mutably.
        unsafe { self.0.enter() }
    }

    /// Enters by the mutex, which a visitor may hold.
    pub fn lock(&mut self) -> Locked<'_, ManuallyDrop<T>> {
        // SAFETY: This is the only owner, and the result borrows it mutably.
        unsafe { self.0.lock() }
    }

    /// Calls a function with the value.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        // SAFETY: `Entered` does not exist now, because it would borrow the owner mutably. The lock
        // excludes visitors, and other calls of this function.
        let locked = unsafe { self.0.lock() };
        read(&locked)
    }

    /// Takes the value. Later visitors find none.
    pub fn into_inner(mut self) -> T {
        self.take().expect("only this function and the drop take the value")
    }

    /// Takes the value, if it is still there.
    fn take(&mut self) -> Option<T> {
        let mut locked = self.lock();
        if locked.slow.is_gone {
            return None;
        }
        locked.slow.is_gone = true;
        locked.end_visits();
        // SAFETY: The value is there, and nobody uses it any more: visitors find that it has gone, and the
        // callers of this function consume the owner.
        Some(unsafe { ManuallyDrop::take(&mut locked) })
    }
}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<'a, T> Entered<'a, T> {
    /// Leaves, and returns the lock.
    #[inline(always)]
    pub fn leave(entered: Self) -> &'a Biased<T> {
        entered.0
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.bias.leave();
    }
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: The owner is inside, and `self` is its only way to the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: The owner is inside, and `self` is its only way to the value.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Locked<'_, T> {
    /// Makes the owner take the mutex from now on, or allows the fast path again.
    pub fn set_slow(&mut self, is_slow: bool) {
        self.slow.is_slow = is_slow || !*HAS_BARRIER;
    }

    /// Keeps visitors away from now on.
    pub fn end_visits(&mut self) {
        self.slow.is_closed = true;
    }
}

/// Sets the door for the owner's next call, and then unlocks.
impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        let Doors { open, shut } = self.biased.doors;
        self.biased.bias.set_door(if self.slow.is_slow { shut } else { open });
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The lock is held. An owner that holds it is not inside by the fast path, and a visitor
        // has waited until the owner was outside.
        unsafe { &*self.biased.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: As in `deref`, and `self` is the only way to the value.
        unsafe { &mut *self.biased.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// A value that shows if two threads change it at once.
    #[derive(Default)]
    struct Pair(u64, u64);

    impl Pair {
        fn add(&mut self) {
            let seen = self.0;
            self.0 = seen + 1;
            self.1 += 1;
            assert_eq!(self.0, self.1);
        }
    }

    fn own(owner: &mut Owner<Pair>) {
        if let Some(mut pair) = owner.enter() {
            return pair.add();
        }
        owner.lock().add();
    }

    #[test]
    fn visits_and_calls_never_overlap() {
        const VISITS: u64 = 2000;
        const VISITORS: u64 = 2;
        let mut owner = Owner::new(Pair::default());
        let visiting = Arc::new(AtomicU64::new(VISITORS));
        let visitors = (0..VISITORS).map(|_| {
            let (visited, visiting) = (owner.shared(), Arc::clone(&visiting));
            thread::spawn(move || {
                let mut visits = 0;
                while visits < VISITS {
                    visits += u64::from(visited.visit(|pair| pair.add()).is_some());
                }
                visiting.fetch_sub(1, Ordering::Relaxed);
            })
        });
        let visitors: Vec<_> = visitors.collect();
        let mut calls = 0;
        while visiting.load(Ordering::Relaxed) > 0 {
            own(&mut owner);
            calls += 1;
        }
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
        assert_eq!(owner.into_inner().0, calls + VISITORS * VISITS);
    }

    #[test]
    fn a_slow_owner_takes_the_lock_until_it_may_be_fast_again() {
        let mut owner = Owner::new(0);
        let may_be_fast = *HAS_BARRIER;
        let visitor = owner.shared();
        visitor.visit(|value| value.set_slow(true)).expect("a value");
        assert!(owner.enter().is_none() && !visitor.is_called());
        owner.lock().set_slow(false);
        assert!(visitor.is_called());
        assert_eq!(owner.enter().is_some(), may_be_fast);
    }

    #[test]
    fn a_value_that_is_visited_no_more_is_still_its_owners() {
        let owner = Owner::new(vec![7]);
        let visitor = owner.shared();
        visitor.visit(|value| value.end_visits()).expect("a value");
        assert!(visitor.visit(|_| ()).is_none());
        assert_eq!(owner.into_inner(), [7]);
    }

    #[test]
    fn an_owner_stays_out_during_a_visit_and_enters_after_it() {
        let mut owner = Owner::new(0);
        let visitor = owner.shared();
        assert_eq!(visitor.visit(|_| owner.enter().is_some()), Some(false));
        assert_eq!(owner.enter().is_some(), *HAS_BARRIER);
    }

    #[test]
    fn an_owner_with_doors_of_its_own_finds_the_one_that_holds() {
        let (open, shut) = (ptr::dangling_mut(), ptr::null_mut());
        let biased = Biased::with_doors((), open, shut);
        let enter = || {
            // SAFETY: This is the owner, and it takes no value.
            let bias = unsafe { biased.bias() };
            let door = bias.enter();
            bias.leave();
            door
        };
        let expected = if *HAS_BARRIER { open } else { shut };
        assert_eq!(enter(), expected);
        assert_eq!(biased.visit(|_| enter()), Some(shut));
        assert_eq!(enter(), expected);
        biased.visit(|locked| locked.set_slow(true));
        assert_eq!(enter(), shut);
    }

    #[test]
    fn an_owner_that_is_inside_is_not_visited() {
        let mut owner = Owner::new(0);
        let visitor = owner.shared();
        let Some(entered) = owner.enter() else { return };
        assert!(visitor.visit(|_| ()).is_none());
        drop(entered);
        assert!(visitor.visit(|_| ()).is_some());
    }

    #[test]
    fn a_visitor_finds_nothing_after_the_owner_has_gone() {
        let owner = Owner::new(Arc::new(()));
        let visitor = owner.shared();
        let value = owner.into_inner();
        assert!(visitor.visit(|_| ()).is_none());
        assert_eq!((Arc::strong_count(&visitor), Arc::strong_count(&value)), (1, 1));
        let owner = Owner::new(value);
        let visitor = owner.shared();
        let value = owner.read(Arc::clone);
        drop(owner);
        assert!(visitor.visit(|_| ()).is_none());
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
