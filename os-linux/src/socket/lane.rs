//! Lanes: sockets that carry chunks in the order in which they were queued.

mod queue;
mod worker;

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::conn::StreamError;
use invar_core::error::{Ends, Error};
use invar_core::socket::{ResumableSocket, SocketNews};

use super::resume::Resumption;
use crate::interest::Interest;
use crate::memory::{Gather, Scatter};
use crate::tcp::OobStream;
use queue::{Piece, Queue};
use worker::Worker;

/// The direction of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneDirection {
    Send,
    Recv,
}

/// The lanes of one end; `O` names the owner of a chunk.
///
/// Worker threads move the chunks. If there are no workers, the caller of [`Lanes::collect`] moves them.
pub(super) struct Lanes<O> {
    // Dropping the workers ends their threads and waits for them.
    workers: Vec<Worker>,
    lanes: Vec<LaneEnd<O>>,
    direction: LaneDirection,
}

/// A lane, as the owner of its chunks has it.
struct LaneEnd<O> {
    lane: Arc<Lane>,
    /// The owners of the chunks, or `None` for a chunk that is copied and done.
    owners: VecDeque<Option<O>>,
    socket: ResumableSocket<OobStream>,
}

/// A lane, as the thread that moves its chunks has it.
struct Lane {
    direction: LaneDirection,
    state: Mutex<LaneState>,
}

struct LaneState {
    queue: Queue,
    /// The connection, with a number that each new one increases.
    stream: Arc<OobStream>,
    number: u32,
    /// The number of the connection over which bytes are being moved now.
    moving: Option<u32>,
    error: Option<StreamError>,
}

impl<O> Lanes<O> {
    /// Makes lanes over `sockets`, with at most as many threads as lanes. If the system cannot start the
    /// threads, the lanes have none.
    pub(super) fn new(
        sockets: impl IntoIterator<Item = ResumableSocket<OobStream>>,
        direction: LaneDirection,
        threads: u16,
    ) -> Self {
        let lane = |socket: ResumableSocket<OobStream>| {
            let stream = Arc::new(socket.stream().share());
            let queue = Queue::default();
            let state = LaneState { queue, stream, number: 0, moving: None, error: None };
            let lane = Arc::new(Lane { direction, state: Mutex::new(state) });
            LaneEnd { lane, owners: VecDeque::new(), socket }
        };
        let lanes: Vec<LaneEnd<O>> = sockets.into_iter().map(lane).collect();
        let threads = usize::from(threads).min(lanes.len());
        let of = |thread| {
            let lanes = lanes.iter().skip(thread).step_by(threads);
            lanes.map(|end| Arc::clone(&end.lane)).collect()
        };
        let workers = (0..threads).map(|thread| Worker::start(of(thread)));
        let workers = workers.collect::<io::Result<_>>().unwrap_or_default();
        Lanes { workers, lanes, direction }
    }

    /// Queues a chunk.
    ///
    /// # Safety
    ///
    /// The bytes are valid for the direction of the lanes, under the terms of
    /// [`HostMemory::from_raw`](crate::memory::HostMemory::from_raw), until the chunk is collected or
    /// the lanes are dropped.
    pub(super) unsafe fn push(&mut self, lane: usize, start: NonNull<u8>, len: usize, owner: O) {
        let LaneEnd { lane, owners, .. } = &mut self.lanes[lane];
        owners.push_back(Some(owner));
        lane.lock().queue.push(Piece { start, len });
    }

    /// Wakes the workers after chunks were queued.
    pub(super) fn wake(&self) {
        self.workers.iter().for_each(Worker::wake);
    }

    /// Moves bytes if there are no workers, and calls `done` for each chunk that is done. `acks` has the number of
    /// bytes of each lane that the peer has read. Without `acks`, a chunk is done as soon as it has moved. `is_over` says
    /// that lost lanes are resumed no more.
    ///
    /// # Errors
    /// A lane has failed and moves no more chunks.
    pub(super) fn collect(
        &mut self,
        acks: Option<&[u64]>,
        is_over: bool,
        mut done: impl FnMut(O),
    ) -> Result<(), LaneFailed> {
        let Lanes { workers, lanes, .. } = self;
        let mut failed = Ok(());
        let busy = lanes.iter_mut().enumerate().filter(|(_, end)| !end.owners.is_empty());
        for (index, LaneEnd { lane, owners, socket }) in busy {
            while workers.is_empty() && lane.step() {}
            let mut state = lane.lock();
            // A worker may still have its hands on a chunk, for a connection that was replaced.
            let is_stale = state.moving.is_some_and(|number| number != state.number);
            let ended = match is_stale {
                true => 0,
                false => state.queue.end_up_to(acks.map(|acks| acks[index])),
            };
            let error = state.error.filter(|_| is_over || socket.is_up());
            drop(state);
            owners.drain(..ended).flatten().for_each(&mut done);
            if let Some(error) = error.filter(|_| !owners.is_empty()) {
                failed = failed.and(Err(LaneFailed { index, error }));
            }
        }
        failed
    }

    /// Copies the chunks that have moved and are not done, and calls `done` for each.
    pub(super) fn keep_moved(&mut self, mut done: impl FnMut(O)) {
        for LaneEnd { lane, owners, .. } in &mut self.lanes {
            let mut state = lane.lock();
            if state.moving.is_some_and(|number| number != state.number) {
                continue;
            }
            // SAFETY: The caller of `push` promised the bytes, and the chunks are not done.
            let copied = unsafe { state.queue.copy_moved() };
            drop(state);
            owners.iter_mut().take(copied).filter_map(Option::take).for_each(&mut done);
        }
    }

    /// Number of bytes that have moved over each lane.
    pub(super) fn positions(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|end| end.lane.lock().queue.position())
    }

    /// Handles the failure of a lane.
    ///
    /// # Errors
    /// The lane is not resumed.
    pub(super) fn lose(&mut self, failed: LaneFailed) -> Result<(), Error> {
        let socket = &mut self.lanes[failed.index].socket;
        match self.direction {
            LaneDirection::Send => socket.lose_sending(failed.error),
            LaneDirection::Recv => socket.lose(failed.error),
        }
    }

    /// Makes lost lanes go on over new connections.
    ///
    /// # Errors
    /// A lane cannot be resumed.
    pub(super) fn mend(
        &mut self,
        now_ns: u64,
        resumption: &mut Resumption,
        ends: &Ends,
    ) -> Result<(), Error> {
        let mut is_resumed = false;
        for LaneEnd { lane, socket, .. } in &mut self.lanes {
            match resumption.poll(socket, now_ns, ends)? {
                SocketNews::None | SocketNews::Lost(_) => {}
                SocketNews::Renewed => {
                    let mut state = lane.lock();
                    // The bytes of a call that is under way do not count any more.
                    state.number = state.number.wrapping_add(1);
                    state.error = Some(StreamError::Closed);
                    state.stream = Arc::new(socket.stream().share());
                    let is_receiving = self.direction == LaneDirection::Recv;
                    let read = if is_receiving { state.queue.position() } else { 0 };
                    drop(state);
                    socket.resume(read);
                }
                SocketNews::Resumed(position) => {
                    let mut state = lane.lock();
                    if self.direction == LaneDirection::Send {
                        state.queue.go_back_to(position)?;
                    }
                    state.error = None;
                    is_resumed = true;
                }
            }
        }
        if is_resumed {
            self.wake();
        }
        Ok(())
    }

    /// Arms what ends a wait for the chunks that are queued: the sockets, or the news of the workers.
    pub(super) fn arm(&self, interest: &mut Interest) {
        let waiting = self.lanes.iter().filter(|end| end.lane.is_waiting());
        if self.workers.is_empty() {
            for LaneEnd { socket, .. } in waiting {
                match self.direction {
                    LaneDirection::Send => interest.room(socket.stream()),
                    LaneDirection::Recv => interest.bytes(socket.stream()),
                }
            }
        } else if !self.is_idle() {
            self.workers.iter().for_each(|worker| worker.arm(interest));
        }
    }

    /// Returns the sockets that carry chunks, and the number of threads that move them.
    pub(super) fn sockets(&self) -> (impl Iterator<Item = &ResumableSocket<OobStream>>, u16) {
        (self.lanes.iter().map(|end| &end.socket), self.workers.len() as u16)
    }

    /// Whether no lane is lost.
    pub(super) fn are_up(&self) -> bool {
        self.lanes.iter().all(|end| end.socket.is_up())
    }

    /// Returns the sockets that carry chunks.
    pub(super) fn sockets_mut(&mut self) -> impl Iterator<Item = &mut ResumableSocket<OobStream>> {
        self.lanes.iter_mut().map(|end| &mut end.socket)
    }

    /// Whether bytes that had moved are to be moved again.
    pub(super) fn is_behind(&self) -> bool {
        self.lanes.iter().any(|end| end.lane.lock().queue.is_behind())
    }

    /// Whether any chunk is not done, or is copied and not acknowledged.
    pub(super) fn have_chunks(&self) -> bool {
        self.lanes.iter().any(|end| !end.owners.is_empty())
    }

    /// Whether the owner of a chunk that has moved waits for an acknowledge.
    pub(super) fn await_acks(&self) -> bool {
        self.lanes.iter().any(|end| end.awaited(|lens| lens.next().is_some()))
    }

    /// Number of bytes of the longest chunk that has moved and whose owner waits for an acknowledge.
    pub(super) fn awaited_bytes_max(&self) -> usize {
        self.lanes.iter().map(|end| end.awaited(|lens| lens.max().unwrap_or(0))).max().unwrap_or(0)
    }

    /// Whether no owner waits for a chunk.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.iter().all(|end| end.owners.iter().all(Option::is_none))
    }
}

/// The failure of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneFailed {
    index: usize,
    error: StreamError,
}

impl<O> LaneEnd<O> {
    /// Looks at the lengths of the chunks that have moved and whose owners wait for an acknowledge.
    fn awaited<R>(&self, look: impl FnOnce(&mut dyn Iterator<Item = usize>) -> R) -> R {
        if self.owners.is_empty() {
            return look(&mut iter::empty());
        }
        let state = self.lane.lock();
        let waits = |(len, owner): (usize, &Option<O>)| owner.is_some().then_some(len);
        look(&mut state.queue.moved_lens().zip(&self.owners).filter_map(waits))
    }
}

impl Lane {
    /// Moves bytes of the first chunk. Returns whether any byte moved or the lane failed now. Only one thread
    /// calls this at a time.
    fn step(&self) -> bool {
        // The state is not locked while the kernel copies.
        let (Piece { start, len }, stream, number) = {
            let mut state = self.lock();
            let Some(piece) = state.queue.next().filter(|_| state.error.is_none()) else {
                return false;
            };
            state.moving = Some(state.number);
            (piece, Arc::clone(&state.stream), state.number)
        };
        let moved = match self.direction {
            LaneDirection::Send => {
                // SAFETY: The caller of `Lanes::push` promised the bytes, and the chunk is not collected
                // yet.
                stream.send_gather(&[unsafe { Gather::from_raw(start, len) }])
            }
            LaneDirection::Recv => {
                // SAFETY: The caller of `Lanes::push` promised the bytes, and the chunk is not collected
                // yet.
                stream.recv_scatter(&mut [unsafe { Scatter::from_raw(start, len) }])
            }
        };
        let mut state = self.lock();
        state.moving = None;
        if state.number != number {
            // The connection was replaced meanwhile, and its bytes come again.
            return true;
        }
        match moved {
            Ok(bytes) => {
                state.queue.moved(bytes);
                bytes > 0
            }
            Err(error) => {
                state.error = Some(error);
                true
            }
        }
    }

    /// Whether a chunk waits for the socket.
    fn is_waiting(&self) -> bool {
        let state = self.lock();
        state.queue.next().is_some() && state.error.is_none()
    }

    /// Returns the connection.
    fn stream(&self) -> Arc<OobStream> {
        Arc::clone(&self.lock().stream)
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
