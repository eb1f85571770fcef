//! Operations that their waiting callers move.
//!
//! The mover is behind a lock, and the holder of the lock moves operations. A caller that waits for its
//! operations tries the lock, which saves the detour through another thread. The progress thread keeps
//! away while callers do so. A moment later it continues with what they leave.

use std::fmt::{self, Debug, Display};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread;
use std::time::Duration;

use invar_core::proxy::{Head, Probe, ProxyEvent, Transport};

use super::ProgressFailure;
use super::mailbox::Mailbox;
use super::mover::{Mover, Round};
use crate::proxy::bound::TICK;
use crate::proxy::futex;

/// Time that the thread sleeps while callers move operations. A caller leaves without waking the thread,
/// because the wake-up would cost more than the caller's operations.
const NAP: Duration = Duration::from_millis(1);
/// Number of naps after the last caller's round, before the thread sleeps until somebody wakes it.
const NAPS: u32 = 100;

/// Moves operations in the threads that wait for them. Clones move the same operations.
pub struct Driver<E: Display + Debug>(pub(super) Arc<dyn Drive<E>>);

impl<E: Display + Debug> Driver<E> {
    /// Moves each ready slice by one stage and takes posted operations, unless another thread does so.
    /// Returns whether anything moved. The progress thread continues one or two milliseconds after a
    /// caller's last round.
    ///
    /// # Errors
    /// The proxy has ended. Every later call returns the same failure.
    #[inline]
    pub fn round(&self) -> Result<bool, Arc<ProgressFailure<E>>> {
        self.0.round()
    }

    /// Wakes the progress thread if it sleeps until a wake-up, so that it takes posted operations. Call
    /// this if no other round may follow.
    #[inline]
    pub fn wake(&self) {
        self.0.wake();
    }

    /// Returns the reason why the proxy moves nothing any more.
    pub fn failure(&self) -> Option<Arc<ProgressFailure<E>>> {
        self.0.failure()
    }

    /// Lists the active operations in the form of `NCCL_PROXY_DUMP_SIGNAL`.
    pub fn dump(&self) -> String {
        self.0.dump()
    }
}

impl<E: Display + Debug> Clone for Driver<E> {
    fn clone(&self) -> Self {
        Driver(Arc::clone(&self.0))
    }
}

impl<E: Display + Debug> Debug for Driver<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").finish_non_exhaustive()
    }
}

/// The methods of [`Shared`] that do not depend on the transport.
pub(super) trait Drive<E: Display + Debug>: Send + Sync {
    fn round(&self) -> Result<bool, Arc<ProgressFailure<E>>>;
    fn wake(&self);
    fn failure(&self) -> Option<Arc<ProgressFailure<E>>>;
    fn dump(&self) -> String;
}

/// The state that the progress thread and its callers share.
pub(super) struct Shared<T: Transport<Error: Debug>, P> {
    mailbox: Arc<Mailbox>,
    mover: Mutex<Mover<T, P>>,
    failure: OnceLock<Arc<ProgressFailure<T::Error>>>,
    /// Whether a caller has made a round since the thread last checked.
    driven: AtomicBool,
    /// Whether the thread sleeps until a wake-up.
    asleep: AtomicBool,
}

/// Closes the list of posted operations when the thread ends, even by a panic: no rank waits for operations that
/// nobody moves.
struct Closing<'a>(&'a Head);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T: Transport<Error: Debug>, P: Probe> Shared<T, P> {
    pub(super) fn new(mover: Mover<T, P>) -> Self {
        Shared {
            mailbox: Arc::clone(&mover.mailbox),
            mover: Mutex::new(mover),
            failure: OnceLock::new(),
            driven: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        }
    }

    /// Runs the thread's loop until all operations have ended.
    pub(super) fn run(&self) {
        let _closing = Closing(self.posted());
        let mut naps_left = 0;
        while self.failure.get().is_none() {
            if self.driven.swap(false, SeqCst) {
                naps_left = NAPS;
                thread::sleep(NAP);
                continue;
            }
            let Ok(round) = self.locked(self.mover.lock().ok(), false) else { break };
            match round {
                Round::Moved => {}
                Round::Waiting => thread::yield_now(),
                Round::Idle if naps_left > 0 => {
                    naps_left -= 1;
                    futex::wait_while_empty(self.posted(), NAP);
                }
                Round::Idle => self.sleep(),
                Round::Ended => break,
            }
        }
    }

    /// Makes a round with the lock's guard; `None` means that an earlier holder panicked.
    fn locked(
        &self,
        mover: Option<MutexGuard<'_, Mover<T, P>>>,
        look: bool,
    ) -> Result<Round, Arc<ProgressFailure<T::Error>>> {
        let round = mover.map_or(Err(ProgressFailure::Panicked), |mut mover| mover.round(look));
        round.map_err(|failure| {
            // The first failure is the cause, and callers that find the list closed ask for it.
            let failure = Arc::clone(self.failure.get_or_init(|| Arc::new(failure)));
            self.posted().close();
            failure
        })
    }

    /// Sleeps until a rank posts, a caller makes a round, or the thread is to stop.
    fn sleep(&self) {
        self.record(ProxyEvent::Sleep);
        self.asleep.store(true, SeqCst);
        let posted = self.posted();
        while posted.is_empty()
            && !posted.is_closed()
            && !self.mailbox.calls()
            && !self.driven.load(SeqCst)
        {
            futex::wait_while_empty(posted, TICK);
        }
        self.asleep.store(false, SeqCst);
        self.record(ProxyEvent::Wakeup);
    }

    fn record(&self, event: ProxyEvent) {
        if let Ok(mut mover) = self.mover.lock() {
            mover.probe.record(event);
        }
    }

    fn posted(&self) -> &Head {
        self.mailbox.shared.pool().posted()
    }
}

impl<T, P> Drive<T::Error> for Shared<T, P>
where
    T: Transport<Error: Debug + Send + Sync> + Send,
    P: Probe + Send,
{
    #[inline]
    fn round(&self) -> Result<bool, Arc<ProgressFailure<T::Error>>> {
        if let Some(failure) = self.failure.get() {
            return Err(Arc::clone(failure));
        }
        let mover = match self.mover.try_lock() {
            Ok(mover) => Some(mover),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Poisoned(_)) => None,
        };
        if !self.driven.load(SeqCst) {
            self.driven.store(true, SeqCst);
            // The wake-up makes the thread nap from now on, so it finds what this caller leaves.
            self.wake();
        }
        Ok(self.locked(mover, true)? == Round::Moved)
    }

    #[inline]
    fn wake(&self) {
        if self.asleep.load(SeqCst) {
            futex::wake(self.posted());
        }
    }

    fn failure(&self) -> Option<Arc<ProgressFailure<T::Error>>> {
        self.failure.get().cloned()
    }

    fn dump(&self) -> String {
        self.mover.lock().map_or_else(|_| String::new(), |mover| mover.dump())
    }
}
