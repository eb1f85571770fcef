//! The script of what two ends do with each other.

use invar_core::nic::{Mtu, SendFlags, SendOpcode};

use super::{Choices, Faults};

/// A work request of the send queue. Offsets are within the areas of `expected`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The operation.
    pub opcode: SendOpcode,
    /// The length in bytes.
    pub len: u32,
    /// The offset from which the bytes come.
    pub from: u32,
    /// The offset to which the bytes go. For a SEND, the receive points there.
    pub to: u32,
    /// The flags: signaled, solicited, inline.
    pub flags: SendFlags,
}

impl Op {
    /// Whether the operation completes a receive.
    pub fn uses_receive(&self) -> bool {
        !matches!(self.opcode, SendOpcode::RdmaWrite | SendOpcode::RdmaRead)
    }
}

/// Everything that defines a run.
#[derive(Clone, Debug)]
pub struct Script {
    /// The path MTU.
    pub mtu: Mtu,
    /// The payload bytes of a full packet, if both ends agreed on more than the path MTU.
    pub long_mtu_bytes: u32,
    /// Whether both ends agreed on adaptive routing.
    pub adaptive: bool,
    /// The first PSN of each end.
    pub psns: [u32; 2],
    /// The number of READs that may be outstanding.
    pub rd_atomic: u8,
    /// The most packets in flight.
    pub window: u32,
    /// The operations that each end posts.
    pub ops: [Vec<Op>; 2],
    /// The time after which each end posts its next receive.
    pub receive_pause_ns: u32,
    /// The time at which the first end drains its send queue, and the duration.
    pub drain: Option<(u64, u64)>,
    /// The faults of the link between the ends.
    pub faults: Faults,
}

impl Script {
    /// The bytes of an area. This is also the longest message.
    pub fn area(&self) -> u32 {
        64 * self.mtu_bytes()
    }

    fn mtu_bytes(&self) -> u32 {
        self.mtu.bytes().max(self.long_mtu_bytes)
    }

    /// A script from any choices.
    pub fn new(choices: &mut Choices<'_>) -> Script {
        let mtu = match choices.below(16) {
            0..13 => Mtu::Mtu256,
            13 | 14 => Mtu::Mtu1024,
            _ => Mtu::Mtu4096,
        };
        let long_mtu_bytes = choices.one(&[0, 0, 260, 600]);
        let adaptive = choices.percent(50);
        let psn = |choices: &mut Choices<'_>| match choices.below(4) {
            0 => 0x100,
            1 => 0xff_fffa,
            2 => 0x7f_fffa,
            _ => choices.below(1 << 24),
        };
        let mut script = Script {
            mtu,
            long_mtu_bytes,
            adaptive,
            psns: [psn(choices), psn(choices)],
            rd_atomic: choices.one(&[1, 2, 16]),
            window: choices.one(&[256, 1, 2, 7, 32]),
            ops: [Vec::new(), Vec::new()],
            receive_pause_ns: choices.one(&[0, 0, 100_000]),
            drain: None,
            faults: Faults {
                lost: choices.one(&[0, 1, 5, 30]),
                doubled: choices.one(&[0, 1, 20]),
                held_back: choices.one(&[0, 5, 30]),
                left: 200,
            },
        };
        if choices.percent(10) {
            script.drain = Some((choices.below(100_000).into(), choices.below(100_000).into()));
        }
        let counts = [choices.below(13), choices.below(6)];
        for (end, count) in counts.into_iter().enumerate() {
            let mut to = 0;
            for _ in 0..count {
                let op = script.op(to, choices);
                to = (to + op.len).min(script.area());
                script.ops[end].push(op);
            }
        }
        script
    }

    /// Chooses an operation. Adaptive routing does not keep the order of WRITEs, so WRITEs in flight at
    /// one time must not overlap. Each goes to the place where the last one ended.
    fn op(&self, end_of_last: u32, choices: &mut Choices<'_>) -> Op {
        use SendOpcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, SendWithInv};
        let mtu = self.mtu_bytes();
        let all = [RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, RdmaRead, SendWithInv];
        let opcode = choices.one(&all);
        let len = match choices.below(13) {
            0 => 0,
            1 => 1,
            2 => 3,
            3 => mtu - 1,
            4 => mtu,
            5 => mtu + 1,
            6 => 2 * mtu,
            7 => 5 * mtu + 7,
            // The first packet may have 16 bytes less payload than the others.
            8 => 3 * mtu - 16 + choices.below(17),
            9 => 40 * mtu + 2,
            _ => choices.below(6 * mtu),
        };
        let to = match self.adaptive {
            true => end_of_last,
            false => choices.below(self.area() - len + 1),
        };
        let len = len.min(self.area() - to);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, choices.percent(70));
        flags.set(SendFlags::SOLICITED, choices.percent(20));
        flags.set(SendFlags::INLINE, len <= 64 && opcode != RdmaRead && choices.percent(30));
        Op { opcode, len, from: choices.below(self.area() - len + 1), to, flags }
    }
}
