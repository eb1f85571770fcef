//! The hello: what each socket says first, so that the sockets of a connection find together.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use crate::conn::wire::{DEVICE_NAME_BYTES, DeviceName, decode, encode};
use crate::socket::LANES_MAX;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();

/// A hello on the wire, little-endian.
///
/// ```text
/// byte 0         8       10        12     16            80
///      +---------+-------+---------+------+-------------+
///      | session | index | sockets | zero | device name |
///      +---------+-------+---------+------+-------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HelloBytes {
    session: U64,
    index: U16,
    sockets: U16,
    zero: [u8; 4],
    device: [u8; DEVICE_NAME_BYTES],
}

assert_eq_size!(HelloBytes, [u8; 80]);

/// What the connector says on each of its sockets, and the acceptor back on the first when all
/// are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which socket of the connection: 0 control, 1 main, then lanes.
    pub index: u16,
    /// How many sockets the connection has.
    pub sockets: u16,
    /// The connector's random number, by which its sockets find together.
    pub session: u64,
    /// Name of this end's device.
    pub device: DeviceName,
}

/// Why a hello is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// Not from 2 to 66 sockets, or not as many as the connection's other sockets say.
    Sockets(u16),
    /// Not the number of a socket of this connection, or one that came already.
    Index(u16),
    /// Not the session that we opened.
    Session(u64),
    /// Some of the connection's sockets did not come in time.
    Missing {
        /// Those that came.
        came: u16,
        /// Those that it has.
        of: u16,
    },
}

impl Hello {
    /// The bytes of the wire.
    pub fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        transmute!(HelloBytes {
            index: self.index.into(),
            sockets: self.sockets.into(),
            session: self.session.into(),
            zero: [0; 4],
            device: encode(&self.device),
        })
    }

    /// Reads a peer's hello.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        let b: HelloBytes = transmute!(*bytes);
        let (index, sockets) = (b.index.get(), b.sockets.get());
        if !(2..=LANES_MAX + 2).contains(&usize::from(sockets)) {
            return Err(HelloError::Sockets(sockets));
        }
        if index >= sockets {
            return Err(HelloError::Index(index));
        }
        let device = decode(&b.device);
        Ok(Hello { index, sockets, session: b.session.get(), device })
    }
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::Sockets(got) => write!(
                f,
                "a connection of {got} sockets is not one of 2 to {}, or not what its other \
                 sockets say",
                LANES_MAX + 2
            ),
            HelloError::Index(got) => {
                write!(f, "the connection has no socket {got}, or has it already")
            }
            HelloError::Session(got) => {
                write!(f, "the peer answers for session {got:#x}, which is not ours")
            }
            HelloError::Missing { came, of } => write!(
                f,
                "{came} of the connection's {of} sockets came in time; does a firewall let \
                 several connections to this port pass?"
            ),
        }
    }
}

impl core::error::Error for HelloError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(index: u16, sockets: u16, session: u64, device: &str) -> Hello {
        Hello { index, sockets, session, device: device.try_into().unwrap() }
    }

    proptest! {
        #[test]
        fn a_hello_survives_the_wire(
            index: u16, sockets in 2u16..=66, session: u64, device in "[!-~]{0,64}",
        ) {
            let sent = hello(index % sockets, sockets, session, &device);
            prop_assert_eq!(Hello::parse(&sent.to_bytes()), Ok(sent));
        }

        #[test]
        fn only_numbers_that_can_be_are_taken(
            bytes in any::<[[u8; 16]; 5]>().prop_map(|b| -> [u8; HELLO_BYTES] { transmute!(b) }),
        ) {
            if let Ok(hello) = Hello::parse(&bytes) {
                prop_assert!(hello.index < hello.sockets && (2..=66).contains(&hello.sockets));
            }
        }
    }
}
