//! The thread that wakes tasks: it waits for the descriptors of all connections that tasks wait for.
//!
//! A task takes a [`Seat`] and says what it waits for. The thread wakes the task when its descriptor is
//! readable, or when its time is over. A process has one such thread, as long as there are seats.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::own_thread::OwnThread;
use crate::poller::Poller;

/// Wakes a task. A panic of the executor's code does not end the thread that wakes the others.
pub fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        log::error!("the waker of a task panicked");
    }
}

/// The reactor of this process, while there are seats.
static OF_PROCESS: Mutex<Weak<Running>> = Mutex::new(Weak::new());

/// The place of one task.
#[derive(Debug)]
pub struct Seat {
    running: Arc<Running>,
    number: u64,
}

#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    thread: OwnThread,
}

#[derive(Debug)]
struct Shared {
    poller: Poller,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// The tasks that wait.
    waiting: HashMap<u64, Waiting>,
    /// The times of the waiting tasks, the earliest first.
    times: BTreeSet<(Instant, u64)>,
    /// When the thread ends its sleep by itself, if it does.
    sleeps_until: Option<Instant>,
    is_over: bool,
}

#[derive(Debug)]
struct Waiting {
    waker: Waker,
    until: Instant,
}

impl Seat {
    /// Takes a seat, and starts the thread if there is none.
    ///
    /// # Errors
    /// The system has no room for a thread or a descriptor.
    pub fn take() -> io::Result<Self> {
        let mut of_process = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let running = of_process.upgrade();
        let running = match running.filter(|running| running.thread.is_here()) {
            Some(running) => running,
            None => {
                let running = Arc::new(Running::start()?);
                *of_process = Arc::downgrade(&running);
                running
            }
        };
        let mut state = running.shared.state();
        state.last += 1;
        let number = state.last;
        drop(state);
        Ok(Seat { running, number })
    }

    /// Wakes a task when the descriptor is readable, or after `within`. The task looks once more before it
    /// waits only if the descriptor was armed before: a descriptor that is readable already wakes the task.
    pub fn wake(&self, descriptor: Option<BorrowedFd<'_>>, within: Duration, waker: &Waker) {
        let shared = &self.running.shared;
        let mut within = within;
        let mut state = shared.state();
        let forgotten = state.forget(self.number);
        if let Some(descriptor) = descriptor
            && shared.poller.watch(descriptor, self.number).is_err()
        {
            // No memory is left for the descriptor.
            within = Duration::from_millis(1).min(within);
        }
        let until = Instant::now() + within;
        state.waiting.insert(self.number, Waiting { waker: waker.clone(), until });
        state.times.insert((until, self.number));
        // The thread makes a new plan, so that others need not call it for the same time.
        let is_first = state.sleeps_until.is_none_or(|planned| until < planned);
        if is_first {
            state.sleeps_until = Some(until);
        }
        drop(state);
        if is_first {
            shared.poller.call();
        }
        // The waker runs code of its own when it is dropped, so no lock is held.
        drop(forgotten);
    }

    /// Wakes the task no more.
    pub fn forget(&self) {
        // No lock is held when the waker is dropped.
        let forgotten = self.running.shared.state().forget(self.number);
        drop(forgotten);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.forget();
    }
}

impl State {
    fn forget(&mut self, number: u64) -> Option<Waker> {
        let Waiting { waker, until } = self.waiting.remove(&number)?;
        self.times.remove(&(until, number));
        Some(waker)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of the reactor's thread.
    fn run(&self) {
        let mut wakers: Vec<Waker> = Vec::new();
        loop {
            let now = Instant::now();
            let mut state = self.state();
            if state.is_over {
                return;
            }
            while let Some((until, number)) = state.times.first().copied()
                && until <= now
            {
                wakers.extend(state.forget(number));
            }
            state.sleeps_until = state.times.first().map(|(until, _)| *until);
            let sleep = state.sleeps_until.map(|until| until.saturating_duration_since(now));
            drop(state);
            // No lock is held: a waker may run code that takes a seat.
            wakers.drain(..).for_each(wake);
            self.poller.sleep(sleep, |number| wakers.extend(self.state().forget(number)));
            wakers.drain(..).for_each(wake);
        }
    }
}

impl Running {
    fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared { poller: Poller::new()?, state: Mutex::default() });
        let thread = OwnThread::start("invar-reactor", {
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Running { shared, thread })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.poller.call();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    struct Count(AtomicU32, thread::Thread);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.unpark();
        }
    }

    fn counter() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicU32::new(0), thread::current()));
        (Arc::clone(&count), Waker::from(count))
    }

    fn await_count(count: &Count, wanted: u32) {
        let start = Instant::now();
        while count.0.load(Ordering::Relaxed) < wanted {
            assert!(start.elapsed() < LONG, "nobody woke the task");
            thread::park_timeout(LONG);
        }
    }

    #[test]
    fn a_readable_descriptor_wakes_its_task_once() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (seat, (count, waker)) = (Seat::take().unwrap(), counter());
        for round in 1..=3 {
            seat.wake(Some(ours.as_fd()), 10 * LONG, &waker);
            theirs.write_all(&[1]).unwrap();
            await_count(&count, round);
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_task_is_woken_when_its_time_is_over_whatever_others_wait_for() {
        let (other, (_, late)) = (Seat::take().unwrap(), counter());
        other.wake(None, 10 * LONG, &late);
        let (seat, (count, waker)) = (Seat::take().unwrap(), counter());
        let start = Instant::now();
        seat.wake(None, Duration::from_millis(20), &waker);
        await_count(&count, 1);
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_task_that_is_forgotten_is_not_woken_and_not_kept() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (seat, (count, waker)) = (Seat::take().unwrap(), counter());
        seat.wake(Some(ours.as_fd()), Duration::from_millis(10), &waker);
        seat.forget();
        drop(waker);
        assert_eq!(Arc::strong_count(&count), 1);
        theirs.write_all(&[1]).unwrap();
        thread::sleep(Duration::from_millis(30));
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }
}
