//! New operations: merged, chained, or active at once (`proxy.cc ProxyAppend`).

use super::{Args, Connection, Engine, Sub};
use crate::proxy::{Banks, ConnectionId, Direction, Op, OpError, Pattern, Slot};

/// Why an operation can't be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It names a connection that is not there.
    #[error("operation {op_count:#x}: connection {connection} is not open")]
    NotOpen {
        /// Its operation count.
        op_count: u64,
        /// What it names.
        connection: ConnectionId,
    },
    /// It names a connection of another rank.
    #[error(
        "operation {op_count:#x} of local rank {rank}: connection {connection} is of local rank \
         {owner}"
    )]
    NotYours {
        /// Its operation count.
        op_count: u64,
        /// Who posted it.
        rank: u32,
        /// What it names.
        connection: ConnectionId,
        /// Whose that is.
        owner: u32,
    },
    /// A send over a connection that receives, or the reverse.
    #[error("operation {op_count:#x}: {pattern:?} over connection {connection}, a {direction:?}")]
    Direction {
        /// Its operation count.
        op_count: u64,
        /// How its data would travel.
        pattern: Pattern,
        /// What it names.
        connection: ConnectionId,
        /// Which way that goes.
        direction: Direction,
    },
    /// Operations to be merged are not alike.
    #[error(
        "operation {op_count:#x} over connection {connection}: its {what} differs from that of \
         the others of this count"
    )]
    Mismatch {
        /// Their operation count.
        op_count: u64,
        /// The connection of the one that differs.
        connection: ConnectionId,
        /// In what.
        what: &'static str,
    },
    /// It comes after others of its count have begun.
    #[error(
        "operation {op_count:#x} over connection {connection}: others of this count are running; \
         they must be posted together"
    )]
    Running {
        /// Their operation count.
        op_count: u64,
        /// The connection of the late one.
        connection: ConnectionId,
    },
    /// It could never be moved.
    #[error("operation {op_count:#x}: {error}")]
    Op {
        /// Its operation count.
        op_count: u64,
        /// Why.
        error: OpError,
    },
    /// There is no memory for it.
    #[error("operation {op_count:#x}: no memory for one more bank of operations")]
    NoMemory {
        /// Its operation count.
        op_count: u64,
    },
}

impl<A: Banks<Slot<Args>>, C: Banks<Option<Connection>>> Engine<A, C> {
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
            // There is room for the first.
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

    /// Makes `op` a sub of `tail` if it has the same count, a connection that is not among its
    /// subs, and there is room. Otherwise it is chained, which is slower and as good.
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

    /// Puts new args behind the last that wait for the same connection, or else among the active:
    /// before the others, where that last is on its way and will be asked for long.
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
