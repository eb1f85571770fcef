//! Ranks that work together: collectives, and messages between any two (`ncclComm`).
//!
//! One process opens a [`Hub`](crate::Hub) and gives every rank its [`UniqueId`]; each rank joins
//! with it. From then on all of them make the same calls in the same order.
//!
//! ```
//! use std::time::Duration;
//! use invar::{Communicator, Hub, RedOp, Settings};
//!
//! let settings = Settings::from_env()?;
//! let address = "127.0.0.1:0".parse()?;
//! let hub = Hub::listen(address, settings.tcp_ports(), 2, None, Duration::from_secs(30))?;
//! // Two ranks, as a rule in two processes; 128 bytes get to each in some way of the program's own.
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
//! Ranks of one host exchange it through memory that they share, unless `NCCL_SHM_DISABLE` is set
//! for one of them. The thread that calls does the work.
//!
//! # Failure
//!
//! The first error of any rank ends the communicator on all of them: each call under way and each
//! later one returns it, and it names the rank. A process that is killed is noticed within a second
//! by the end of its connection with the hub; a host that is cut off, within half a minute. A rank
//! that is there and does not do its part is given up after `INVAR_COLL_TIMEOUT_MS`.
//!
//! A rank may be done before the others. Where its process had the [`Hub`](crate::Hub) and ends, the
//! others go on, and no longer hear of each other: they notice a rank that is gone by the network,
//! or by that timeout, and cannot make new links over a network.
//!
//! # Processors
//!
//! A rank that waits spins, so it does best with a processor of its own. Linux may put two ranks that
//! wake each other on one for a while, where each runs only while the other does not. A communicator
//! binds no thread: that is for the program, which knows of its others. Where a host has a processor
//! for each rank, it should bind the threads that make calls, or whole processes, each rank to
//! another one, before it joins (`sched_setaffinity`, `taskset`, Open MPI's `--bind-to core`);
//! `invar coll` does so.
//!
//! # Without threads
//!
//! What a communicator does is a [`Plan`] for each rank, moved over [`Links`]; these know neither
//! threads nor time, and [`net::Network`] makes links of ends that the caller has connected. So one
//! thread can be all ranks of a network that it simulates.

mod backoff;
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
mod pending;
mod pending_link;
mod plan;
pub mod reduce;
mod setup;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use invar_core::coll::RedOp;
use invar_core::rendezvous::UniqueId;
use invar_linux::proxy::DumpOnSignal;
use invar_linux::rendezvous::Bootstrap;

use self::call::{Call, in_place, typed};
use self::dump::Dump;
use self::engine::Engine;
use self::pending::Queue;
use crate::{Error, Settings};

pub use element::Element;
pub use group::Group;
pub use invar_core::coll::{Algorithm, Operation, Order, OrderError, Task};
pub use invar_core::proxy::{Ring, Tree};
pub use job::Progress;
pub use links::Links;
pub use pending::Pending;
pub use plan::Plan;

/// What blobs of the rendezvous are about.
mod tags {
    pub(super) const ABOUT: u32 = 1;
    pub(super) const CHANNELS: u32 = 2;
    pub(super) const SHARED_MEMORY: u32 = 3;
    pub(super) const EXCHANGE: u32 = 4;
    /// And the channel.
    pub(super) const LINK: u32 = 0x1_0000;
}

/// One rank of several. See the [module](self).
///
/// Calls may come from any thread; those of one rank are done in the order in which they come.
/// Dropped, it tells the others that this rank is done: they should be too (`ncclCommDestroy`).
pub struct Communicator {
    core: Arc<Core>,
    worker: Mutex<Option<pending::Worker>>,
    dump: Arc<Dump>,
    transport: String,
    within: Duration,
    _on_signal: Option<DumpOnSignal>,
}

struct Core {
    bootstrap: Arc<Bootstrap>,
    engine: Mutex<Engine>,
    queue: Queue,
}

impl Communicator {
    /// Joins as `rank` of `nranks`, with all others (`ncclCommInitRank`). It takes as long as the
    /// last of them, and `INVAR_CONNECT_TIMEOUT_MS` at most.
    ///
    /// # Errors
    /// A wrong secret, size or rank; a rank that is there already; one that does not come; no way to
    /// another rank.
    pub fn join(id: &UniqueId, rank: u32, nranks: u32, settings: &Settings) -> Result<Self, Error> {
        settings.usable()?;
        let dump = Dump::new(rank, nranks);
        let on_signal = dump.on_signal(settings)?;
        let bootstrap = Bootstrap::join(id, (rank, nranks), settings.connect_within());
        let bootstrap = Arc::new(bootstrap.map_err(Error::bootstrap)?);
        let engine = setup::engine(Arc::clone(&bootstrap), settings);
        let (engine, transport) = engine.map_err(|error| engine::failed(&bootstrap, error))?;
        dump.joined(engine.links.routes());
        let core = Core { bootstrap, engine: Mutex::new(engine), queue: Queue::default() };
        let (core, worker) = (Arc::new(core), Mutex::default());
        let within = settings.connect_within();
        Ok(Communicator { core, worker, dump, transport, within, _on_signal: on_signal })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> u32 {
        self.core.bootstrap.rank()
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.core.bootstrap.nranks()
    }

    /// What data of this rank goes over: `shared memory`, or a transport and its devices, as in
    /// `soft (soft0)`, or both, where some ranks share memory with this one.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// What each rank says, to all, in the order of ranks (`bootstrapAllGather`). It goes through the
    /// rendezvous, so it suits what ranks agree on before they move data. The bytes may differ in
    /// length, up to 256 MiB of all ranks together.
    ///
    /// # Errors
    /// A rank that fails, or says nothing within `INVAR_CONNECT_TIMEOUT_MS`.
    pub fn exchange(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.core.bootstrap.all_gather(tags::EXCHANGE, bytes, self.within);
        all.map_err(Error::bootstrap)
    }

    /// Ends the communicator on all ranks, for a reason that each is told (`ncclCommAbort`).
    pub fn abort(&self, reason: &str) {
        self.core.bootstrap.fail(&format!("aborted: {reason}"));
    }

    /// What ended the communicator, if something has (`ncclCommGetAsyncError`).
    pub fn check(&self) -> Result<(), Error> {
        self.core.bootstrap.check().map_err(Error::failure)
    }

    /// How this rank stands: a line that says by which ways it reaches the others, and below it what
    /// its links over the network move, in the notation of NCCL's dump. It
    /// waits for no call that is under way, so that it tells of one that hangs. `NCCL_PROXY_DUMP_SIGNAL`
    /// has it written on stderr, from the beginning of [`join`](Self::join) on.
    pub fn dump(&self) -> String {
        self.dump.to_string()
    }

    /// Sends and receives that are done at once, and collectives that are done one after the other
    /// (`ncclGroupStart`). A transfer goes on when its peer has come to it, whatever the others of the
    /// group wait for.
    pub fn group<'b>(&self) -> Group<'_, 'b> {
        Group::new(&self.core)
    }

    /// The inputs of all ranks, reduced, to each of them. All have the same length.
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: RedOp,
    ) -> Result<(), Error> {
        self.call(typed(self.shape(Operation::AllReduce, Some(op)), output.len(), input, output)?)
    }

    /// [`all_reduce`](Self::all_reduce) in place.
    pub fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: RedOp) -> Result<(), Error> {
        self.call(in_place(self.shape(Operation::AllReduce, Some(op)), data.len(), data)?)
    }

    /// The inputs of all ranks, one behind the other, to each of them.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.call(typed(self.shape(Operation::AllGather, None), input.len(), input, output)?)
    }

    /// [`all_gather`](Self::all_gather) in place: each rank's block is at its place already.
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        let count = data.len() / self.nranks() as usize;
        self.call(in_place(self.shape(Operation::AllGather, None), count, data)?)
    }

    /// The inputs of all ranks, reduced, to each of them its block.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: RedOp,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::ReduceScatter, Some(op));
        self.call(typed(shape, output.len(), input, output)?)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) in place: each rank's block replaces that of its
    /// input; what is in the others afterwards is not said.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: RedOp,
    ) -> Result<(), Error> {
        let count = data.len() / self.nranks() as usize;
        self.call(in_place(self.shape(Operation::ReduceScatter, Some(op)), count, data)?)
    }

    /// The root's data to all, in place.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), Error> {
        self.call(in_place(self.shape(Operation::Broadcast { root }, None), data.len(), data)?)
    }

    /// The root's input to all; elsewhere the input is empty.
    pub fn broadcast_from<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::Broadcast { root }, None);
        self.call(typed(shape, output.len(), input, output)?)
    }

    /// The inputs of all ranks, reduced, to the root; elsewhere the output is empty.
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: RedOp,
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::Reduce { root }, Some(op));
        self.call(typed(shape, input.len(), input, output)?)
    }

    /// [`reduce`](Self::reduce) in place at the root; elsewhere the data stays as it is.
    pub fn reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: RedOp,
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::Reduce { root }, Some(op));
        self.call(in_place(shape, data.len(), data)?)
    }

    /// Block *i* of the input to rank *i*, whose block for this rank comes to place *i* of the output.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let count = input.len() / self.nranks() as usize;
        self.call(typed(self.shape(Operation::AllToAll, None), count, input, output)?)
    }

    /// Data to a rank, which receives as much, or fails. It may wait until that one does; several at
    /// once go in a [`group`](Self::group).
    pub fn send<T: Element>(&self, data: &[T], peer: u32) -> Result<(), Error> {
        self.call(typed(self.shape(Operation::Send { peer }, None), data.len(), data, &mut [])?)
    }

    /// Data from a rank, which sends as much.
    pub fn recv<T: Element>(&self, data: &mut [T], peer: u32) -> Result<(), Error> {
        self.call(typed(self.shape(Operation::Recv { peer }, None), data.len(), &[], data)?)
    }

    /// Returns once all ranks have called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.all_reduce_in_place(&mut [0_u8], RedOp::Max)
    }

    fn shape(&self, operation: Operation, redop: Option<RedOp>) -> call::Shape {
        self.core.shape(operation, redop)
    }

    fn call(&self, call: Call) -> Result<(), Error> {
        // SAFETY: made of borrowed slices, which outlive this.
        unsafe { self.core.run(&[call]) }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.core.queue.close();
        // A panic there has been told by the thread itself.
        drop(self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Core {
    fn shape(&self, operation: Operation, redop: Option<RedOp>) -> call::Shape {
        let (rank, nranks) = (self.bootstrap.rank(), self.bootstrap.nranks());
        call::Shape { operation, redop, rank, nranks }
    }

    /// Does what was started before, and then these calls.
    ///
    /// # Safety
    ///
    /// As of [`Engine::run`].
    unsafe fn run(&self, calls: &[Call]) -> Result<(), Error> {
        let mut engine = self.engine();
        self.queue.drain(&mut engine);
        // SAFETY: the caller's promise.
        unsafe { engine.run(calls) }
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
