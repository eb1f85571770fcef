//! Compares the pool with a model of queues; `interleavings` runs the pool on every interleaving of
//! threads.

extern crate std;

#[cfg(loom)]
mod interleavings;
#[cfg(not(loom))]
mod model;

use std::vec::Vec;

use crate::math::Protocol;
use crate::proxy::{Cell, ConnectionId, Head, Op, OpPool, Pattern};

/// The memory of a pool.
struct Memory {
    posted: Head,
    free: Vec<Head>,
    cells: Vec<Cell>,
}

impl Memory {
    fn new(nranks: usize, per_rank: usize) -> Self {
        let mut cells = Vec::new();
        cells.resize_with(nranks * per_rank, Cell::default);
        let mut free = Vec::new();
        free.resize_with(nranks, Head::default);
        let memory = Memory { posted: Head::default(), free, cells };
        memory.pool().fill();
        memory
    }

    fn pool(&self) -> OpPool<'_> {
        OpPool::new(&self.posted, &self.free, &self.cells).unwrap()
    }
}

/// An operation that `peer` distinguishes from others.
fn op(op_count: u64, peer: u32) -> Op {
    Op {
        op_count,
        nsteps: 1,
        slice_bytes: 1,
        connection: ConnectionId(0),
        peer,
        chunk_bytes: 1,
        channel: 0,
        slice_steps: 1,
        chunk_steps: 1,
        pattern: Pattern::Send,
        protocol: Protocol::Simple,
        dtype: 0,
        red_op: 0,
    }
}
