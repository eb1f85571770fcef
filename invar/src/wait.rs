//! Waiting: ask again for a short time, and then sleep until there is news.

use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use invar_core::error::Ends;
use invar_linux::interest::Interest;
use invar_linux::reactor::Seat;

use crate::settings::EndSettings;
use crate::spin::Spin;
use crate::staged::Staged;
use crate::{Device, DeviceKind, Error};

/// Calls between two looks at the clock.
const CALLS: u32 = 8;
/// The first sleep of a wait is at most this long. Each further sleep is at most four times as long as the one before.
///
/// Descriptors wake the waiter when data arrives, or when the peer closes the connection. Other failures only the
/// keeper notices. The keeper wakes no waiter, so the waiter must also wake by itself.
const SLEEP_FIRST: Duration = Duration::from_millis(10);
/// The longest sleep of a sender. Over TCP the keeper may read the news for which a sender waits, and the sender is
/// then not woken.
pub(crate) const SEND_SLEEP_MAX: Duration = Duration::from_millis(500);
/// The longest sleep of a receiver. It is below the four seconds after which the stall watch assumes that a program
/// that parked waits no more.
pub(crate) const RECV_SLEEP_MAX: Duration = Duration::from_secs(2);
/// The first and the longest sleep of a waiter that no descriptor wakes. For example, some NICs do not report that
/// a peer has written to this host's memory.
const BLIND: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// A wait over the software NIC spins so many times as long. Each of its messages also wakes the NIC's threads, and two
/// ends that both sleep never see how fast they are awake.
const SOFT_SPINS: u32 = 4;

/// How one end waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    spin: Spin,
    sleep_max: Duration,
    interest: Interest,
    /// Wakes a task that waits.
    alarm: Alarm,
}

/// An end that can wait.
pub(crate) trait Waits {
    fn waiter(&mut self) -> &mut Waiter;

    /// Returns the names of both ends, for the error of a wait that took too long.
    fn names(&self) -> Ends;

    /// Arms what ends a wait.
    fn arm_waiter(&mut self);

    /// Notes that the waiter goes to sleep, or that its wait is over.
    fn park(&mut self, is_asleep: bool);
}

impl Waiter {
    /// Creates the waits of an end of `device`, which sleep for at most `sleep_max` at a time.
    pub(crate) fn new(device: &Device, settings: &EndSettings, sleep_max: Duration) -> Self {
        let times = if device.info().kind == DeviceKind::Soft { SOFT_SPINS } else { 1 };
        let (interest, alarm) = Default::default();
        Waiter { spin: Spin::new(settings.spin * times), sleep_max, interest, alarm }
    }

    /// Arms the descriptors of an end by `arm`, for an end that may also wait for copies of a GPU.
    pub(crate) fn arm(&mut self, staged: &Staged, arm: impl FnOnce(&mut Interest)) {
        self.interest.begin();
        arm(&mut self.interest);
        if staged.is_active() {
            // The GPU's driver tells nobody that a copy is done.
            self.interest.blind();
        }
    }

    /// The descriptor that is readable when there is news, if descriptors tell of all news.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.interest.descriptor().filter(|_| !self.interest.is_blind())
    }
}

/// The lengths of the sleeps of a wait.
#[derive(Debug)]
pub(crate) struct Sleeps {
    informed: Duration,
    informed_max: Duration,
    blind: Duration,
}

impl Sleeps {
    /// The sleeps of a waiter that sleeps for at most `max` if descriptors tell of all news.
    pub(crate) fn new(max: Duration) -> Self {
        Sleeps { informed: SLEEP_FIRST, informed_max: max, blind: BLIND[0] }
    }

    /// Returns how long the next sleep is at most.
    pub(crate) fn next(&mut self, is_blind: bool) -> Duration {
        let (sleep, growth, max) = match is_blind {
            true => (&mut self.blind, 2, BLIND[1]),
            false => (&mut self.informed, 4, self.informed_max),
        };
        let next = (*sleep * growth).min(max);
        std::mem::replace(sleep, next)
    }
}

/// Asks until there is an answer, at most `timeout`.
pub(crate) fn wait<E: Waits, T>(
    end: &mut E,
    what: &'static str,
    timeout: Duration,
    mut ask: impl FnMut(&mut E) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    for _ in 0..CALLS {
        if let Some(answer) = ask(end)? {
            return Ok(answer);
        }
    }
    let start = Instant::now();
    let spins = end.waiter().spin.begin();
    let mut spun = Duration::ZERO;
    while spun < spins.min(timeout) {
        for _ in 0..CALLS {
            if let Some(answer) = ask(end)? {
                end.waiter().spin.succeeded();
                return Ok(answer);
            }
        }
        spun = start.elapsed();
    }
    if !spins.is_zero() {
        end.waiter().spin.failed(spun);
    }
    let sleep_max = end.waiter().sleep_max;
    let mut sleeps = Sleeps::new(sleep_max);
    loop {
        end.arm_waiter();
        if let Some(answer) = ask(end)? {
            return Ok(answer);
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            end.park(false);
            return Err(Error::timed_out(&end.names(), what, timeout));
        }
        end.park(true);
        let interest = &mut end.waiter().interest;
        let sleep = sleeps.next(interest.is_blind());
        if interest.sleep(sleep.min(left)) {
            sleeps = Sleeps::new(sleep_max);
        }
        if let Some(answer) = ask(end)? {
            return Ok(answer);
        }
    }
}

/// Wakes a task that waits.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    seat: Option<Seat>,
    /// The sleeps of the wait that lasts now.
    sleeps: Option<Sleeps>,
}

impl Alarm {
    /// Lets the reactor wake the task when there is news.
    fn set(&mut self, interest: &Interest, sleep_max: Duration, context: &Context<'_>) {
        let sleeps = self.sleeps.get_or_insert_with(|| Sleeps::new(sleep_max));
        let within = sleeps.next(interest.is_blind());
        if self.seat.is_none() {
            self.seat = Seat::take().ok();
        }
        match &self.seat {
            Some(seat) => seat.wake(interest.descriptor(), within, context.waker()),
            // The system has no thread for the reactor, so the task asks again and again.
            None => context.waker().wake_by_ref(),
        }
    }

    /// Ends a wait. Returns whether the task has slept.
    pub(crate) fn end(&mut self) -> bool {
        let has_slept = self.sleeps.take().is_some();
        if let Some(seat) = self.seat.as_ref().filter(|_| has_slept) {
            seat.forget();
        }
        has_slept
    }
}

/// A wait of a task. If the task drops it, the task is woken no more.
struct Waiting<'a, E: Waits>(&'a mut E);

impl<E: Waits> Drop for Waiting<'_, E> {
    fn drop(&mut self) {
        if self.0.waiter().alarm.end() {
            self.0.park(false);
        }
    }
}

/// Asks until there is an answer. The task sleeps between two questions.
pub(crate) async fn until<E: Waits, T>(
    end: &mut E,
    mut ask: impl FnMut(&mut E) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let waiting = &mut Waiting(end);
    poll_fn(|context| {
        let end = &mut *waiting.0;
        if let Some(answer) = ask(end).transpose() {
            return Poll::Ready(answer);
        }
        end.arm_waiter();
        if let Some(answer) = ask(end).transpose() {
            return Poll::Ready(answer);
        }
        end.park(true);
        let Waiter { sleep_max, interest, alarm, .. } = end.waiter();
        alarm.set(interest, *sleep_max, context);
        Poll::Pending
    })
    .await
}

/// How a task waits until a connection is made.
#[derive(Debug, Default)]
pub(crate) struct SetupWait {
    /// The descriptors that end the sleep that lasts now.
    interest: Interest,
    alarm: Alarm,
}

impl SetupWait {
    /// Asks once. Without an answer, `ask` arms what ends the sleep of the task.
    pub(crate) fn poll<T>(
        &mut self,
        context: &Context<'_>,
        ask: impl FnOnce(&mut Interest) -> Result<Option<T>, Error>,
    ) -> Poll<Result<T, Error>> {
        // Descriptors come and go while a connection is made, and a number may return for another descriptor.
        self.interest = Interest::default();
        let Some(answer) = ask(&mut self.interest).transpose() else {
            self.alarm.set(&self.interest, SEND_SLEEP_MAX, context);
            return Poll::Pending;
        };
        self.alarm.end();
        Poll::Ready(answer)
    }
}

/// Asks until there is an answer or an error, for an end that is not connected yet. Without an answer, `ask` arms
/// what ends the sleep. `left` gets the time waited, and returns the time left, or the error if none is left.
pub(crate) fn poll_within<T>(
    mut ask: impl FnMut(&mut Interest) -> Result<Option<T>, Error>,
    mut left: impl FnMut(Duration) -> Result<Duration, Error>,
) -> Result<T, Error> {
    let (start, mut sleeps) = (Instant::now(), Sleeps::new(SEND_SLEEP_MAX));
    loop {
        // See `SetupWait::poll`.
        let mut interest = Interest::default();
        if let Some(answer) = ask(&mut interest)? {
            return Ok(answer);
        }
        let left = left(start.elapsed())?;
        interest.sleep(sleeps.next(interest.is_blind()).min(left));
    }
}

/// Returns the time that is left of `timeout`, if any.
pub(crate) fn time_left(timeout: Duration, waited: Duration) -> Option<Duration> {
    timeout.checked_sub(waited).filter(|left| !left.is_zero())
}
