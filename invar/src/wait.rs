//! Waiting: ask again for a short time, and then sleep until there is news.

use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use invar_linux::interest::Interest;
use invar_linux::reactor::Seat;

use crate::Error;
use crate::error::Kind;
use crate::spin::Spin;
use crate::staged::Staged;

/// Calls between two looks at the clock.
const CALLS: u32 = 8;
/// The first sleep of a wait is at most this long. Each further sleep is at most four times as long as the one before.
///
/// A descriptor wakes the waiter when data arrives. Over a NIC, only the keeper notices a recovery, or a peer that
/// has gone. The keeper wakes no waiter, so the waiter must also wake by itself.
const SLEEP_FIRST: Duration = Duration::from_millis(10);
/// The longest sleep. It is below the four seconds after which the stall watch assumes that a program that parked
/// waits no more.
const SLEEP_MAX: Duration = Duration::from_secs(2);
/// The first and the longest sleep of a waiter that no descriptor wakes. For example, some NICs do not report that
/// a peer has written to this host's memory.
const BLIND: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// How one end waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    spin: Spin,
    interest: Interest,
    /// Wakes a task that waits.
    alarm: Alarm,
}

/// An end that can wait.
pub(crate) trait Waits {
    fn waiter(&mut self) -> &mut Waiter;

    /// Arms what ends a wait.
    fn arm_waiter(&mut self);

    /// Notes that the waiter sleeps now.
    fn park(&mut self);
}

impl Waiter {
    /// Creates the waits of an end, which spin for at most `spin`.
    pub(crate) fn new(spin: Duration) -> Self {
        Waiter { spin: Spin::new(spin), interest: Interest::default(), alarm: Alarm::default() }
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
    blind: Duration,
}

impl Sleeps {
    pub(crate) fn new() -> Self {
        Sleeps { informed: SLEEP_FIRST, blind: BLIND[0] }
    }

    /// Returns how long the next sleep is at most.
    pub(crate) fn next(&mut self, is_blind: bool) -> Duration {
        let (sleep, max) = match is_blind {
            true => (&mut self.blind, BLIND[1]),
            false => (&mut self.informed, SLEEP_MAX),
        };
        let next = (*sleep * 4).min(max);
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
    let mut sleeps = Sleeps::new();
    loop {
        end.arm_waiter();
        if let Some(answer) = ask(end)? {
            return Ok(answer);
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Kind::TimedOut { what, within: timeout }.into());
        }
        end.park();
        let interest = &mut end.waiter().interest;
        let sleep = sleeps.next(interest.is_blind());
        if interest.sleep(sleep.min(left)) {
            sleeps = Sleeps::new();
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
    /// When the wait of an end without descriptors began.
    since: Option<Instant>,
}

impl Alarm {
    /// Lets the reactor wake the task when there is news.
    fn set(&mut self, interest: &Interest, context: &Context<'_>) {
        let within = self.sleeps.get_or_insert_with(Sleeps::new).next(interest.is_blind());
        self.set_within(Some(interest), within, context);
    }

    fn set_within(&mut self, interest: Option<&Interest>, within: Duration, context: &Context<'_>) {
        if self.seat.is_none() {
            self.seat = Seat::take().ok();
        }
        match &self.seat {
            Some(seat) => {
                let descriptor = interest.and_then(Interest::descriptor);
                seat.wake(descriptor, within, context.waker());
            }
            // The system has no thread for the reactor, so the task asks again and again.
            None => context.waker().wake_by_ref(),
        }
    }

    /// Ends a wait.
    pub(crate) fn end(&mut self) {
        if self.sleeps.take().is_some() | self.since.take().is_some()
            && let Some(seat) = &self.seat
        {
            seat.forget();
        }
    }

    /// Answers a task what it has got by asking. Without an answer, the task is woken after an eighth of the time
    /// that it has waited, so the sleeps delay the answer by no more than that.
    pub(crate) fn answer<T>(
        &mut self,
        context: &Context<'_>,
        asked: Result<Option<T>, Error>,
    ) -> Poll<Result<T, Error>> {
        if let Some(answer) = asked.transpose() {
            self.end();
            return Poll::Ready(answer);
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        self.set_within(None, nap_after(waited), context);
        Poll::Pending
    }
}

/// A wait of a task. If the task drops it, the task is woken no more.
struct Waiting<'a, E: Waits>(&'a mut E);

impl<E: Waits> Drop for Waiting<'_, E> {
    fn drop(&mut self) {
        self.0.waiter().alarm.end();
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
        end.park();
        let Waiter { interest, alarm, .. } = end.waiter();
        alarm.set(interest, context);
        Poll::Pending
    })
    .await
}

/// Polls until there is an answer or an error, for an end that is not connected yet. It sleeps for an eighth
/// of the time that it has waited, so the sleeps delay the answer by no more than that.
pub(crate) fn poll_within<T>(
    mut poll: impl FnMut() -> Result<Option<T>, Error>,
    mut late: impl FnMut(Duration) -> Option<Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll()? {
            return Ok(answer);
        }
        let waited = start.elapsed();
        if let Some(error) = late(waited) {
            return Err(error);
        }
        std::thread::sleep(nap_after(waited));
    }
}

/// Returns how long to sleep after a wait of this length.
fn nap_after(waited: Duration) -> Duration {
    (waited / 8).clamp(Duration::from_micros(50), SLEEP_FIRST)
}
