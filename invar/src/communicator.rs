//! A communicator: ranks that run collectives together and send messages to each other (`ncclComm`).
//!
//! One process opens a [`Hub`](crate::Hub) and gives every rank its [`UniqueId`]. Each rank joins with
//! this id. From then on all ranks make the same calls in the same order.
//!
//! ```
//! use std::time::Duration;
//! use invar::{Communicator, Hub, RedOp, Settings};
//!
//! let settings = Settings::from_env()?;
//! let address = "127.0.0.1:0".parse()?;
//! let hub = Hub::listen(address, settings.tcp_ports(), 2, None, Duration::from_secs(30))?;
//! // Two ranks. Most programs have one in each process, and bring the 128 bytes of `id` to each.
//! let id = hub.id();
//! let ranks = [0, 1].map(|rank| {
//!     let settings = settings.clone();
//!     std::thread::spawn(move || -> Result<Vec<f32>, invar::Error> {
//!         let communicator = Communicator::join(&id, rank, 2, &settings)?;
//!         let mut sum = vec![0.0; 1000];
//!         communicator.all_reduce(&vec![1.0 + rank as f32; 1000], &mut sum, RedOp::Sum)?;
//!         Ok(sum)
//!     })
//! });
//! for rank in ranks {
//!     assert_eq!(rank.join().unwrap()?, vec![3.0; 1000]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where data goes
//!
//! Ranks of one host exchange data through shared memory, unless `NCCL_SHM_DISABLE` is set for one of
//! them. The calling thread does the work. Ranks of different hosts use all RDMA devices with a link, or else
//! the software NIC; `INVAR_TRANSPORT=socket` takes TCP.
//!
//! # Failure
//!
//! The first error of any rank ends the communicator on all ranks. Each current and each later call
//! returns this error, which names the rank. A call that its own rank refuses, such as one with a wrong
//! length, ends nothing, so the rank can make the right call instead. If a process is killed, the others
//! notice within a second, because its connection with the hub ends. If a host is cut off, the others
//! notice within `INVAR_RECOVERY_TIMEOUT_MS`, a minute by default. If a rank is present but does not do its
//! part, the others give it up after `INVAR_COLL_TIMEOUT_MS`.
//!
//! A rank may finish before the others. If its process has the [`Hub`](crate::Hub) and ends, the other
//! ranks continue, but they no longer hear of each other. They then notice a missing rank by the
//! network or by `INVAR_COLL_TIMEOUT_MS`. They can't make new links over a network.
//!
//! # Forks
//!
//! A communicator belongs to the process that has joined. In a child of `fork` its operations return an error and
//! touch no link, and dropping it tells the other ranks nothing. The child may join other communicators.
//!
//! # Processors
//!
//! A waiting rank spins for `INVAR_SPIN_US`, so it runs best on a processor of its own. Then it sleeps until
//! data comes. If spinning is in vain, because other programs need the processors, it sleeps at once. Linux
//! may put two ranks that wake each other on one processor for a while; then each rank runs only while the
//! other does not.
//!
//! A communicator binds no thread, because only the program knows its other threads. If a host has a
//! processor for each rank, bind each rank to its own processor before it joins. Bind the threads that
//! make calls, or whole processes (`sched_setaffinity`, `taskset`, Open MPI's `--bind-to core`). `invar
//! coll` does so.
//!
//! # Who moves an operation
//!
//! A blocking call moves its operation on the calling thread. The communicator's own thread moves the
//! `start_*` operations. [`Communicator::post`] starts operations on raw memory, and its caller names their
//! [`Mover`]. The mover is the communicator's thread, or the caller, who tests the operations or waits for them.
//!
//! # Without threads
//!
//! A communicator moves a [`Plan`] for each rank over [`Links`]. Plans and links know neither threads
//! nor time. [`net::Network`] makes links from ends that the caller has connected. So one thread can be
//! all ranks of a network that it simulates.

mod backoff;
mod blocking;
mod board;
mod call;
mod choose;
mod dump;
mod element;
mod engine;
mod group;
mod job;
mod link;
mod links;
mod local;
pub mod net;
mod operations;
mod pending;
mod pending_link;
mod plan;
mod posted;
mod queue;
pub mod reduce;
mod setup;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use invar_core::coll::RedOp;
use invar_core::rendezvous::UniqueId;
use invar_linux::fork::OwnerProcess;
use invar_linux::proxy::DumpOnSignal;
use invar_linux::rendezvous::Bootstrap;

use self::board::Board;
use self::call::{Call, check_own};
use self::dump::Dump;
use self::engine::{Advance, SLEEP_MAX};
use self::queue::{AtWorkplace, Queue, Workplace};
use crate::error::Kind;
use crate::{Error, Launch, Meeting, Settings};

pub use element::Element;
pub use group::Group;
pub use invar_core::coll::{Algorithm, Operation, Order, OrderError, Task};
pub use invar_core::topology::{Ring, Tree};
pub use job::Progress;
pub use links::Links;
pub use pending::Pending;
pub use plan::Plan;
pub use posted::{Posted, RawOperation};
pub use queue::Mover;

/// Tags of the messages that ranks exchange through the rendezvous.
mod tags {
    pub(super) const ABOUT: u32 = 1;
    pub(super) const CHANNELS: u32 = 2;
    pub(super) const SHARED_MEMORY: u32 = 3;
    pub(super) const EXCHANGE: u32 = 4;
    /// The first of the tags for links; the channel's number is added to it.
    pub(super) const LINK: u32 = 0x1_0000;
}

/// One rank of a communicator. See the [module](self).
///
/// Calls may come from any thread. Each rank runs its calls in the order in which they come. When a
/// communicator is dropped, it tells the other ranks that this rank is done. The others should be done
/// too (`ncclCommDestroy`).
///
/// # Errors of operations
///
/// Before it starts, an operation checks the lengths of its input and output, its root or peer, and whether
/// messages of this rank to itself match. If it refuses them, the communicator still works, but the other ranks
/// wait for this rank. An error after the start ends the communicator on all ranks: see
/// [Failure](self#failure).
pub struct Communicator {
    core: Arc<Core>,
    worker: OnceLock<queue::Worker>,
    dump: Arc<Dump>,
    transport: String,
    within: Duration,
    /// Held for a whole exchange: threads that exchange at once would take each other's bytes.
    exchanging: Mutex<()>,
    _on_signal: Option<DumpOnSignal>,
    /// The meeting place, if a launcher started this process. It goes last.
    _meeting: Option<Meeting>,
}

struct Core {
    /// The process that has joined. A child of fork has a copy of the value, and none of its threads.
    owner: OwnerProcess,
    bootstrap: Arc<Bootstrap>,
    workplace: Mutex<Workplace>,
    queue: Queue,
}

impl Communicator {
    /// Joins as `rank` of `nranks`, together with all other ranks (`ncclCommInitRank`). The call
    /// returns when the last rank has joined, or fails after `INVAR_CONNECT_TIMEOUT_MS`.
    ///
    /// # Errors
    /// Fails if the secret, the number of ranks or the rank is wrong, or if another process has joined
    /// as this rank. Fails if a rank does not come, or if there is no path to another rank.
    pub fn join(id: &UniqueId, rank: u32, nranks: u32, settings: &Settings) -> Result<Self, Error> {
        settings.usable()?;
        // Ranks in shared memory open no device.
        settings.show_metrics();
        let dump = Dump::new(rank, nranks);
        let on_signal = dump.on_signal(settings)?;
        let (within, silence) = (settings.connect_within(), settings.silence());
        let bootstrap = Bootstrap::join(id, (rank, nranks), within, silence);
        let bootstrap = Arc::new(bootstrap.map_err(Error::bootstrap)?);
        let board = Arc::new(Board::new(rank, bootstrap.communicator(), &settings.stall()));
        bootstrap.attend(Arc::clone(&board) as _);
        let engine = setup::engine(Arc::clone(&bootstrap), board, settings);
        let (engine, transport) = engine.map_err(|error| engine::failed(&bootstrap, error))?;
        dump.joined(engine.links.routes());
        let workplace = Mutex::new(Workplace::new(engine));
        let (owner, queue) = (OwnerProcess::current(), Queue::default());
        let core = Core { owner, bootstrap, workplace, queue };
        Ok(Communicator {
            core: Arc::new(core),
            worker: OnceLock::new(),
            dump,
            transport,
            within,
            exchanging: Mutex::default(),
            _on_signal: on_signal,
            _meeting: None,
        })
    }

    /// Joins the ranks of this process' job, as its launcher describes them: torchrun, Open MPI's or
    /// MPICH's `mpirun`, Slurm's `srun`, or an indexed job of Kubernetes. See [`Launch`].
    ///
    /// A job has one such communicator at a time. An MPI program under MPICH's `mpirun` must call
    /// [`join`](Self::join) instead, since it needs its connection to the launcher itself.
    ///
    /// # Errors
    /// No launcher started this process, or joining fails.
    pub fn from_env(settings: &Settings) -> Result<Self, Error> {
        let launch = Launch::from_env()?.ok_or_else(|| {
            let text = "no launcher started this process: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or \
                        use Communicator::join";
            Kind::Usage(text.to_owned())
        })?;
        let meeting = launch.meet(settings)?;
        let mut joined = Self::join(&meeting.id, launch.rank, launch.nranks, settings)?;
        joined._meeting = Some(meeting);
        Ok(joined)
    }

    /// Returns this rank's number, from 0.
    pub fn rank(&self) -> u32 {
        self.core.bootstrap.rank()
    }

    /// Returns the number of ranks.
    pub fn nranks(&self) -> u32 {
        self.core.bootstrap.nranks()
    }

    /// Returns the transport of this rank's data: `shared memory`, or a transport and its devices, as
    /// in `soft (soft0)`. Returns both if only some ranks share memory with this one.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// Sends bytes to all ranks and returns the bytes of every rank, in the order of ranks
    /// (`bootstrapAllGather`). The bytes go through the rendezvous, so use this for things that ranks
    /// agree on before they move data. The lengths may differ; all ranks together may send up to 256
    /// MiB.
    ///
    /// # Errors
    /// Fails if a rank fails, or if a rank sends nothing within `INVAR_CONNECT_TIMEOUT_MS`. Then the communicator
    /// has ended on all ranks.
    pub fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.core.check_owner()?;
        let _one_at_a_time = self.exchanging.lock().unwrap_or_else(PoisonError::into_inner);
        let bootstrap = &self.core.bootstrap;
        // Bytes that come later must not be taken for those of the next exchange.
        let all = bootstrap.all_gather(tags::EXCHANGE, bytes, self.within);
        all.map_err(|error| engine::failed(bootstrap, Error::bootstrap(error)))
    }

    /// Ends the communicator on all ranks and tells each of them the reason (`ncclCommAbort`). A child of `fork`
    /// ends nothing.
    pub fn abort(&self, reason: &str) {
        if self.core.owner.is_current() {
            self.core.bootstrap.fail(self.rank(), &format!("aborted: {reason}"));
        }
    }

    /// Returns the error that ended the communicator, if there is one (`ncclCommGetAsyncError`).
    ///
    /// # Errors
    /// The error that ended the communicator; or this process is a child of `fork`.
    pub fn check(&self) -> Result<(), Error> {
        self.core.check_owner()?;
        self.core.bootstrap.check().map_err(Error::failure)
    }

    /// Returns this rank's state as text. The first line names the routes to the other ranks. The lines
    /// below it list the operations of its network links, in the notation of NCCL's dump.
    ///
    /// The call does not wait for other calls, so it also reports a call that hangs. If
    /// `NCCL_PROXY_DUMP_SIGNAL` is set, that signal writes the text to stderr, from the beginning of
    /// [`join`](Self::join) on.
    pub fn dump(&self) -> String {
        self.dump.to_string()
    }

    /// Returns a group of calls (`ncclGroupStart`). The sends and receives of a group run at once; its
    /// collectives run one after the other. A transfer proceeds as soon as its peer runs it too,
    /// whatever the other calls of the group wait for.
    pub fn group<'b>(&self) -> Group<'_, 'b> {
        Group::new(&self.core)
    }

    fn shape(&self, operation: Operation, redop: Option<RedOp>) -> call::Shape {
        self.core.shape(operation, redop)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.core.owner.is_current() {
            // This is a child of fork. The connections belong to the parent, so they must stay open.
            std::mem::forget((Arc::clone(&self.core), Arc::clone(&self.dump)));
            return std::mem::forget((self._on_signal.take(), self._meeting.take()));
        }
        if std::thread::panicking() {
            // An operation of this rank may wait for what its program sends no more.
            self.abort("its program has panicked");
        }
        self.core.queue.close();
        if self.worker.take().is_some_and(queue::Worker::join) {
            // A waker drops the communicator on the worker's own thread.
            drop(self.core.drained());
        }
        // Handles of operations may live on, and hold the engine.
        self.core.workplace().engine.leave();
    }
}

impl Core {
    fn shape(&self, operation: Operation, redop: Option<RedOp>) -> call::Shape {
        let (rank, nranks) = (self.bootstrap.rank(), self.bootstrap.nranks());
        call::Shape { operation, redop, rank, nranks }
    }

    /// Returns an error in a child of fork, whose parent uses the links.
    #[inline]
    fn check_owner(&self) -> Result<(), Error> {
        if self.owner.is_current() { Ok(()) } else { Err(self.inherited()) }
    }

    #[cold]
    fn inherited(&self) -> Error {
        let text = format!(
            "the communicator belongs to process {}, from which this one was forked: join another \
             communicator here",
            self.owner.id()
        );
        Kind::Usage(text).into()
    }

    /// Runs the operations that were started before, and then these calls.
    ///
    /// # Errors
    /// If [`check_owner`](Self::check_owner) or [`check_own`] refuses the calls, the communicator still works. Any
    /// other error ends it on all ranks.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`Engine::run`] about the memory of the calls.
    unsafe fn run(&self, calls: &[Call]) -> Result<(), Error> {
        self.check_owner()?;
        check_own(calls, self.bootstrap.rank())?;
        let mut workplace = self.drained();
        // SAFETY: the caller has promised what `Engine::run` demands, and `check_own` has accepted the calls.
        unsafe { workplace.engine.run(calls) }
    }

    /// Locks the engine, and completes all operations that are started.
    fn drained(&self) -> AtWorkplace<'_> {
        let mut workplace = self.workplace();
        loop {
            match self.queue.round(&mut workplace) {
                None => return workplace,
                Some(Advance::Waiting) => workplace.pause(SLEEP_MAX),
                Some(Advance::Moved | Advance::Done) => {}
            }
            if workplace.has_news() {
                drop(workplace);
                workplace = self.workplace();
            }
        }
    }

    /// Locks the engine.
    fn workplace(&self) -> AtWorkplace<'_> {
        AtWorkplace::new(self.workplace.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
