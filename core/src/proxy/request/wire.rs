//! The bytes of requests and responses, all little-endian.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::inbox::{FrameError, FrameHeader};
use crate::proxy::ConnectionId;
use crate::topology::Direction;

/// Length in bytes of a request's header.
pub const REQUEST_BYTES: usize = size_of::<RequestBytes>();
/// Length in bytes of a response's header.
pub const RESPONSE_BYTES: usize = size_of::<ResponseBytes>();
/// Version of the messages between rank and proxy.
pub const VERSION: u32 = 1;

/// The kind of a rank's request (`ncclProxyMsgType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// Asks for a new connection. The body is an [`Init`]. The response is the connection's number, and
    /// the pool comes with it as a file descriptor.
    Init = 1,
    /// Asks the transport to prepare the connection before the peer is known.
    Setup = 3,
    /// Asks the transport to connect to the peer.
    Connect = 4,
    /// Tells the proxy that the rank is done; there is no response.
    Close = 6,
    /// Tells the proxy to end; there is no response.
    Stop = 8,
    /// Asks for a file descriptor of the proxy's. The body is the descriptor's handle, 32 bits.
    ConvertFd = 9,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Init, Kind::Setup, Kind::Connect, Kind::Close, Kind::Stop, Kind::ConvertFd];
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProxyRequest {
    pub(super) kind: Kind,
    pub(super) connection: ConnectionId,
    pub(super) id: u64,
    pub(super) len: u32,
    pub(super) response_len: u32,
}

/// ```text
/// 0        4            8    16    20             24
/// | kind   | connection | id | len | response_len | body …
/// ```
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestBytes {
    kind: U32,
    connection: U32,
    id: U64,
    len: U32,
    response_len: U32,
}
static_assertions::const_assert_eq!(REQUEST_BYTES, 24);

impl ProxyRequest {
    pub(super) fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        zerocopy::transmute!(RequestBytes {
            kind: U32::new(self.kind as u32),
            connection: U32::new(self.connection.0),
            id: U64::new(self.id),
            len: U32::new(self.len),
            response_len: U32::new(self.response_len),
        })
    }
}

impl FrameHeader for ProxyRequest {
    const BYTES: usize = REQUEST_BYTES;

    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let Ok(raw) = RequestBytes::read_from_bytes(bytes) else {
            return Err(FrameError::Kind(0));
        };
        let code = raw.kind.get();
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == code);
        Ok(ProxyRequest {
            kind: kind.ok_or(FrameError::Kind(code))?,
            connection: ConnectionId(raw.connection.get()),
            id: raw.id.get(),
            len: raw.len.get(),
            response_len: raw.response_len.get(),
        })
    }

    /// The response must also fit into a body, so its length is checked too.
    fn body_lens(&self) -> [u32; 2] {
        [self.len, self.response_len]
    }
}

/// The header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) id: u64,
    /// Whether the body is a text that says why the proxy refused the request.
    pub(super) refused: bool,
    /// Whether a file descriptor comes with the first byte.
    pub(super) has_fd: bool,
    pub(super) len: u32,
}

/// ```text
/// 0    8         10       12    16
/// | id | refused | has_fd | len | body …
/// ```
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ResponseBytes {
    id: U64,
    refused: U16,
    has_fd: U16,
    len: U32,
}
static_assertions::const_assert_eq!(RESPONSE_BYTES, 16);

impl Response {
    pub(super) fn to_bytes(self) -> [u8; RESPONSE_BYTES] {
        zerocopy::transmute!(ResponseBytes {
            id: U64::new(self.id),
            refused: U16::new(self.refused.into()),
            has_fd: U16::new(self.has_fd.into()),
            len: U32::new(self.len),
        })
    }
}

impl FrameHeader for Response {
    const BYTES: usize = RESPONSE_BYTES;

    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let Ok(raw) = ResponseBytes::read_from_bytes(bytes) else {
            return Err(FrameError::Kind(0));
        };
        Ok(Response {
            id: raw.id.get(),
            refused: raw.refused.get() != 0,
            has_fd: raw.has_fd.get() != 0,
            len: raw.len.get(),
        })
    }

    fn body_lens(&self) -> [u32; 2] {
        [self.len; 2]
    }
}

/// The body of [`Kind::Init`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// Number of the host's transport.
    pub transport: u32,
    /// Direction of the connection.
    pub direction: Direction,
    /// The local rank that asks.
    pub local_rank: u32,
}

/// ```text
/// 0         4           8           12           16
/// | version | transport | direction | local_rank |
/// ```
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InitBytes {
    version: U32,
    transport: U32,
    direction: U32,
    local_rank: U32,
}

impl Init {
    /// Returns the bytes of the body.
    pub fn to_bytes(self) -> [u8; 16] {
        zerocopy::transmute!(InitBytes {
            version: U32::new(VERSION),
            transport: U32::new(self.transport),
            direction: U32::new(match self.direction {
                Direction::Recv => 0,
                Direction::Send => 1,
            }),
            local_rank: U32::new(self.local_rank),
        })
    }

    /// Parses the body, or returns the reason why it is invalid.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let raw = InitBytes::read_from_bytes(bytes).map_err(|_| "its body is not of 16 bytes")?;
        if raw.version.get() != VERSION {
            return Err("rank and proxy are of different versions of this library");
        }
        Ok(Init {
            transport: raw.transport.get(),
            direction: match raw.direction.get() {
                0 => Direction::Recv,
                1 => Direction::Send,
                _ => return Err("its direction is neither 0 (recv) nor 1 (send)"),
            },
            local_rank: raw.local_rank.get(),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_bytes_that_the_diagrams_show() {
        let request = ProxyRequest {
            kind: Kind::Connect,
            connection: ConnectionId(0x0102),
            id: 0x1112_1314_1516_1718,
            len: 3,
            response_len: 5,
        };
        let bytes = b"\x04\0\0\0\x02\x01\0\0\x18\x17\x16\x15\x14\x13\x12\x11\x03\0\0\0\x05\0\0\0";
        assert_eq!(&request.to_bytes(), bytes);
        assert_eq!(ProxyRequest::parse(bytes), Ok(request));

        let response = Response { id: 0x0102, refused: true, has_fd: true, len: 7 };
        let bytes = b"\x02\x01\0\0\0\0\0\0\x01\0\x01\0\x07\0\0\0";
        assert_eq!(&response.to_bytes(), bytes);
        assert_eq!(Response::parse(bytes), Ok(response));

        let init = Init { transport: 2, direction: Direction::Send, local_rank: 3 };
        let bytes = b"\x01\0\0\0\x02\0\0\0\x01\0\0\0\x03\0\0\0";
        assert_eq!(&init.to_bytes(), bytes);
        assert_eq!(Init::parse(bytes), Ok(init));
        for (at, value) in [(0, 2), (8, 2)] {
            let mut wrong = *bytes;
            wrong[at] = value;
            assert!(Init::parse(&wrong).is_err());
        }
        assert!(Init::parse(&bytes[..15]).is_err());
    }

    #[test]
    fn each_kind_has_its_code_and_no_other_code_is_one() {
        let request = ProxyRequest {
            kind: Kind::Stop,
            connection: ConnectionId(0),
            id: 0,
            len: 0,
            response_len: 0,
        };
        for code in 0..=255u8 {
            let mut bytes = request.to_bytes();
            bytes[0] = code;
            match ProxyRequest::parse(&bytes) {
                Ok(request) => assert_eq!(request.kind as u32, u32::from(code)),
                Err(error) => {
                    assert_eq!(error, FrameError::Kind(code.into()));
                    assert!(![1, 3, 4, 6, 8, 9].contains(&code));
                }
            }
        }
    }
}
