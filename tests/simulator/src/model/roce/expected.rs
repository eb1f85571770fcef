//! The expected result of a script: each operation happens at once, one after the other.

use invar_core::nic::{SendFlags, SendOpcode, Wc, WcFlags, WcOpcode, WcStatus};

use super::{Op, Script};

/// The inbox has three areas: for the peer's WRITEs, for its SENDs, and for this end's READs. Each area
/// has one writer.
pub(super) const WRITES: u32 = 0;
pub(super) const SENDS: u32 = 1;
pub(super) const READS: u32 = 2;
pub(super) const AREAS: u32 = 3;

/// The expected state of one end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) inbox: Vec<u8>,
    pub(super) sends: Vec<Wc>,
    pub(super) receives: Vec<Wc>,
}

impl Expected {
    /// The state before the first operation.
    pub(super) fn new(script: &Script) -> Expected {
        let inbox = vec![0; (AREAS * script.area()) as usize];
        Expected { inbox, sends: Vec::new(), receives: Vec::new() }
    }
}

/// The immediate of an end's operation, or the key that the operation invalidates at the peer.
pub(super) fn imm_data(number: u64) -> u32 {
    0xcafe_0000 | number as u32
}

/// Carries out operation `number` of an end. `sources` are the source memories of this end and of its
/// peer.
pub(super) fn apply(
    script: &Script,
    number: u64,
    op: &Op,
    sources: [&[u8]; 2],
    us: &mut Expected,
    peer: &mut Expected,
) {
    let range = |area: u32, offset: u32| {
        let start = (area * script.area() + offset) as usize;
        start..start + op.len as usize
    };
    let from = range(0, op.from);
    match op.opcode {
        SendOpcode::RdmaRead => {
            us.inbox[range(READS, op.to)].copy_from_slice(&sources[1][from]);
        }
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteWithImm => {
            peer.inbox[range(WRITES, op.to)].copy_from_slice(&sources[0][from]);
        }
        SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => {
            peer.inbox[range(SENDS, op.to)].copy_from_slice(&sources[0][from]);
        }
    }
    let wc = Wc { status: WcStatus::SUCCESS, byte_len: op.len, ..Wc::default() };
    if op.flags.contains(SendFlags::SIGNALED) {
        let opcode = match op.opcode {
            SendOpcode::RdmaRead => WcOpcode::RDMA_READ,
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteWithImm => WcOpcode::RDMA_WRITE,
            SendOpcode::Send | SendOpcode::SendWithImm | SendOpcode::SendWithInv => WcOpcode::SEND,
        };
        us.sends.push(Wc { wr_id: number, opcode, ..wc });
    }
    if op.uses_receive() {
        let opcode = match op.opcode {
            SendOpcode::RdmaWriteWithImm => WcOpcode::RECV_RDMA_WITH_IMM,
            _ => WcOpcode::RECV,
        };
        let (flags, imm_data) = match op.opcode {
            SendOpcode::Send => Default::default(),
            SendOpcode::SendWithInv => (WcFlags::WITH_INV, imm_data(number)),
            _ => (WcFlags::WITH_IMM, imm_data(number)),
        };
        let wr_id = peer.receives.len() as u64;
        peer.receives.push(Wc { wr_id, opcode, flags, imm_data, ..wc });
    }
}
