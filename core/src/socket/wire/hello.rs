//! The hello: the first bytes on each socket, by which the acceptor groups the sockets of a
//! connection.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use crate::conn::wire::{DEVICE_NAME_BYTES, DeviceName, decode, encode};
use crate::socket::LANES_MAX;

/// Length of a hello in bytes.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();

/// Byte layout of a hello, little-endian.
///
/// ```text
/// byte 0         8       10        12         14             16            80
///      +---------+-------+---------+----------+--------------+-------------+
///      | session | index | sockets | features | renewal port | device name |
///      +---------+-------+---------+----------+--------------+-------------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HelloBytes {
    session: U64,
    index: U16,
    sockets: U16,
    features: U16,
    renewal_port: U16,
    device: [u8; DEVICE_NAME_BYTES],
}

assert_eq_size!(HelloBytes, [u8; 80]);

/// The feature of an end that sends and takes view frames. An end of an older version has no features.
const SHARES_VIEWS: u16 = 1;
/// The feature of an end that tells or takes the acceptor's time.
const TELLS_TIME: u16 = 1 << 1;
/// The feature of an end that acknowledges, and whose sockets go on over new connections.
const RESUMES: u16 = 1 << 2;

/// The first bytes on each socket. The connector sends a hello on each socket. Once all sockets have
/// arrived, the acceptor answers with a hello on the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketHello {
    /// Number of the socket in its connection: 0 is control, 1 is main, then come the lanes.
    pub index: u16,
    /// Number of sockets of the connection.
    pub sockets: u16,
    /// Random number of the connector, by which the acceptor groups the sockets.
    pub session: u64,
    /// Name of the sending end's device.
    pub device: DeviceName,
    /// Whether the end sends and takes view frames on control.
    pub shares_views: bool,
    /// Whether the end tells or takes the acceptor's time. From an acceptor: whether its time follows,
    /// [`TIME_BYTES`](crate::conn::wire::TIME_BYTES) long.
    pub tells_time: bool,
    /// Whether lost sockets go on over new connections. From an acceptor: whether both ends do so.
    pub resumes: bool,
    /// From an acceptor: the port at which the connector calls again
    /// ([`Stream::renewal_port`](crate::conn::Stream::renewal_port)); otherwise 0.
    pub renewal_port: u16,
}

/// Why a hello is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// The number of sockets is not from 2 to 66, or differs from that of the connection's other
    /// sockets.
    Sockets(u16),
    /// The connection has no socket of this number, or has it already.
    Index(u16),
    /// The answer is for another session than the one we opened.
    Session(u64),
    /// Some sockets of the connection did not arrive in time.
    Missing {
        /// Number of sockets that arrived.
        came: u16,
        /// Number of sockets that the connection has.
        of: u16,
    },
}

impl SocketHello {
    /// Encodes the hello.
    pub fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let flag = |is_on: bool, feature: u16| if is_on { feature } else { 0 };
        let features = flag(self.shares_views, SHARES_VIEWS)
            | flag(self.tells_time, TELLS_TIME)
            | flag(self.resumes, RESUMES);
        transmute!(HelloBytes {
            index: self.index.into(),
            sockets: self.sockets.into(),
            session: self.session.into(),
            features: features.into(),
            renewal_port: self.renewal_port.into(),
            device: encode(&self.device),
        })
    }

    /// Decodes and checks a peer's hello.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HelloError> {
        let b: HelloBytes = transmute!(*bytes);
        let (index, sockets) = (b.index.get(), b.sockets.get());
        if !(2..=LANES_MAX + 2).contains(&usize::from(sockets)) {
            return Err(HelloError::Sockets(sockets));
        }
        if index >= sockets {
            return Err(HelloError::Index(index));
        }
        let has = |feature| b.features.get() & feature != 0;
        Ok(SocketHello {
            index,
            sockets,
            session: b.session.get(),
            device: decode(&b.device),
            shares_views: has(SHARES_VIEWS),
            tells_time: has(TELLS_TIME),
            resumes: has(RESUMES),
            renewal_port: b.renewal_port.get(),
        })
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

    proptest! {
        #[test]
        fn a_hello_survives_the_wire(
            index: u16, sockets in 2u16..=66, session: u64, device in "[!-~]{0,64}", features: [bool; 3],
            renewal_port: u16,
        ) {
            let [shares_views, tells_time, resumes] = features;
            let device = device.as_str().try_into().unwrap();
            let index = index % sockets;
            let sent = SocketHello {
                index, sockets, session, device, shares_views, tells_time, resumes, renewal_port,
            };
            prop_assert_eq!(SocketHello::parse(&sent.to_bytes()), Ok(sent));
        }

        #[test]
        fn only_numbers_that_can_be_are_taken(
            bytes in any::<[[u8; 16]; 5]>().prop_map(|b| -> [u8; HELLO_BYTES] { transmute!(b) }),
        ) {
            if let Ok(hello) = SocketHello::parse(&bytes) {
                prop_assert!(hello.index < hello.sockets && (2..=66).contains(&hello.sockets));
            }
        }
    }
}
