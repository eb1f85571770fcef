//! The opcode byte of the base transport header (BTH).

use core::fmt;

bitflags::bitflags! {
    /// Extension headers that follow the BTH. On the wire these headers appear in bit order, lowest
    /// bit first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Extensions: u8 {
        /// [`Deth`](super::Deth), 8 bytes.
        const DETH = 1;
        /// [`Reth`](super::Reth), 16 bytes.
        const RETH = 1 << 1;
        /// [`AtomicEth`](super::AtomicEth), 28 bytes.
        const ATOMICETH = 1 << 2;
        /// [`Ieth`](super::Ieth), 4 bytes.
        const IETH = 1 << 3;
        /// [`Aeth`](super::Aeth), 4 bytes.
        const AETH = 1 << 4;
        /// [`AtomicAckEth`](super::AtomicAckEth), 8 bytes.
        const ATOMICACKETH = 1 << 5;
        /// [`ImmDt`](super::ImmDt), 4 bytes.
        const IMMDT = 1 << 6;
    }
}

/// Transport service, the upper three bits of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoceTransport {
    /// Reliable connection (0).
    Rc,
    /// Unreliable connection (1).
    Uc,
    /// Reliable datagram (2).
    Rd,
    /// Unreliable datagram (3).
    Ud,
    /// Congestion notification (4).
    Cnp,
    /// Extended reliable connection (5).
    Xrc,
    /// A code that Invar does not know: 6 or 7.
    Other(u8),
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the words of the opcodes")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// Returns whether the packet begins its message: it is the first or the only one.
    pub const fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Returns whether the packet ends its message: it is the last or the only one.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// Opcode of a packet (IBTA §9.2.1): three bits of [`RoceTransport`], then five bits of operation. Any
/// byte is a legal value.
///
/// Constants without a prefix are operations of the reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opcode(pub u8);

/// Defines the opcode constants and their names for `fmt::Debug`.
macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        #[expect(missing_docs, reason = "the names of the standard")]
        impl Opcode {
            $(pub const $name: Self = Self($value);)*
        }

        impl fmt::Debug for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (transport, op) = match (self.transport(), self.connected()) {
                    (RoceTransport::Rc, Some(op)) => ("RC_", op),
                    (RoceTransport::Uc, Some(op)) => ("UC_", op),
                    _ => ("", *self),
                };
                match op {
                    $(Self::$name => write!(f, "{transport}{}", stringify!($name)),)*
                    _ => write!(f, "Opcode({:#04x})", self.0),
                }
            }
        }
    };
}

opcodes! {
    SEND_FIRST = 0x00,
    SEND_MIDDLE = 0x01,
    SEND_LAST = 0x02,
    SEND_LAST_IMM = 0x03,
    SEND_ONLY = 0x04,
    SEND_ONLY_IMM = 0x05,
    WRITE_FIRST = 0x06,
    WRITE_MIDDLE = 0x07,
    WRITE_LAST = 0x08,
    WRITE_LAST_IMM = 0x09,
    WRITE_ONLY = 0x0a,
    WRITE_ONLY_IMM = 0x0b,
    READ_REQUEST = 0x0c,
    READ_RESPONSE_FIRST = 0x0d,
    READ_RESPONSE_MIDDLE = 0x0e,
    READ_RESPONSE_LAST = 0x0f,
    READ_RESPONSE_ONLY = 0x10,
    ACKNOWLEDGE = 0x11,
    ATOMIC_ACKNOWLEDGE = 0x12,
    COMPARE_SWAP = 0x13,
    FETCH_ADD = 0x14,
    SEND_LAST_INV = 0x16,
    SEND_ONLY_INV = 0x17,
    UD_SEND_ONLY = 0x64,
    UD_SEND_ONLY_IMM = 0x65,
    CNP = 0x81,
}

impl Opcode {
    /// Transport service, from the upper three bits.
    pub const fn transport(self) -> RoceTransport {
        match self.0 >> 5 {
            0 => RoceTransport::Rc,
            1 => RoceTransport::Uc,
            2 => RoceTransport::Rd,
            3 => RoceTransport::Ud,
            4 => RoceTransport::Cnp,
            5 => RoceTransport::Xrc,
            n => RoceTransport::Other(n),
        }
    }

    /// Maps the opcode to the same operation of the reliable connection, if it belongs to a
    /// connection. The unreliable connection numbers its SENDs and WRITEs alike.
    pub(super) const fn connected(self) -> Option<Opcode> {
        match (self.transport(), self.0 & 0x1f) {
            (RoceTransport::Rc, op) | (RoceTransport::Uc, op @ 0..=0x0b) => Some(Opcode(op)),
            _ => None,
        }
    }

    /// Maps a SEND or WRITE of the reliable connection to that of the unreliable connection.
    pub(super) const fn unreliable(self) -> Opcode {
        Opcode(self.0 | 0x20)
    }

    /// Extension headers that follow the BTH. An unknown opcode, such as those of RD and XRC, has
    /// none.
    pub const fn extensions(self) -> Extensions {
        match self {
            Self::UD_SEND_ONLY => return Extensions::DETH,
            Self::UD_SEND_ONLY_IMM => return Extensions::DETH.union(Extensions::IMMDT),
            _ => {}
        }
        let Some(op) = self.connected() else { return Extensions::empty() };
        match op {
            Self::WRITE_FIRST | Self::WRITE_ONLY | Self::READ_REQUEST => Extensions::RETH,
            Self::WRITE_ONLY_IMM => Extensions::RETH.union(Extensions::IMMDT),
            Self::SEND_LAST_IMM | Self::SEND_ONLY_IMM | Self::WRITE_LAST_IMM => Extensions::IMMDT,
            Self::READ_RESPONSE_FIRST
            | Self::READ_RESPONSE_LAST
            | Self::READ_RESPONSE_ONLY
            | Self::ACKNOWLEDGE => Extensions::AETH,
            Self::ATOMIC_ACKNOWLEDGE => Extensions::AETH.union(Extensions::ATOMICACKETH),
            Self::COMPARE_SWAP | Self::FETCH_ADD => Extensions::ATOMICETH,
            Self::SEND_LAST_INV | Self::SEND_ONLY_INV => Extensions::IETH,
            _ => Extensions::empty(),
        }
    }

    /// Position of the packet in its message, or `None` for an unknown opcode.
    pub const fn position(self) -> Option<Position> {
        if let Self::UD_SEND_ONLY | Self::UD_SEND_ONLY_IMM = self {
            return Some(Position::Only);
        }
        let Some(op) = self.connected() else { return None };
        Some(match op {
            Self::SEND_FIRST | Self::WRITE_FIRST | Self::READ_RESPONSE_FIRST => Position::First,
            Self::SEND_MIDDLE | Self::WRITE_MIDDLE | Self::READ_RESPONSE_MIDDLE => Position::Middle,
            Self::SEND_LAST
            | Self::SEND_LAST_IMM
            | Self::SEND_LAST_INV
            | Self::WRITE_LAST
            | Self::WRITE_LAST_IMM
            | Self::READ_RESPONSE_LAST => Position::Last,
            Self::SEND_ONLY
            | Self::SEND_ONLY_IMM
            | Self::SEND_ONLY_INV
            | Self::WRITE_ONLY
            | Self::WRITE_ONLY_IMM
            | Self::READ_REQUEST
            | Self::READ_RESPONSE_ONLY
            | Self::ACKNOWLEDGE
            | Self::ATOMIC_ACKNOWLEDGE
            | Self::COMPARE_SWAP
            | Self::FETCH_ADD => Position::Only,
            _ => return None,
        })
    }

    /// Returns whether a response with data answers this request: a READ or an atomic.
    pub const fn asks_for_data(self) -> bool {
        matches!(self, Self::READ_REQUEST | Self::COMPARE_SWAP | Self::FETCH_ADD)
    }

    /// Returns whether the responder of a reliable connection sends this opcode: READ responses and
    /// acknowledges.
    pub const fn is_response(self) -> bool {
        matches!(self.0, 0x0d..=0x12)
    }
}

#[cfg(test)]
mod tests;
