//! What two NICs are to do with each other.

use std::fmt;

use invar_core::nic::{Mtu, SendOpcode};

/// A list of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Every operation at every size that is special.
    Transfers,
    /// Requests that must fail, or must wait.
    Faults,
}

/// Messages of one kind from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What the end that asks posts.
    pub opcode: SendOpcode,
    /// Bytes of each message.
    pub len: usize,
    /// How many are posted at once.
    pub count: usize,
    /// Of the path.
    pub mtu: Mtu,
    /// What is wrong with it.
    pub fault: Option<Fault>,
}

/// What one of the ends does wrong, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The key of the remote memory is nobody's.
    RemoteKey,
    /// The remote range ends a byte behind the registered one.
    RemoteRange,
    /// The remote memory permits nothing of the kind.
    RemoteRights,
    /// The buffer of the receive is a byte too short.
    ShortReceive,
    /// The receive is posted when the request has been refused for a while.
    LateReceive,
    /// No receive is ever posted.
    NoReceive,
    /// The queue pair that is to answer is gone.
    NoQueuePair,
}

const OPCODES: [SendOpcode; 5] = [
    SendOpcode::RdmaWrite,
    SendOpcode::RdmaWriteWithImm,
    SendOpcode::RdmaRead,
    SendOpcode::Send,
    SendOpcode::SendWithImm,
];
const MTUS: [Mtu; 2] = [Mtu::Mtu1024, Mtu::Mtu4096];

impl Table {
    /// All of it, in an order that both processes have.
    pub fn scenarios(self) -> Vec<Scenario> {
        match self {
            Table::Transfers => transfers(),
            Table::Faults => faults(),
        }
    }
}

fn transfers() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for mtu in MTUS {
        let bytes = mtu.bytes() as usize;
        for opcode in OPCODES {
            for len in [0, 1, bytes - 1, bytes, bytes + 1, 64 << 10, 1 << 20] {
                scenarios.push(Scenario { opcode, len, count: 1, mtu, fault: None });
            }
            scenarios.push(Scenario { opcode, len: 5001, count: 16, mtu, fault: None });
        }
    }
    scenarios
}

fn faults() -> Vec<Scenario> {
    use Fault::*;
    use SendOpcode::*;

    let mut scenarios = Vec::new();
    for (faults, opcodes) in [
        (&[RemoteKey, RemoteRange, RemoteRights][..], &[RdmaWrite, RdmaWriteWithImm, RdmaRead][..]),
        (&[NoQueuePair], &OPCODES),
        (&[ShortReceive], &[Send, SendWithImm]),
        (&[LateReceive, NoReceive], &[RdmaWriteWithImm, Send, SendWithImm]),
    ] {
        for &fault in faults {
            for &opcode in opcodes {
                // Of one packet, and of several.
                for len in [100, 10_000] {
                    let (mtu, fault) = (Mtu::Mtu1024, Some(fault));
                    scenarios.push(Scenario { opcode, len, count: 1, mtu, fault });
                }
            }
        }
    }
    scenarios
}

impl Scenario {
    /// Bytes of memory of either end: whole words, with all messages behind each other.
    pub fn region_bytes(&self) -> usize {
        (self.len * self.count).next_multiple_of(8).max(8)
    }

    /// Whether this is what is wrong.
    pub fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether each message takes a receive of the end that answers.
    pub fn takes_receives(&self) -> bool {
        !matches!(self.opcode, SendOpcode::RdmaWrite | SendOpcode::RdmaRead)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { opcode, len, count, mtu, fault } = self;
        write!(f, "{count} {opcode:?} of {len} B at MTU {}", mtu.bytes())?;
        fault.map_or(Ok(()), |fault| write!(f, ", {fault:?}"))
    }
}
