/// ACK extended transport header: the outcome that a responder reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// Outcome: acknowledged, receiver not ready, or refused.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: how many messages the responder has completed.
    pub msn: u32,
}

/// AETH syndrome (IBTA §9.7.5.2). Each byte maps to exactly one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Every packet up to the acknowledge's PSN has arrived.
    Ack {
        /// Code for the number of posted receives, 5 bits. The code 31 gives no number.
        credits: u8,
    },
    /// The receiver is not ready: no receive is posted.
    RnrNak {
        /// Code for the minimum wait before a retry, 5 bits.
        timer: u8,
    },
    /// The responder refuses the request.
    Nak(NakCode),
    /// A byte without a meaning: the reserved kind 2, or a byte with the top bit set.
    Unknown(u8),
}

/// Why the responder refuses a request, 5 bits (IBTA §9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing. The requester sends again from the PSN of this NAK.
    PsnSequenceError,
    /// The request is malformed, unsupported, or out of order within its message.
    InvalidRequest,
    /// The key, the address range or the permission is wrong.
    RemoteAccessError,
    /// The responder failed for a reason of its own.
    RemoteOperationalError,
    /// The reliable datagram request is invalid. Other transports do not send this code.
    InvalidRdRequest,
    /// A code that the standard reserves: 5 to 31.
    Unknown(u8),
}

impl Syndrome {
    /// Credits code of a responder that does not count credits. Linux rxe always sends this code.
    pub const CREDITS_INVALID: u8 = 31;

    /// Decodes a syndrome byte.
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

    /// Encodes the syndrome. Codes are cut to 5 bits.
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
