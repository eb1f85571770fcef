//! The thread that moves operations (`proxy.cc ncclProxyProgress`).

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, yield_now};

use invar_core::proxy::{
    AppendError, Args, CloseError, Connection, ConnectionId, ConnectionSpec, Engine, Event,
    OpenError, Pace, Probe, ProgressError, Slot, TakeError, Taker, Transport,
};
use rustix::thread::CpuSet;

use super::abort::TICK;
use super::{Abort, HeapBanks, SharedOps, futex, thread};

type HeapEngine = Engine<HeapBanks<Slot<Args>>, HeapBanks<Option<Connection>>>;

/// How to run it.
pub struct ProgressSettings {
    /// The GPU that it serves, for its name.
    pub device: u32,
    /// Processors that it may run on; `None` for all.
    pub cpus: Option<CpuSet>,
    /// `NCCL_PROXY_APPEND_BATCH_SIZE`.
    pub append_batch: u32,
    /// `NCCL_PROGRESS_APPENDOP_FREQ`.
    pub append_every: u32,
    /// `NCCL_PROXY_DUMP_SIGNAL`: the signal on which what is active is written, and to where.
    pub dump: Option<(u8, Box<dyn Write + Send>)>,
}

impl Default for ProgressSettings {
    /// What NCCL does by default.
    fn default() -> Self {
        ProgressSettings { device: 0, cpus: None, append_batch: 16, append_every: 8, dump: None }
    }
}

/// Why the thread ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ProgressFailure<E: Display + std::fmt::Debug> {
    /// The communicator is aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The transport can go no further.
    #[error(transparent)]
    Transport(ProgressError<E>),
    /// What a rank posted can't be moved.
    #[error(transparent)]
    Take(TakeError<AppendError>),
    /// A connection can't be opened.
    #[error(transparent)]
    Open(OpenError),
    /// It panicked, which is an error of the transport's or this program's.
    #[error("the progress thread panicked")]
    Panicked,
}

/// A running progress thread. Dropping it aborts the thread and waits for its end.
#[derive(Debug)]
pub struct Progress<E: Display + std::fmt::Debug> {
    mailbox: Arc<Mailbox>,
    abort: Abort,
    thread: Option<JoinHandle<Result<(), ProgressFailure<E>>>>,
    dump: Option<signal_hook::SigId>,
}

/// What connections the thread is told of; clones tell the same thread.
#[derive(Clone, Debug)]
pub struct ProgressConnections(Arc<Mailbox>);

/// What others have to say to the thread.
#[derive(Debug)]
struct Mailbox {
    shared: SharedOps,
    commands: Mutex<Vec<Command>>,
    /// How many there are, so that looking is cheap.
    waiting: AtomicUsize,
    dump: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Open(ConnectionId, ConnectionSpec),
    Close(ConnectionId),
}

impl<E: Display + std::fmt::Debug + Send + 'static> Progress<E> {
    /// Starts it for the ranks of `shared`. `probe` is told what happens.
    pub fn spawn<T>(
        shared: SharedOps,
        settings: ProgressSettings,
        abort: Abort,
        transport: T,
        probe: impl Probe + Send + 'static,
    ) -> io::Result<Self>
    where
        T: Transport<Error = E> + Send + 'static,
    {
        let flag = Arc::new(AtomicBool::new(false));
        let (signal, dump_to) = settings.dump.unzip();
        let dump = signal.map(|signal| on_signal(signal, &flag)).transpose()?;
        let mailbox = Arc::new(Mailbox {
            shared,
            commands: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            dump: flag,
        });
        let mut mover = Mover {
            mailbox: Arc::clone(&mailbox),
            abort: abort.clone(),
            engine: Engine::new(HeapBanks::default(), HeapBanks::default()),
            taker: Taker::default(),
            batch: settings.append_batch,
            closing: Vec::new(),
            dump_to,
            transport,
            probe,
        };
        let pace = Pace::new(settings.append_every);
        let name = format!("InvarProgress{:2}", settings.device);
        let thread = thread::spawn(name, settings.cpus, move || {
            let result = mover.run(pace);
            // Ranks need not wait for what nobody moves.
            mover.mailbox.shared.pool().posted().close();
            result
        })?;
        Ok(Progress { mailbox, abort, thread: Some(thread), dump })
    }

    /// To tell it of connections.
    pub fn connections(&self) -> ProgressConnections {
        ProgressConnections(Arc::clone(&self.mailbox))
    }

    /// Whether it has ended, though not told to; [`Progress::stop`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it: ranks can post no more, and what they have posted is moved to its end. Another
    /// thread may abort meanwhile.
    pub fn stop(mut self) -> Result<(), ProgressFailure<E>> {
        self.close();
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(ProgressFailure::Panicked),
            Some(Ok(result)) => result,
            None => Ok(()),
        }
    }
}

impl<E: Display + std::fmt::Debug> Progress<E> {
    /// Takes no more operations, and has the thread look.
    fn close(&self) {
        let posted = self.mailbox.shared.pool().posted();
        posted.close();
        futex::wake(posted);
    }
}

impl<E: Display + std::fmt::Debug> Drop for Progress<E> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.abort.set();
            self.close();
            // Why it ended, nobody asks.
            let _ = thread.join();
        }
        if let Some(dump) = self.dump.take() {
            signal_hook::low_level::unregister(dump);
        }
    }
}

impl ProgressConnections {
    /// Opens a connection, before any operation that names it: one that is posted later finds it.
    pub fn open(&self, id: ConnectionId, spec: ConnectionSpec) {
        self.tell(Command::Open(id, spec));
    }

    /// Closes a connection once all that was posted is done with it.
    pub fn close(&self, id: ConnectionId) {
        self.tell(Command::Close(id));
    }

    /// A descriptor of the pool of operations, for a rank.
    pub fn to_fd(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.0.shared.to_fd()
    }

    fn tell(&self, command: Command) {
        self.0.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.0.waiting.fetch_add(1, Ordering::Release);
    }
}

/// Has `flag` set on a signal, beside what others have done on it.
fn on_signal(signal: u8, flag: &Arc<AtomicBool>) -> io::Result<signal_hook::SigId> {
    let signal = signal.into();
    if signal_hook::consts::FORBIDDEN.contains(&signal) {
        let what = format!("NCCL_PROXY_DUMP_SIGNAL={signal}: nothing else can be done on it");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    signal_hook::flag::register(signal, Arc::clone(flag))
}

/// The thread's own.
struct Mover<T, P> {
    mailbox: Arc<Mailbox>,
    abort: Abort,
    engine: HeapEngine,
    taker: Taker,
    batch: u32,
    /// Connections to be closed when nothing uses them.
    closing: Vec<ConnectionId>,
    dump_to: Option<Box<dyn Write + Send>>,
    transport: T,
    probe: P,
}

impl<T: Transport, P: Probe> Mover<T, P>
where
    T::Error: std::fmt::Debug,
{
    fn run(&mut self, mut pace: Pace) -> Result<(), ProgressFailure<T::Error>> {
        loop {
            if self.abort.is_set() {
                return Err(ProgressFailure::Aborted);
            }
            if self.mailbox.dump.swap(false, Ordering::Relaxed)
                && let Some(to) = &mut self.dump_to
            {
                // Nobody is there to be told that it can't be written.
                let _ = write!(to, "{}", self.engine).and_then(|()| to.flush());
            }
            let moved = self
                .engine
                .progress(&mut self.transport, &mut self.probe)
                .map_err(ProgressFailure::Transport)?;
            let (look, event) = pace.after_round(moved);
            event.into_iter().for_each(|event| self.probe.record(event));
            if !look {
                continue;
            }
            // Looked at before taking: what was posted before it was closed is then taken.
            let closed = self.mailbox.shared.pool().posted().is_closed();
            if self.take()? > 0 {
                continue;
            }
            self.close_unused()?;
            match (self.engine.is_idle(), closed) {
                (true, true) => return Ok(()),
                (true, false) => self.sleep(),
                (false, _) => yield_now(),
            }
        }
    }

    /// Takes new operations; says how many.
    fn take(&mut self) -> Result<u32, ProgressFailure<T::Error>> {
        let Mover { mailbox, engine, taker, closing, probe, batch, .. } = self;
        let pool = mailbox.shared.pool();
        if !taker.has_more() && pool.posted().is_empty() {
            return Ok(0);
        }
        probe.record(Event::Append);
        let mut failed = Ok(());
        let taken = taker.take(pool, *batch, |rank, op| {
            // The rank was told of its connection after we were.
            if failed.is_ok() {
                failed = obey(mailbox, engine, closing);
            }
            engine.append(rank, op)
        });
        failed.map_err(ProgressFailure::Open)?;
        let taken = taken.map_err(ProgressFailure::Take)?;
        for rank in (0..pool.nranks()).filter(|rank| taken.wake_ranks & 1 << rank != 0) {
            pool.free(rank).into_iter().for_each(futex::wake);
        }
        probe.record(Event::AppendEnd { ops: taken.ops });
        Ok(taken.ops)
    }

    /// Closes what is to be closed and used by nothing. All that was posted is taken by now.
    fn close_unused(&mut self) -> Result<(), ProgressFailure<T::Error>> {
        let Mover { mailbox, engine, closing, .. } = self;
        obey(mailbox, engine, closing).map_err(ProgressFailure::Open)?;
        // The later share the buffers of the earlier.
        closing.sort_unstable();
        let mut left = closing.len();
        while let Some(at) = left.checked_sub(1) {
            if !matches!(engine.close(closing[at]), Err(CloseError::InUse(..))) {
                closing.remove(at);
            }
            left = at;
        }
        Ok(())
    }

    /// Until a rank posts something, or it is to stop, or to dump.
    fn sleep(&mut self) {
        let Mailbox { shared, dump, waiting, .. } = &*self.mailbox;
        let posted = shared.pool().posted();
        self.probe.record(Event::Sleep);
        while posted.is_empty()
            && !posted.is_closed()
            && !self.abort.is_set()
            && !dump.load(Ordering::Relaxed)
            && waiting.load(Ordering::Relaxed) == 0
        {
            futex::wait_while_empty(posted, TICK);
        }
        self.probe.record(Event::Wakeup);
    }
}

/// Does what others have said.
fn obey(
    mailbox: &Mailbox,
    engine: &mut HeapEngine,
    closing: &mut Vec<ConnectionId>,
) -> Result<(), OpenError> {
    if mailbox.waiting.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let commands =
        std::mem::take(&mut *mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner));
    mailbox.waiting.fetch_sub(commands.len(), Ordering::Relaxed);
    for command in commands {
        match command {
            Command::Open(id, spec) => engine.open(id, spec)?,
            Command::Close(id) => closing.push(id),
        }
    }
    Ok(())
}
