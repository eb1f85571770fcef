/// ACK extended transport header: how it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// Acknowledged, not ready, or refused.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages that the responder has completed.
    pub msn: u32,
}

/// AETH syndrome (IBTA §9.7.5.2); every byte has one value and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to the packet's PSN arrived.
    Ack {
        /// Code of the receives that are left, 5 bits; 31 says nothing about them.
        credits: u8,
    },
    /// Receiver not ready: no receive was posted.
    RnrNak {
        /// Code of the least wait before a retry, 5 bits.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A byte without meaning: the reserved kind 2, or the top bit set.
    Unknown(u8),
}

/// Why a request was refused, 5 bits (IBTA §9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing: send again from the one that this NAK names.
    PsnSequenceError,
    /// The request is malformed, unsupported, or comes out of order within its message.
    InvalidRequest,
    /// Key, range or permission.
    RemoteAccessError,
    /// The responder failed by itself.
    RemoteOperationalError,
    /// Reliable datagram only.
    InvalidRdRequest,
    /// A code that the standard reserves, 5 to 31.
    Unknown(u8),
}

impl Syndrome {
    /// The credits code of a responder that does not count them; Linux rxe always sends it.
    pub const CREDITS_INVALID: u8 = 31;

    /// From its byte.
    pub const fn from_byte(byte: u8) -> Syndrome {
        let code = byte & 0x1f;
        match byte >> 5 {
            0 => Syndrome::Ack { credits: code },
            1 => Syndrome::RnrNak { timer: code },
            3 => Syndrome::Nak(match code {
                0 => NakCode::PsnSequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccessError,
                3 => NakCode::RemoteOperationalError,
                4 => NakCode::InvalidRdRequest,
                _ => NakCode::Unknown(code),
            }),
            _ => Syndrome::Unknown(byte),
        }
    }

    /// Its byte; a code is cut to its 5 bits.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 1 << 5 | timer & 0x1f,
            Syndrome::Nak(code) => 3 << 5 | code.code(),
            Syndrome::Unknown(byte) => byte,
        }
    }
}

impl NakCode {
    const fn code(self) -> u8 {
        match self {
            NakCode::PsnSequenceError => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccessError => 2,
            NakCode::RemoteOperationalError => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Unknown(code) => code & 0x1f,
        }
    }
}
