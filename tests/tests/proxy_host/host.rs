//! A transport with a gate, and functions that the tests share.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use invar_core::math::Protocol;
use invar_core::proxy::{
    ConnectionId, ConnectionSpec, Op, OpStage, Pattern, ProxySlice, Sharing, Transport,
};
use invar_core::topology::Direction;
use invar_linux::abort::Abort;
use invar_linux::proxy::{Progress, ProgressSettings, SharedOps};

/// Moves everything while the gate is open, and nothing while it is closed. Clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<State>);

#[derive(Default)]
struct State {
    open: AtomicBool,
    asked: AtomicBool,
    completed: AtomicU64,
}

impl Gate {
    pub(crate) fn open() -> Self {
        let gate = Gate::default();
        gate.set(true);
        gate
    }

    pub(crate) fn closed() -> Self {
        Gate::default()
    }

    pub(crate) fn set(&self, open: bool) {
        self.0.open.store(open, Ordering::Relaxed);
    }

    /// Whether the engine has asked the transport for anything yet.
    pub(crate) fn asked(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// The number of finished slices.
    pub(crate) fn completed(&self) -> u64 {
        self.0.completed.load(Ordering::Relaxed)
    }
}

impl Transport for Gate {
    type Error = Infallible;

    fn advance(&mut self, stage: OpStage, steps: &[ProxySlice]) -> Result<bool, Infallible> {
        self.0.asked.store(true, Ordering::Relaxed);
        let open = self.0.open.load(Ordering::Relaxed);
        if open && stage == OpStage::Complete {
            self.0.completed.fetch_add(steps.len() as u64, Ordering::Relaxed);
        }
        Ok(open)
    }
}

pub(crate) fn progress(shared: &SharedOps, gate: &Gate, abort: &Abort) -> Progress<Infallible> {
    let settings = ProgressSettings::default();
    Progress::spawn(shared.clone(), settings, abort.clone(), gate.clone(), ()).unwrap()
}

/// A connection of a local rank that sends from its own buffers.
pub(crate) fn spec(local_rank: u32) -> ConnectionSpec {
    ConnectionSpec {
        direction: Direction::Send,
        local_rank,
        sharing: Sharing::Own,
        recv_group: None,
    }
}

pub(crate) fn op(op_count: u64, connection: u32, nsteps: u64) -> Op {
    Op {
        op_count,
        nsteps,
        slice_bytes: 4096,
        connection: ConnectionId(connection),
        peer: 100,
        chunk_bytes: 4096,
        channel: 0,
        slice_steps: 1,
        chunk_steps: 1,
        pattern: Pattern::Send,
        protocol: Protocol::Simple,
        dtype: 0,
        red_op: 0,
    }
}
