//! The hello: what each socket says first, so that sockets find together and strangers are told.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use crate::conn::wire::{DEVICE_NAME_BYTES, DeviceName, decode, encode};
use crate::socket::LANES_MAX;

/// Version of the wire. Another one is another protocol.
pub const VERSION: u16 = 1;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();

/// Not text, and not the preface of an RDMA connection.
const MAGIC: [u8; 8] = *b"\x89INVSK\r\n";

/// A hello on the wire, little-endian.
///
/// ```text
/// byte 0      8        10     12     14       16       24      64            128
///      +------+--------+------+------+--------+--------+-------+-------------+
///      |magic |version |bytes |index |sockets |session | zero  | device name |
///      +------+--------+------+------+--------+--------+-------+-------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HelloBytes {
    magic: [u8; 8],
    version: U16,
    bytes: U16,
    index: U16,
    sockets: U16,
    session: U64,
    zero: [u8; 40],
    device: [u8; DEVICE_NAME_BYTES],
}

assert_eq_size!(HelloBytes, [u8; 128]);

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
    /// The first bytes are not ours.
    Magic([u8; 8]),
    /// The peer speaks another version of the socket wire: theirs.
    Version(u16),
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
            magic: MAGIC,
            version: VERSION.into(),
            bytes: (HELLO_BYTES as u16).into(),
            index: self.index.into(),
            sockets: self.sockets.into(),
            session: self.session.into(),
            zero: [0; 40],
            device: encode(&self.device),
        })
    }

    /// Judges the first bytes of a hello, as soon as magic and version are there: a peer of
    /// another version need not send as much as we would wait for.
    pub fn check_head(bytes: &[u8]) -> Result<(), HelloError> {
        if let Some(magic) = bytes.first_chunk::<8>()
            && *magic != MAGIC
        {
            return Err(HelloError::Magic(*magic));
        }
        match bytes.get(8..10).map(|v| u16::from_le_bytes([v[0], v[1]])) {
            Some(version) if version != VERSION => Err(HelloError::Version(version)),
            _ => Ok(()),
        }
    }

    /// Reads a peer's hello.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        Self::check_head(bytes)?;
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
            HelloError::Magic(got) => write!(
                f,
                "it begins with {got:02x?}, which is not the hello of Invar's sockets; is the \
                 transport (INVAR_TRANSPORT) the same on both sides?"
            ),
            HelloError::Version(theirs) => write!(
                f,
                "the peer speaks version {theirs} of the socket wire, this side version {VERSION}; \
                 run the same Invar on both"
            ),
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
            mut bytes in any::<[[u8; 32]; 4]>().prop_map(|b| -> [u8; HELLO_BYTES] { transmute!(b) }),
            ours: bool,
        ) {
            if ours {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Ok(hello) = Hello::parse(&bytes) {
                prop_assert!(hello.index < hello.sockets && (2..=66).contains(&hello.sockets));
            }
        }
    }

    #[test]
    fn another_version_is_named_from_its_first_ten_bytes() {
        let mut bytes = hello(0, 2, 1, "eth0").to_bytes();
        bytes[8] = 9;
        assert_eq!(Hello::check_head(&bytes[..9]), Ok(()));
        assert_eq!(Hello::check_head(&bytes[..10]), Err(HelloError::Version(9)));
    }

    #[test]
    fn an_rdma_preface_is_no_hello() {
        let bytes = b"\x89INVAR\r\n\x01\0";
        assert_eq!(Hello::check_head(bytes), Err(HelloError::Magic(*bytes.first_chunk().unwrap())));
    }
}
