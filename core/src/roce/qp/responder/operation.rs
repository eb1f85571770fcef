//! The operations of requests, and who may ask for them.

use crate::nic::Access;
use crate::roce::Opcode;
use crate::roce::qp::Path;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoteOperation {
    Send,
    Write,
    Read,
    Atomic,
}

pub(super) fn operation(opcode: Opcode) -> Option<RemoteOperation> {
    match opcode {
        Opcode(0x00..=0x05) | Opcode::SEND_LAST_INV | Opcode::SEND_ONLY_INV => {
            Some(RemoteOperation::Send)
        }
        Opcode(0x06..=0x0b) => Some(RemoteOperation::Write),
        Opcode::READ_REQUEST => Some(RemoteOperation::Read),
        Opcode::COMPARE_SWAP | Opcode::FETCH_ADD => Some(RemoteOperation::Atomic),
        _ => None,
    }
}

/// Returns whether a request is answered by an acknowledge rather than by a response with data.
pub(in crate::roce::qp) fn is_acknowledged(opcode: Opcode) -> bool {
    matches!(operation(opcode), Some(RemoteOperation::Send | RemoteOperation::Write))
}

pub(super) fn uses_receive(opcode: Opcode) -> bool {
    operation(opcode) == Some(RemoteOperation::Send)
        || matches!(opcode, Opcode::WRITE_LAST_IMM | Opcode::WRITE_ONLY_IMM)
}

/// Returns whether the queue pair permits this operation. As in rxe, a forbidden operation is an
/// invalid request.
pub(super) fn permitted(operation: RemoteOperation, path: &Path) -> bool {
    match operation {
        RemoteOperation::Send => true,
        RemoteOperation::Write => path.access.contains(Access::REMOTE_WRITE),
        RemoteOperation::Read => path.access.contains(Access::REMOTE_READ),
        RemoteOperation::Atomic => path.access.contains(Access::REMOTE_ATOMIC),
    }
}
