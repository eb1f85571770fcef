//! Operations as they are moved.

use super::super::{ConnectionId, Direction, Op, Pattern};
use crate::math::{Protocol, STEPS};

/// Most subs of an operation: the slots of a buffer that connections share (`NCCL_SHARED_STEPS`).
/// NCCL leaves room for 32 and would have no slot for the latter half.
pub const SUBS_MAX: usize = 16;

/// What a slice of steps goes through. Each stage has a counter of the steps that are past it, and
/// no counter passes that of the stage before.
///
/// A send goes Post, Transmit, Complete; a receive goes through all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// `posted`: a slot of the buffer is free. To send, the GPU may fill it; to receive, the
    /// network may.
    Post,
    /// `received`: the network has filled the slot.
    Receive,
    /// `flushed`: what the network wrote can be seen by the GPU.
    Flush,
    /// `transmitted`: to send, what the GPU has filled is given to the network; to receive, what
    /// the network has filled is given to the GPU.
    Transmit,
    /// `done`: to send, the network has sent it; to receive, the GPU has used it.
    Complete,
}

impl Stage {
    /// The stages of a direction, in order.
    pub const fn of(direction: Direction) -> &'static [Stage] {
        use Stage::{Complete, Flush, Post, Receive, Transmit};
        match direction {
            Direction::Send => &[Post, Transmit, Complete],
            Direction::Recv => &[Post, Receive, Flush, Transmit, Complete],
        }
    }
}

/// One connection's part of an operation (`ncclProxySubArgs`).
#[derive(Clone, Debug)]
pub struct Sub {
    pub(super) connection: ConnectionId,
    pub(super) channel: u16,
    pub(super) peer: u32,
    pub(super) nsteps: u64,
    pub(super) slice_bytes: u64,
    /// The connection's steps before it.
    pub(super) base: u64,
    /// Its place in the operation, which says where in a shared buffer its slots are.
    pub(super) place: u8,
    /// How many subs from this one on one request serves; 0 for those after the first.
    pub(super) group_len: u8,
    /// By stage.
    pub(super) counts: [u64; 5],
}

impl Sub {
    pub(super) fn new(op: &Op, place: usize) -> Self {
        Sub {
            connection: op.connection,
            channel: op.channel,
            peer: op.peer,
            nsteps: op.nsteps,
            slice_bytes: op.slice_bytes,
            base: 0,
            place: place as u8,
            group_len: 1,
            counts: [0; 5],
        }
    }

    /// Steps that are past a stage.
    pub(super) fn count(&self, stage: Stage) -> u64 {
        self.counts[stage as usize]
    }

    pub(super) fn is_done(&self) -> bool {
        self.count(Stage::Complete) == self.nsteps
    }
}

/// An operation, or several that are merged (`ncclProxyArgs`).
#[derive(Debug)]
pub struct Args {
    pub(super) op_count: u64,
    pub(super) direction: Direction,
    pub(super) pattern: Pattern,
    pub(super) protocol: Protocol,
    pub(super) dtype: u8,
    pub(super) red_op: u8,
    pub(super) slice_steps: u8,
    pub(super) chunk_steps: u8,
    pub(super) chunk_bytes: u32,
    /// Whether its connections share their buffers.
    pub(super) shared: bool,
    /// Whether its first step has begun; nothing is merged with it then.
    pub(super) running: bool,
    /// Where its chain hangs.
    pub(super) chain_at: ConnectionId,
    pub(super) subs: heapless::Vec<Sub, SUBS_MAX>,
    /// The next active operation.
    pub(super) next: Option<u32>,
    /// What takes its place when it is done.
    pub(super) next_peer: Option<u32>,
    /// What was to take its place, and has begun already.
    pub(super) successor: Option<u32>,
    /// Whether it has begun though those before it are not done.
    pub(super) early: bool,
}

impl Default for Args {
    fn default() -> Self {
        Args {
            op_count: 0,
            direction: Direction::Send,
            pattern: Pattern::Ring,
            protocol: Protocol::Simple,
            dtype: 0,
            red_op: 0,
            slice_steps: 1,
            chunk_steps: 1,
            chunk_bytes: 0,
            shared: false,
            running: false,
            chain_at: ConnectionId::default(),
            subs: heapless::Vec::new(),
            next: None,
            next_peer: None,
            successor: None,
            early: false,
        }
    }
}

impl Args {
    /// Makes it the args of `op`, whatever it was. The subs are emptied, not written: they are
    /// kilobytes.
    pub(super) fn reset(&mut self, op: &Op, direction: Direction, shared: bool, at: ConnectionId) {
        self.op_count = op.op_count;
        self.direction = direction;
        self.pattern = op.pattern;
        self.protocol = op.protocol;
        self.dtype = op.dtype;
        self.red_op = op.red_op;
        self.slice_steps = op.slice_steps;
        self.chunk_steps = op.chunk_steps;
        self.chunk_bytes = op.chunk_bytes;
        self.shared = shared;
        self.running = false;
        self.chain_at = at;
        self.subs.clear();
        self.next = None;
        self.next_peer = None;
        self.successor = None;
        self.early = false;
    }

    /// What differs from `op` though it must not where the two are merged.
    pub(super) fn mismatch(&self, op: &Op) -> Option<&'static str> {
        [
            (self.slice_steps == op.slice_steps, "steps of a slice"),
            (self.chunk_steps == op.chunk_steps, "steps of a chunk"),
            (self.protocol == op.protocol, "protocol"),
            (self.dtype == op.dtype, "data type"),
            (self.red_op == op.red_op, "reduction"),
        ]
        .into_iter()
        .find_map(|(same, what)| (!same).then_some(what))
    }

    /// Whether only the end of its last steps is to come, so that what waits for it may begin, in
    /// the slots that are free. NCCL lets that wait for the end.
    ///
    /// Connections that share buffers must wait: whose slots they are depends on the operation.
    pub(super) fn is_passed_on(&self) -> bool {
        !self.shared && self.subs.iter().all(|sub| sub.count(Stage::Transmit) == sub.nsteps)
    }

    /// Whether one more sub would have at least a slice of the shared buffer.
    pub(super) fn has_room(&self) -> bool {
        SUBS_MAX / (self.subs.len() + 1) >= usize::from(self.slice_steps)
    }

    /// Steps that may be posted and not done.
    pub(super) fn depth(&self) -> u64 {
        let own = u64::from(STEPS);
        match self.subs.len() {
            n @ 1.. if self.shared => own.min((SUBS_MAX / n) as u64),
            _ => own,
        }
    }
}
