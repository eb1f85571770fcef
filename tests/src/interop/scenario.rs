//! The scenarios that two NICs play with each other.

use std::fmt;

use invar_core::nic::{Mtu, SendOpcode};

/// A list of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Every operation at every special size.
    Transfers,
    /// Requests that must fail, or must wait.
    Faults,
}

/// Messages of one kind from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The operation that the asking end posts.
    pub opcode: SendOpcode,
    /// The bytes of each message.
    pub len: usize,
    /// The number of messages that are posted at once.
    pub count: usize,
    /// The path MTU.
    pub mtu: Mtu,
    /// The fault of this scenario, if any.
    pub fault: Option<Fault>,
}

/// A deliberate mistake of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The key of the remote memory belongs to nobody.
    RemoteKey,
    /// The remote range ends one byte behind the registered range.
    RemoteRange,
    /// The remote memory does not permit the operation.
    RemoteRights,
    /// The buffer of the receive is one byte too short.
    ShortReceive,
    /// The receive is posted after the request has been refused for a while.
    LateReceive,
    /// No receive is ever posted.
    NoReceive,
    /// The queue pair that should answer is gone.
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
    /// All scenarios of the table, in the order that both processes use.
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
                // Messages of one packet and of several.
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
    /// The bytes of memory at either end: whole words with room for all messages one after the other.
    pub fn region_bytes(&self) -> usize {
        (self.len * self.count).next_multiple_of(8).max(8)
    }

    /// Whether the scenario has this fault.
    pub fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether each message takes a receive of the answering end.
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
