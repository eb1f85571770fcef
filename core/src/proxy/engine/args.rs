//! Operations in the form in which the engine moves them.

use super::super::{ConnectionId, Op, Pattern};
use crate::math::{Protocol, STEPS};
use crate::topology::Direction;

/// Most subs of an operation: the number of slots of a buffer that connections share
/// (`NCCL_SHARED_STEPS`). NCCL leaves room for 32 subs but has no slot for the second 16.
pub const SUBS_MAX: usize = 16;

/// The stages that a slice of steps passes. Each stage has a counter of the steps that are past it. No
/// counter passes the counter of the stage before.
///
/// A send goes through Post, Transmit and Complete; a receive goes through all stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OpStage {
    /// `posted`: a slot of the buffer is free. For a send, the GPU may fill the slot; for a receive,
    /// the network may fill it.
    Post,
    /// `received`: the network has filled the slot.
    Receive,
    /// `flushed`: the GPU can see the data that the network wrote.
    Flush,
    /// `transmitted`: for a send, the network has the data that the GPU wrote. For a receive, the GPU
    /// has the data that the network wrote.
    Transmit,
    /// `done`: for a send, the network has sent the data; for a receive, the GPU has used the data.
    Complete,
}

impl OpStage {
    /// Returns the stages of a direction, in order.
    pub const fn of(direction: Direction) -> &'static [OpStage] {
        use OpStage::{Complete, Flush, Post, Receive, Transmit};
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
    /// Number of the connection's steps before the first step of this sub.
    pub(super) base: u64,
    /// The sub's index in the operation, which determines its slots in a shared buffer.
    pub(super) place: u8,
    /// Number of subs, from this one on, that one request serves; 0 for the subs after the first of a
    /// group.
    pub(super) group_len: u8,
    /// Number of steps that are past each stage, indexed by [`OpStage`].
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

    /// Number of steps that are past a stage.
    pub(super) fn count(&self, stage: OpStage) -> u64 {
        self.counts[stage as usize]
    }

    pub(super) fn is_done(&self) -> bool {
        self.count(OpStage::Complete) == self.nsteps
    }
}

/// One operation, or several merged operations (`ncclProxyArgs`).
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
    /// Whether the connections of this operation share their buffers.
    pub(super) shared: bool,
    /// Whether the first step has begun; from then on the engine merges nothing with these args.
    pub(super) running: bool,
    /// The connection that the chain of these args hangs on.
    pub(super) chain_at: ConnectionId,
    pub(super) subs: heapless::Vec<Sub, SUBS_MAX>,
    /// The next active operation.
    pub(super) next: Option<u32>,
    /// The operation that takes the place of this one when this one is done.
    pub(super) next_peer: Option<u32>,
    /// The operation that was to take the place of this one and has begun already.
    pub(super) successor: Option<u32>,
    /// Whether this operation has begun before the earlier operations of its chain are done.
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
    /// Makes these args the args of `op`. `reset` empties the subs without writing them, because they
    /// take kilobytes.
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

    /// The name of a property that differs from `op` but must be equal to merge the two.
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

    /// Whether the transport has all steps and only the completion of the last ones is missing. The
    /// next operation of the chain may then begin in the free slots; NCCL begins it only when this one
    /// is done.
    ///
    /// Operations over connections that share buffers must wait, because the owner of a slot depends on
    /// the operation.
    pub(super) fn is_passed_on(&self) -> bool {
        !self.shared && self.subs.iter().all(|sub| sub.count(OpStage::Transmit) == sub.nsteps)
    }

    /// Whether each sub would still have at least one slice of the shared buffer after adding one more
    /// sub.
    pub(super) fn has_room(&self) -> bool {
        SUBS_MAX / (self.subs.len() + 1) >= usize::from(self.slice_steps)
    }

    /// Most steps that may be posted and not done.
    pub(super) fn depth(&self) -> u64 {
        let own = u64::from(STEPS);
        match self.subs.len() {
            n @ 1.. if self.shared => own.min((SUBS_MAX / n) as u64),
            _ => own,
        }
    }
}
