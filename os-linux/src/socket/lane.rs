//! Lanes: sockets that carry chunks in the order in which they were queued.

mod worker;

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::conn::StreamError;

use crate::interest::Interest;
use crate::memory::{Gather, Scatter};
use crate::tcp::OobStream;
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
    lanes: Vec<(Arc<Lane>, VecDeque<O>)>,
}

/// One lane. All fields except the queue belong to the thread that moves the lane's chunks.
struct Lane {
    stream: OobStream,
    direction: LaneDirection,
    queue: Mutex<Queue>,
    /// Number of chunks that are completely moved and not yet collected.
    moved: AtomicUsize,
}

struct Queue {
    chunks: VecDeque<Piece>,
    error: Option<StreamError>,
}

/// The part of a chunk that has not moved yet.
#[derive(Clone, Copy)]
struct Piece {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: The caller of `Lanes::push` promised the memory to the lane, whichever thread moves it.
unsafe impl Send for Piece {}

impl<O> Lanes<O> {
    /// Makes lanes over `streams`, with at most as many threads as lanes. If the system cannot start the
    /// threads, the lanes have none.
    pub(super) fn new(
        streams: impl IntoIterator<Item = OobStream>,
        direction: LaneDirection,
        threads: u16,
    ) -> Self {
        let lane = |stream| {
            let queue = Mutex::new(Queue { chunks: VecDeque::new(), error: None });
            Arc::new(Lane { stream, direction, queue, moved: AtomicUsize::new(0) })
        };
        let lanes: Vec<Arc<Lane>> = streams.into_iter().map(lane).collect();
        let threads = usize::from(threads).min(lanes.len());
        let of = |thread| lanes.iter().skip(thread).step_by(threads).cloned().collect();
        let workers = (0..threads).map(|thread| Worker::start(of(thread)));
        let workers = workers.collect::<io::Result<_>>().unwrap_or_default();
        let lanes = lanes.into_iter().map(|lane| (lane, VecDeque::new())).collect();
        Lanes { workers, lanes }
    }

    /// Queues a chunk.
    ///
    /// # Safety
    ///
    /// The bytes are valid for the direction of the lanes, under the terms of
    /// [`HostMemory::from_raw`](crate::memory::HostMemory::from_raw), until the chunk is collected or
    /// the lanes are dropped.
    pub(super) unsafe fn push(&mut self, lane: usize, start: NonNull<u8>, len: usize, owner: O) {
        let (lane, owners) = &mut self.lanes[lane];
        owners.push_back(owner);
        lane.lock().chunks.push_back(Piece { start, len });
    }

    /// Wakes the workers after chunks were queued.
    pub(super) fn wake(&self) {
        self.workers.iter().for_each(Worker::wake);
    }

    /// Calls `done` for each chunk that has moved.
    ///
    /// # Errors
    /// A lane has failed and moves no more chunks.
    pub(super) fn collect(&mut self, mut done: impl FnMut(O)) -> Result<(), StreamError> {
        for (lane, owners) in self.lanes.iter_mut().filter(|(_, owners)| !owners.is_empty()) {
            while self.workers.is_empty() && lane.step() {}
            for owner in owners.drain(..lane.moved.swap(0, Ordering::Acquire)) {
                done(owner);
            }
            if !owners.is_empty()
                && let Some(error) = lane.lock().error
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Arms what ends a wait for the chunks that are queued: the sockets, or the news of the workers.
    pub(super) fn arm(&self, interest: &mut Interest) {
        let is_waited_for = self.lanes.iter().filter(|(_, owners)| !owners.is_empty());
        if self.workers.is_empty() {
            for (lane, _) in is_waited_for {
                match lane.direction {
                    LaneDirection::Send => interest.writable(&lane.stream),
                    LaneDirection::Recv => interest.readable(&lane.stream),
                }
            }
        } else if is_waited_for.count() > 0 {
            self.workers.iter().for_each(|worker| worker.arm(interest));
        }
    }

    /// Returns the sockets that carry chunks, and the number of threads that move them.
    pub(super) fn streams(&self) -> (impl Iterator<Item = &OobStream>, u16) {
        (self.lanes.iter().map(|(lane, _)| &lane.stream), self.workers.len() as u16)
    }

    /// Whether all chunks are collected.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.iter().all(|(_, owners)| owners.is_empty())
    }
}

impl Lane {
    /// Moves bytes of the first chunk. Returns whether any byte moved or the lane failed now. Only one thread
    /// calls this at a time.
    fn step(&self) -> bool {
        // The queue is not locked while the kernel copies.
        let (first, error) = {
            let queue = self.lock();
            (queue.chunks.front().copied(), queue.error)
        };
        let Some(Piece { start, len }) = first.filter(|_| error.is_none()) else { return false };
        let moved = match self.direction {
            LaneDirection::Send => {
                // SAFETY: The caller of `Lanes::push` promised the bytes, and the chunk is not collected
                // yet.
                self.stream.send_gather(&[unsafe { Gather::from_raw(start, len) }])
            }
            LaneDirection::Recv => {
                // SAFETY: The caller of `Lanes::push` promised the bytes, and the chunk is not collected
                // yet.
                self.stream.recv_scatter(&mut [unsafe { Scatter::from_raw(start, len) }])
            }
        };
        let mut queue = self.lock();
        match moved {
            Ok(bytes) if bytes < len => {
                // SAFETY: The new start lies within the chunk.
                let start = unsafe { start.add(bytes) };
                queue.chunks[0] = Piece { start, len: len - bytes };
                bytes > 0
            }
            Ok(_) => {
                queue.chunks.pop_front();
                // Release ordering shows the received bytes to the thread that collects the chunk.
                self.moved.fetch_add(1, Ordering::Release);
                true
            }
            Err(error) => {
                queue.error = Some(error);
                true
            }
        }
    }

    /// Whether a chunk waits for the socket.
    fn is_waiting(&self) -> bool {
        let queue = self.lock();
        !queue.chunks.is_empty() && queue.error.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
