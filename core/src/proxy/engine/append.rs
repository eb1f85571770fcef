//! The engine merges a new operation, chains it, or makes it active at once (`proxy.cc ProxyAppend`).

use super::{Args, Connection, Engine, Sub};
use crate::proxy::{BankSlot, Banks, ConnectionId, Op, OpError, Pattern};
use crate::topology::Direction;

/// The reason why the engine can't move an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The operation names a connection that is not open.
    #[error("operation {op_count:#x}: connection {connection} is not open")]
    NotOpen {
        /// The operation's count.
        op_count: u64,
        /// The connection that the operation names.
        connection: ConnectionId,
    },
    /// The operation names a connection of another rank.
    #[error(
        "operation {op_count:#x} of local rank {rank}: connection {connection} is of local rank \
         {owner}"
    )]
    NotYours {
        /// The operation's count.
        op_count: u64,
        /// The local rank that posted the operation.
        rank: u32,
        /// The connection that the operation names.
        connection: ConnectionId,
        /// The local rank that owns the connection.
        owner: u32,
    },
    /// The operation sends over a connection that receives, or the reverse.
    #[error("operation {op_count:#x}: {pattern:?} over connection {connection}, a {direction:?}")]
    Direction {
        /// The operation's count.
        op_count: u64,
        /// The operation's pattern, which says how its data would travel.
        pattern: Pattern,
        /// The connection that the operation names.
        connection: ConnectionId,
        /// The connection's direction.
        direction: Direction,
    },
    /// Operations that the engine must merge are not alike.
    #[error(
        "operation {op_count:#x} over connection {connection}: its {what} differs from that of \
         the others of this count"
    )]
    Mismatch {
        /// The operations' common count.
        op_count: u64,
        /// The connection of the operation that differs.
        connection: ConnectionId,
        /// The name of the property that differs.
        what: &'static str,
    },
    /// The operation comes after others of its count have begun.
    #[error(
        "operation {op_count:#x} over connection {connection}: others of this count are running; \
         they must be posted together"
    )]
    Running {
        /// The operations' common count.
        op_count: u64,
        /// The connection of the late operation.
        connection: ConnectionId,
    },
    /// The operation is invalid and could never be moved.
    #[error("operation {op_count:#x}: {error}")]
    Op {
        /// The operation's count.
        op_count: u64,
        /// The reason why the operation is invalid.
        error: OpError,
    },
    /// The host has no memory for the operation.
    #[error("operation {op_count:#x}: no memory for one more bank of operations")]
    NoMemory {
        /// The operation's count.
        op_count: u64,
    },
}

impl<A: Banks<BankSlot<Args>>, C: Banks<Option<Connection>>> Engine<A, C> {
    /// Takes an operation that local rank `rank` posted.
    pub fn append(&mut self, rank: u32, op: &Op) -> Result<(), AppendError> {
        let (id, op_count) = (op.connection, op.op_count);
        op.check().map_err(|error| AppendError::Op { op_count, error })?;
        let Some(connection) = self.connection(id) else {
            return Err(AppendError::NotOpen { op_count, connection: id });
        };
        let (direction, owner) = (connection.spec.direction, connection.spec.local_rank);
        if owner != rank {
            return Err(AppendError::NotYours { op_count, rank, connection: id, owner });
        }
        if let (Pattern::Send, Direction::Recv) | (Pattern::Recv, Direction::Send) =
            (op.pattern, direction)
        {
            let pattern = op.pattern;
            return Err(AppendError::Direction { op_count, pattern, connection: id, direction });
        }
        let (shared, at) = (connection.shares(), connection.chain_at(id));
        let tail = self.connection(at).and_then(|first| first.tail);
        let merged = match tail {
            Some(tail) if shared => self.merge(tail, op)?,
            _ => false,
        };
        if !merged {
            let (index, args) = self.args.take().ok_or(AppendError::NoMemory { op_count })?;
            args.reset(op, direction, shared, at);
            // New args have no subs yet, so there is room for the first one.
            let _ = args.subs.push(Sub::new(op, 0));
            self.chain(tail, index);
            if let Some(first) = self.connection_mut(at) {
                first.tail = Some(index);
            }
        }
        if let Some(connection) = self.connection_mut(id) {
            connection.uses += 1;
        }
        Ok(())
    }

    /// Makes `op` a sub of `tail` if both have the same count, no sub of `tail` uses the connection of
    /// `op`, and `tail` has room. Otherwise the caller chains `op`, which is slower but equally
    /// correct.
    fn merge(&mut self, tail: u32, op: &Op) -> Result<bool, AppendError> {
        let Op { op_count, connection, .. } = *op;
        let Some(args) = self.args.get_mut(tail).filter(|args| args.op_count == op_count) else {
            return Ok(false);
        };
        if let Some(what) = args.mismatch(op) {
            return Err(AppendError::Mismatch { op_count, connection, what });
        }
        if args.running {
            return Err(AppendError::Running { op_count, connection });
        }
        let again = args.subs.iter().any(|sub| sub.connection == connection);
        Ok(!again && args.has_room() && args.subs.push(Sub::new(op, args.subs.len())).is_ok())
    }

    /// Puts new args behind the last args that wait for the same connection. If no args wait for it,
    /// the new args join the end of the active list. If all steps of the last args are on their way,
    /// the new args become active at the head of the list. The last args only wait for their
    /// completion, which may take long.
    fn chain(&mut self, tail: Option<u32>, index: u32) {
        if let Some(tail) = tail.and_then(|tail| self.args.get_mut(tail)) {
            if !tail.is_passed_on() {
                tail.next_peer = Some(index);
                return;
            }
            tail.successor = Some(index);
            let (first, last) = self.active.unwrap_or((index, index));
            if let Some(args) = self.args.get_mut(index) {
                args.early = true;
                args.next = Some(first);
            }
            self.active = Some((index, last));
            return;
        }
        let first = match self.active {
            Some((first, last)) => {
                if let Some(last) = self.args.get_mut(last) {
                    last.next = Some(index);
                }
                first
            }
            None => index,
        };
        self.active = Some((first, index));
    }
}
