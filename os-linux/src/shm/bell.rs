//! The bells of processes that wait for each other in shared memory.
//!
//! Each process has one bell. A process that finds nothing to do arms its bell, looks once more, and then
//! sleeps on the bell. Whoever writes something that the process may wait for rings the bell afterwards.
//! A bell that is not armed costs the writer one load.
//!
//! The writer stores data and then loads the bell. The sleeper stores the bell and then loads the data. One
//! of the two must see the other, so a memory barrier has to stand between each store and its load. The
//! sleeper asks the kernel for this barrier on the processors of all registered processes
//! (`membarrier(2)`), and then the writer needs none.

use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};
use rustix::thread::{MembarrierCommand, membarrier};

use super::SharedMemory;

/// Bytes of a bell. A bell takes two cache lines, because processors fetch lines in pairs.
pub const BELL_BYTES: usize = 128;

const AWAKE: u32 = 0;
const ARMED: u32 = 1;

/// Whether the barriers of sleepers reach this process.
static IS_REGISTERED: LazyLock<bool> =
    LazyLock::new(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok());

/// The bell of one process, as this process sees it. Clones are the same bell.
#[derive(Clone, Debug)]
pub struct Bell {
    word: NonNull<u8>,
    is_registered: bool,
    _memory: SharedMemory,
}

// SAFETY: The value keeps the mapping, which belongs to no thread.
unsafe impl Send for Bell {}
// SAFETY: The word is only accessed as an atomic.
unsafe impl Sync for Bell {}

impl Bell {
    /// Makes the bell that begins at byte `at` of memory that was zeroed.
    ///
    /// # Panics
    /// Panics if the memory has no such bell, or if `at` is not a multiple of [`BELL_BYTES`].
    pub fn new(memory: &SharedMemory, at: usize) -> Self {
        let end = at.checked_add(BELL_BYTES);
        assert!(at.is_multiple_of(BELL_BYTES), "a bell has cache lines of its own");
        assert!(end.is_some_and(|end| end <= memory.len()), "as many bells as there is memory for");
        // SAFETY: The bell lies within the mapping, which the value keeps.
        let word = unsafe { memory.start().add(at) };
        Bell { word, is_registered: *IS_REGISTERED, _memory: memory.clone() }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: The word is aligned and within the mapping, and everyone accesses it as an atomic.
        unsafe { self.word.cast().as_ref() }
    }

    /// Wakes the process of this bell if it sleeps. Call this after a store that the process may wait for.
    #[inline]
    pub fn ring(&self) {
        match self.is_registered {
            // The sleeper's barrier orders the store before the load.
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
        if self.word().load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        if self.word().swap(AWAKE, Ordering::AcqRel) == ARMED {
            // The call fails only if the word is not mapped. `Flags::PRIVATE` is not set, because the
            // sleeper is another process.
            let _ = futex::wake(self.word(), Flags::empty(), i32::MAX as u32);
        }
    }

    /// For the process of this bell: lets the next ring wake the process. Look once more before
    /// [`Bell::sleep`], because what was written before this call rings no more.
    ///
    /// Returns `false` if the kernel has no barrier for this. Then a ring may be missed, and the process
    /// must not sleep long.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.word().store(ARMED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }

    /// For the process of this bell: says that it is awake, so that nobody wakes it.
    pub fn disarm(&self) {
        self.word().store(AWAKE, Ordering::Relaxed);
    }

    /// For the process of this bell: sleeps until somebody has rung since [`Bell::arm`], at most for
    /// `within`. The call may also return early without a reason. The bell is not armed afterwards.
    pub fn sleep(&self, within: Duration) {
        let within = Timespec::try_from(within).ok();
        // Every error means that the caller looks again.
        let _ = futex::wait(self.word(), Flags::empty(), ARMED, within.as_ref());
        self.disarm();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The bell of a process, and the same bell as another process sees it.
    fn pair() -> (Bell, Bell) {
        let ours = SharedMemory::create("invar-test", 2 * BELL_BYTES).unwrap();
        let theirs = SharedMemory::from_fd(ours.to_fd().unwrap()).unwrap();
        (Bell::new(&ours, BELL_BYTES), Bell::new(&theirs, BELL_BYTES))
    }

    #[test]
    fn a_ring_after_arming_ends_the_sleep() {
        let (ours, theirs) = pair();
        let start = Instant::now();
        let _ = ours.arm();
        theirs.ring();
        ours.sleep(LONG);
        let _ = ours.arm();
        let ringer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            theirs.ring();
        });
        ours.sleep(LONG);
        ringer.join().unwrap();
        assert!(start.elapsed() < LONG, "the ring was missed");
    }

    #[test]
    fn nobody_is_awaited_longer_than_asked() {
        let (ours, theirs) = pair();
        // This ring comes before the bell is armed, so the sleep does not know of it.
        theirs.ring();
        let _ = ours.arm();
        let start = Instant::now();
        ours.sleep(Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn no_count_is_missed_by_a_sleeper_that_looks_after_it_has_armed() {
        let (ours, theirs) = pair();
        let (back_ours, back_theirs) = pair();
        if !ours.arm() {
            return;
        }
        ours.disarm();
        static TO: AtomicU64 = AtomicU64::new(0);
        static BACK: AtomicU64 = AtomicU64::new(0);
        const COUNT: u64 = 20_000;
        let await_count = |word: &AtomicU64, count: u64, bell: &Bell| {
            while word.load(Ordering::Acquire) < count {
                assert!(bell.arm());
                if word.load(Ordering::Acquire) < count {
                    let start = Instant::now();
                    bell.sleep(LONG);
                    assert!(start.elapsed() < LONG, "the ring for count {count} was missed");
                }
                bell.disarm();
            }
        };
        let echo = thread::spawn(move || {
            for count in 1..=COUNT {
                await_count(&TO, count, &back_ours);
                BACK.store(count, Ordering::Release);
                theirs.ring();
            }
        });
        for count in 1..=COUNT {
            TO.store(count, Ordering::Release);
            back_theirs.ring();
            await_count(&BACK, count, &ours);
        }
        echo.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "as many bells as there is memory for")]
    fn a_bell_outside_of_the_memory_is_refused() {
        let memory = SharedMemory::create("invar-test", BELL_BYTES).unwrap();
        let _ = Bell::new(&memory, BELL_BYTES);
    }
}
