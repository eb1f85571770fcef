//! The keeper: a thread that looks after the ends of connections while their program does something else.
//!
//! It checks whether each peer is still there, and it recovers connections. A program may wait for
//! connection A while its peer waits for connection B. If B fails, only the keeper mends B.
//!
//! A keeper looks at ports and calls peers, and Linux does both in the network namespace of the thread. So a
//! process has one keeper for each namespace in which it has connections.
//!
//! The keeper also looks whether an end stands still. To know what the program at such an end calls, it
//! makes the end's next call take the mutex, and this call is noted. So a call that moves data pays nothing.

use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use invar_linux::biased::Biased;
use invar_linux::interface;
use invar_linux::own_thread::OwnThread;
use invar_linux::poller::Poller;
use invar_linux::tcp::attend_renewals;

use super::recorded::{Recording, Snapshot};
use crate::Error;

/// Time between two looks at an end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time between two looks at an end that recovers.
const URGENT_EVERY: Duration = Duration::from_millis(1);
/// Time for each end between two looks, so that many ends do not keep a processor busy.
const PER_END: Duration = Duration::from_micros(200);

/// The keepers of this process, each with its network namespace, while there are connections.
static OF_PROCESS: Mutex<Vec<(u64, Weak<Running>)>> = Mutex::new(Vec::new());

/// The rest of an end: nothing is under way, its program makes no call, and its peer says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Rest<'a> {
    /// The descriptor that ends the rest once it is readable.
    pub news: BorrowedFd<'a>,
    /// The time to the next look, if nothing ends the rest.
    pub within: Duration,
}

/// How much attention an end needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// A look now and then is enough.
    None,
    /// The end recovers, and needs looks often.
    Recovery,
    /// The end's next call is to be noted, because nothing moves.
    Note,
    /// The connection has ended, and every call must return its error.
    Closed,
}

/// An end that a keeper can look after.
pub trait KeptEnd: Send {
    /// Checks the peer and continues a recovery; see [`End::look`](super::End::look).
    fn look(&mut self) -> Attention;
    /// Returns how much attention the end needs; see [`End::attention`](super::End::attention).
    fn attention(&self) -> Attention;
    /// Returns what ends a rest of the end; see [`End::rest`](super::End::rest).
    fn rest(&self) -> Option<Rest<'_>>;
    /// Notes that the program has made a call; see [`End::called`](super::End::called).
    fn called(&mut self);
    /// Returns what the flight recorder keeps of the end; see [`End::snapshot`](super::End::snapshot).
    fn snapshot(&self, counts: bool) -> Option<Snapshot>;
}

/// An end that another thread uses, as the keeper sees it.
trait Visited: Send + Sync {
    /// Looks after the end. `counts` asks for the counters of its device. If the end may rest, `watch` gets
    /// the descriptor that ends the rest, and returns whether somebody waits for the descriptor.
    fn look(&self, counts: bool, watch: &mut dyn FnMut(BorrowedFd<'_>) -> bool) -> Looked;
    /// Returns what the flight recorder keeps of the end now.
    fn snapshot(&self) -> Option<Snapshot>;
    /// Returns whether the program has made a call since a look after which the end rests.
    fn is_called(&self) -> bool;
}

/// What a look at an end has found.
#[derive(Default)]
struct Looked {
    /// Whether the end needs the next look soon.
    is_urgent: bool,
    /// How long the end rests.
    rest: Option<Duration>,
    /// What the flight recorder keeps.
    snapshot: Option<Snapshot>,
}

/// An end that is looked after, and its record.
struct Watched {
    end: Arc<dyn Visited>,
    /// The end's descriptor has this number in the keeper's poller.
    number: u64,
    rests_until: Mutex<Option<Instant>>,
    /// When the descriptor last ended a rest.
    news_at: Mutex<Option<Instant>>,
    /// Whether the descriptor has ended two rests in a short time. The end then rests again after its next look but
    /// one, so that a descriptor that stays readable keeps nobody busy.
    has_more_news: AtomicBool,
    recording: Recording,
}

impl Watched {
    fn new(end: Arc<dyn Visited>, number: u64) -> Self {
        let (rests_until, news_at) = (Mutex::default(), Mutex::default());
        let (has_more_news, recording) = (AtomicBool::new(false), Recording::default());
        Watched { end, number, rests_until, news_at, has_more_news, recording }
    }

    /// Notes that the descriptor has ended the end's rest.
    fn has_news(&self, now: Instant) {
        let before = lock(&self.news_at).replace(now);
        let is_soon = before.is_some_and(|before| now.duration_since(before) < 2 * LOOK_EVERY);
        self.has_more_news.store(is_soon, Ordering::Relaxed);
        *lock(&self.rests_until) = None;
    }

    /// Looks after the end. Returns whether the end needs the next look soon.
    fn look(&self, poller: Option<&Poller>) -> bool {
        let poller = poller.filter(|_| !self.has_more_news.swap(false, Ordering::Relaxed));
        let mut watch = |news: BorrowedFd<'_>| {
            poller.is_some_and(|poller| poller.watch(news, self.number).is_ok())
        };
        let counts = self.recording.is_counting_due();
        let Looked { is_urgent, rest, snapshot } = self.end.look(counts, &mut watch);
        *lock(&self.rests_until) = rest.map(|within| Instant::now() + within);
        if let Some(snapshot) = snapshot {
            self.recording.look(&snapshot);
        }
        is_urgent
    }

    /// Whether the end needs a look when the keeper looks at all ends. An end that still rests needs none.
    fn is_due(&self, now: Instant) -> bool {
        lock(&self.rests_until).is_none_or(|until| until <= now) || self.end.is_called()
    }
}

impl<T: KeptEnd> Visited for Biased<T> {
    fn look(&self, counts: bool, watch: &mut dyn FnMut(BorrowedFd<'_>) -> bool) -> Looked {
        let looked = self.visit(|end| {
            let looked = catch_unwind(AssertUnwindSafe(|| KeptEnd::look(&mut **end)));
            let Ok(attention) = looked else {
                // The other ends still need the thread.
                log::error!("a defect: the check of a connection panicked, and the connection is checked no more");
                end.end_visits();
                return Looked::default();
            };
            end.set_slow(attention != Attention::None);
            // Only calls that are to be noted end a rest.
            let rest = end.rest().filter(|rest| attention == Attention::Note && watch(rest.news));
            let rest = rest.map(|rest| rest.within);
            Looked {
                is_urgent: attention == Attention::Recovery,
                rest,
                snapshot: end.snapshot(counts),
            }
        });
        // An end that has gone needs no look.
        looked.unwrap_or_default()
    }

    fn snapshot(&self) -> Option<Snapshot> {
        self.visit(|end| end.snapshot(false)).flatten()
    }

    fn is_called(&self) -> bool {
        Biased::is_called(self)
    }
}

/// Makes a call on an end that a keeper looks after.
///
/// # Safety
/// The caller makes the promises of [`Biased::enter`].
#[inline(always)]
pub unsafe fn call<T: KeptEnd, R>(end: &Biased<T>, call: impl FnOnce(&mut T) -> R) -> R {
    // SAFETY: The caller makes the promises.
    if let Some(mut entered) = unsafe { end.enter() } {
        let result = call(&mut entered);
        if entered.attention() != Attention::None {
            drop(entered);
            // SAFETY: The caller makes the promises.
            unsafe { end.lock() }.set_slow(true);
        }
        return result;
    }
    // SAFETY: The caller makes the promises.
    let mut end = unsafe { end.lock() };
    let result = call(&mut end);
    if end.attention() == Attention::Note {
        end.called();
    }
    let attention = end.attention();
    end.set_slow(attention != Attention::None);
    result
}

/// Looks after ends of connections.
#[derive(Clone)]
pub struct Keeper {
    ends: Arc<Ends>,
    /// The thread that looks. It ends with the last keeper of its namespace.
    _running: Option<Arc<Running>>,
}

/// Makes the keeper forget an end when it is dropped.
#[must_use = "the keeper forgets the end when this value is dropped"]
pub struct KeeperGuard {
    keeper: Keeper,
    end: Arc<Watched>,
}

#[derive(Default)]
struct Ends {
    list: Mutex<List>,
    /// The sleep of the thread, if there is one. It ends when the list has an end again, or when the thread
    /// shall stop.
    poller: Option<Poller>,
}

#[derive(Default)]
struct List {
    /// A look goes over the ends as they were when it began.
    ends: Arc<Vec<Arc<Watched>>>,
    last_number: u64,
    is_over: bool,
}

struct Running {
    ends: Arc<Ends>,
    thread: OwnThread,
}

impl Keeper {
    /// Returns this process' keeper in the network namespace of the calling thread, and starts its thread if
    /// there is none.
    ///
    /// # Errors
    /// Fails if the system has no room for a thread.
    pub fn of_namespace() -> Result<Self, Error> {
        let here = interface::namespace();
        let mut of_process = lock(&OF_PROCESS);
        of_process.retain(|(_, running)| running.strong_count() > 0);
        let mut keepers = of_process.iter().filter(|(namespace, _)| *namespace == here);
        // After `fork` a child has the list of its parent, without the threads.
        let own = |running: &Arc<Running>| running.thread.is_here();
        let running = match keepers.find_map(|(_, running)| running.upgrade().filter(own)) {
            Some(running) => running,
            None => {
                let failed = |error| Error::io("starting the thread that keeps connections", error);
                let running = Arc::new(Running::start().map_err(failed)?);
                of_process.push((here, Arc::downgrade(&running)));
                running
            }
        };
        Ok(Keeper { ends: Arc::clone(&running.ends), _running: Some(running) })
    }

    /// Returns a keeper without a thread. Its owner calls [`Keeper::look`] now and then. Simulations use
    /// such a keeper.
    pub fn without_thread() -> Self {
        Keeper { ends: Arc::default(), _running: None }
    }

    /// Looks after each end once.
    pub fn look(&self) {
        let ends = Arc::clone(&self.ends.list().ends);
        for end in ends.iter() {
            end.look(None);
        }
    }

    /// Looks after an end until the result is dropped.
    pub fn keep<T: KeptEnd + 'static>(&self, end: Arc<Biased<T>>) -> KeeperGuard {
        self.keep_visited(end)
    }

    fn keep_visited(&self, end: Arc<dyn Visited>) -> KeeperGuard {
        let mut list = self.ends.list();
        list.last_number += 1;
        let end = Arc::new(Watched::new(end, list.last_number));
        Arc::make_mut(&mut list.ends).push(Arc::clone(&end));
        if list.ends.len() == 1 {
            self.ends.call();
        }
        drop(list);
        KeeperGuard { keeper: self.clone(), end }
    }
}

impl Drop for KeeperGuard {
    fn drop(&mut self) {
        Arc::make_mut(&mut self.keeper.ends.list().ends).retain(|end| !Arc::ptr_eq(end, &self.end));
        // The program may have met an error or tested messages, and drops the end before the keeper has looked again.
        let has_news = |of: &Snapshot| of.state.error.is_some() || !of.messages.is_empty();
        if let Some(snapshot) = self.end.end.snapshot().filter(has_news) {
            self.end.recording.look(&snapshot);
        }
    }
}

impl Ends {
    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }

    /// Ends the thread's sleep.
    fn call(&self) {
        self.poller.iter().for_each(Poller::call);
    }

    /// Runs the keeper's thread, which looks at each end from time to time. It looks less often at ends that
    /// rest, and more often at ends that recover.
    fn run(&self, poller: &Poller) {
        let mut urgent: Vec<Arc<Watched>> = Vec::new();
        let mut next_full = Instant::now();
        loop {
            let left = next_full.saturating_duration_since(Instant::now());
            let pause = match urgent.len() as u32 {
                0 => left,
                count => left.min(URGENT_EVERY.max(PER_END * count)),
            };
            let mut news = Vec::new();
            poller.sleep(Some(pause), |number| news.push(number));
            let Some(ends) = self.wait(poller) else { return };
            let now = Instant::now();
            let has_news = |end: &&Arc<Watched>| news.contains(&end.number);
            for end in ends.iter().filter(has_news) {
                end.has_news(now);
                urgent.push(Arc::clone(end));
            }
            if now >= next_full {
                next_full = now + LOOK_EVERY.max(PER_END * ends.len() as u32);
                if attend_renewals() {
                    ends.iter().for_each(|end| *lock(&end.rests_until) = None);
                }
                urgent = ends.iter().filter(|end| end.is_due(now)).cloned().collect();
            }
            urgent.retain(|end| end.look(Some(poller)));
        }
    }

    /// Returns all ends. Sleeps while there is none. Returns `None` if the thread shall stop.
    fn wait(&self, poller: &Poller) -> Option<Arc<Vec<Arc<Watched>>>> {
        loop {
            let list = self.list();
            if list.is_over {
                return None;
            }
            if !list.ends.is_empty() {
                return Some(Arc::clone(&list.ends));
            }
            drop(list);
            poller.sleep(None, |_| {});
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn start() -> io::Result<Self> {
        let ends = Arc::new(Ends { list: Mutex::default(), poller: Some(Poller::new()?) });
        let thread = OwnThread::start("invar-keeper", {
            let ends = Arc::clone(&ends);
            move || ends.poller.as_ref().map_or((), |poller| ends.run(poller))
        })?;
        Ok(Running { ends, thread })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ends.list().is_over = true;
        self.ends.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    #[derive(Default)]
    struct Counted {
        looks: AtomicU32,
        is_urgent: bool,
        /// Ends the rests of the end.
        news: Option<UnixStream>,
        is_called: AtomicBool,
    }

    impl Visited for Counted {
        fn look(&self, _: bool, watch: &mut dyn FnMut(BorrowedFd<'_>) -> bool) -> Looked {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let rests = self.news.as_ref().is_some_and(|news| watch(news.as_fd()));
            let rest = rests.then_some(Duration::from_millis(250));
            Looked { is_urgent: self.is_urgent, rest, snapshot: None }
        }

        fn snapshot(&self) -> Option<Snapshot> {
            None
        }

        fn is_called(&self) -> bool {
            self.is_called.swap(false, Ordering::Relaxed)
        }
    }

    fn wait_for(end: &Counted, looks: u32) {
        let start = Instant::now();
        while end.looks.load(Ordering::Relaxed) < looks {
            assert!(start.elapsed() < Duration::from_secs(60), "the keeper does not look");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn ends_are_looked_after_until_they_are_dropped() {
        let keeper = Keeper::of_namespace().unwrap();
        let [first, second] = [Arc::new(Counted::default()), Arc::new(Counted::default())];
        let _first = keeper.keep_visited(first.clone());
        let guard = keeper.keep_visited(second.clone());
        wait_for(&first, 2);
        wait_for(&second, 2);
        drop(guard);
        // One look may be under way.
        let looks = second.looks.load(Ordering::Relaxed);
        wait_for(&first, first.looks.load(Ordering::Relaxed) + 3);
        assert!(second.looks.load(Ordering::Relaxed) <= looks + 1);
        assert!(Arc::strong_count(&second) <= 2);
    }

    #[test]
    fn an_end_that_recovers_is_looked_after_more_often_than_others() {
        let keeper = Keeper::of_namespace().unwrap();
        let urgent = Arc::new(Counted { is_urgent: true, ..Counted::default() });
        let other = Arc::new(Counted::default());
        let _guard = [keeper.keep_visited(urgent.clone()), keeper.keep_visited(other.clone())];
        wait_for(&other, 2);
        let before = [&urgent, &other].map(|end| end.looks.load(Ordering::Relaxed));
        wait_for(&other, before[1] + 4);
        let urgent = urgent.looks.load(Ordering::Relaxed) - before[0];
        assert!(urgent > 8, "{urgent} looks");
    }

    #[test]
    fn an_end_rests_until_its_peer_or_its_program_does_something() {
        let keeper = Keeper::of_namespace().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let resting = Arc::new(Counted { news: Some(ours), ..Counted::default() });
        let other = Arc::new(Counted::default());
        let _guard = [keeper.keep_visited(resting.clone()), keeper.keep_visited(other.clone())];
        wait_for(&resting, 1);
        let before = [&resting, &other].map(|end| end.looks.load(Ordering::Relaxed));
        wait_for(&other, before[1] + 20);
        let looks = resting.looks.load(Ordering::Relaxed) - before[0];
        assert!((1..10).contains(&looks), "{looks} looks");
        for told in [true, false] {
            // News that nobody reads does not keep the thread busy.
            let before = [&resting, &other].map(|end| end.looks.load(Ordering::Relaxed));
            match told {
                true => theirs.write_all(&[1]).unwrap(),
                false => resting.is_called.store(true, Ordering::Relaxed),
            }
            wait_for(&resting, before[0] + 1);
            wait_for(&other, before[1] + 20);
            let looks = resting.looks.load(Ordering::Relaxed) - before[0];
            assert!(looks < 100, "{looks} looks");
        }
    }

    #[test]
    fn a_keeper_without_a_thread_looks_when_it_is_told_to() {
        let keeper = Keeper::without_thread();
        let end = Arc::new(Counted::default());
        let _guard = keeper.keep_visited(end.clone());
        keeper.look();
        keeper.look();
        assert_eq!(end.looks.load(Ordering::Relaxed), 2);
    }
}
