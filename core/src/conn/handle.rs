//! The handle: 128 bytes that name a listener to connectors. Any channel may copy them.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::Wire;
use crate::auth::Secret;
use crate::hex::{self, Hex};

/// Bytes of a handle (`NCCL_NET_HANDLE_MAXSIZE`).
pub const HANDLE_BYTES: usize = 128;

const MAGIC: [u8; 4] = *b"INVH";
const VERSION: u16 = 2;
const SECRET_AT: usize = 32;
/// Number of random bytes of a handle.
pub const HANDLE_SECRET_BYTES: usize = 16;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Names a listener, and carries the secret that admits callers. Copy its bytes to the connector over a
/// channel that others cannot read. If both ends share a key, the secret depends on the key too, and
/// others may read the handle.
///
/// ```text
/// ours        0 "INVH"   4 version u16   6 family u16 (4, 6)   8 port u16   12 scope id u32
///             16 address, 16 bytes (IPv4: the first four)   32 secret, 16 bytes
///             all little-endian, rest zero
/// NCCL 2.14   0 family u16, native (AF_INET 2, AF_INET6 10)    2 port, big-endian
///             4 IPv4 address | 4 flow info, 8 IPv6 address, 24 scope id native
///             32 connect stage of the caller, zero
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle([u8; HANDLE_BYTES]);

/// The reason why bytes are not a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// The text is not twice as many hexadecimal digits as a handle has bytes.
    Text,
    /// The first bytes are not those of an Invar handle.
    Magic([u8; 4]),
    /// The handle belongs to Invar's wire, but NCCL 2.14's wire is in use.
    OtherWire,
    /// The handle has another version than this side knows: the handle's version.
    Version(u16),
    /// The address family is neither IPv4 nor IPv6.
    Family(u16),
    /// The port is 0.
    Port,
    /// The secret is zero.
    Secret,
}

impl Handle {
    /// Creates the handle of a listener at `addr` with a random secret. NCCL's wire carries no secret.
    pub fn new(addr: SocketAddr, wire: Wire, secret: &[u8; HANDLE_SECRET_BYTES]) -> Self {
        let mut b = [0; HANDLE_BYTES];
        match wire {
            Wire::Invar => {
                b[SECRET_AT..][..HANDLE_SECRET_BYTES].copy_from_slice(secret);
                b[..4].copy_from_slice(&MAGIC);
                b[4..6].copy_from_slice(&VERSION.to_le_bytes());
                b[8..10].copy_from_slice(&addr.port().to_le_bytes());
                match addr {
                    SocketAddr::V4(a) => {
                        b[6..8].copy_from_slice(&4u16.to_le_bytes());
                        b[16..20].copy_from_slice(&a.ip().octets());
                    }
                    SocketAddr::V6(a) => {
                        b[6..8].copy_from_slice(&6u16.to_le_bytes());
                        b[12..16].copy_from_slice(&a.scope_id().to_le_bytes());
                        b[16..32].copy_from_slice(&a.ip().octets());
                    }
                }
            }
            Wire::Nccl214 => {
                b[2..4].copy_from_slice(&addr.port().to_be_bytes());
                match addr {
                    SocketAddr::V4(a) => {
                        b[..2].copy_from_slice(&AF_INET.to_ne_bytes());
                        b[4..8].copy_from_slice(&a.ip().octets());
                    }
                    SocketAddr::V6(a) => {
                        b[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
                        b[4..8].copy_from_slice(&a.flowinfo().to_be_bytes());
                        b[8..24].copy_from_slice(&a.ip().octets());
                        b[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
                    }
                }
            }
        }
        Handle(b)
    }

    /// Reads a handle of either wire from its bytes. [`Handle::addr`] tells whether the handle belongs
    /// to a given wire.
    ///
    /// # Errors
    /// The bytes are a handle of neither wire. The error describes their fault on Invar's wire.
    pub fn from_bytes(bytes: [u8; HANDLE_BYTES]) -> Result<Self, HandleError> {
        let handle = Handle(bytes);
        let ours = handle.addr(Wire::Invar);
        if ours.is_ok() || handle.addr(Wire::Nccl214).is_ok() {
            return Ok(handle);
        }
        ours.map(|_| handle)
    }

    /// Shows the handle as 256 hexadecimal digits, for channels of text. The secret is among them.
    pub const fn hex(&self) -> Hex<'_> {
        Hex(&self.0)
    }

    /// Reads the text of [`Handle::hex`].
    ///
    /// # Errors
    /// The text is something else, or the errors of [`Handle::from_bytes`].
    pub fn from_hex(text: &str) -> Result<Self, HandleError> {
        Handle::from_bytes(hex::parse(text).ok_or(HandleError::Text)?)
    }

    /// Wraps bytes as a handle without checking them.
    pub(crate) const fn unread(bytes: [u8; HANDLE_BYTES]) -> Self {
        Handle(bytes)
    }

    /// The bytes to copy to the connector.
    pub const fn as_bytes(&self) -> &[u8; HANDLE_BYTES] {
        &self.0
    }

    /// The address at which the listener listens.
    pub fn addr(&self, wire: Wire) -> Result<SocketAddr, HandleError> {
        let addr = match wire {
            Wire::Invar => self.ours()?,
            Wire::Nccl214 => self.nccl()?,
        };
        if addr.port() == 0 { Err(HandleError::Port) } else { Ok(addr) }
    }

    /// The secret that a caller of the listener must know, on Invar's wire. The function derives this
    /// secret from the handle's secret and from `key`, if both ends share one.
    pub fn secret(&self, key: Option<&Secret>) -> Result<Secret, HandleError> {
        let bytes: [u8; HANDLE_SECRET_BYTES] = self.field(SECRET_AT);
        if bytes == [0; HANDLE_SECRET_BYTES] {
            return Err(HandleError::Secret);
        }
        Ok(key.unwrap_or(&Secret::PUBLIC).derive(b"handle", &bytes))
    }

    /// The address on Invar's wire, with any port.
    pub(crate) fn ours(&self) -> Result<SocketAddr, HandleError> {
        if self.field(0) != MAGIC {
            return Err(HandleError::Magic(self.field(0)));
        }
        let version = u16::from_le_bytes(self.field(4));
        if version != VERSION {
            return Err(HandleError::Version(version));
        }
        let port = u16::from_le_bytes(self.field(8));
        match u16::from_le_bytes(self.field(6)) {
            4 => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(self.field::<4>(16))), port)),
            6 => {
                let ip = Ipv6Addr::from(self.field::<16>(16));
                let scope_id = u32::from_le_bytes(self.field(12));
                Ok(SocketAddrV6::new(ip, port, 0, scope_id).into())
            }
            family => Err(HandleError::Family(family)),
        }
    }

    fn nccl(&self) -> Result<SocketAddr, HandleError> {
        if self.field(0) == MAGIC {
            return Err(HandleError::OtherWire);
        }
        let port = u16::from_be_bytes(self.field(2));
        match u16::from_ne_bytes(self.field(0)) {
            AF_INET => Ok(SocketAddrV4::new(Ipv4Addr::from(self.field::<4>(4)), port).into()),
            AF_INET6 => {
                let ip = Ipv6Addr::from(self.field::<16>(8));
                let flowinfo = u32::from_be_bytes(self.field(4));
                let scope_id = u32::from_ne_bytes(self.field(24));
                Ok(SocketAddrV6::new(ip, port, flowinfo, scope_id).into())
            }
            family => Err(HandleError::Family(family)),
        }
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        core::array::from_fn(|i| self.0[at + i])
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr(Wire::Invar) {
            Ok(addr) => write!(f, "Handle({addr})"),
            Err(_) => write!(f, "Handle({:02x?}…)", &self.0[..32]),
        }
    }
}

impl fmt::Display for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandleError::Text => {
                write!(f, "not a handle: it has {} hexadecimal digits", 2 * HANDLE_BYTES)
            }
            HandleError::Magic(got) => write!(
                f,
                "not a handle of Invar: it begins with {got:02x?}; does the listener speak NCCL \
                 2.14's wire? Set INVAR_WIRE alike on both"
            ),
            HandleError::OtherWire => f.write_str(
                "the listener speaks Invar's wire, this side NCCL 2.14's: set INVAR_WIRE alike on \
                 both",
            ),
            HandleError::Version(theirs) => {
                write!(f, "the handle has version {theirs}, this side knows {VERSION}")
            }
            HandleError::Family(family) => {
                write!(f, "the handle's address family {family} is neither IPv4 nor IPv6")
            }
            HandleError::Port => f.write_str("the handle has no port"),
            HandleError::Secret => {
                f.write_str("the handle carries no secret: is it that of a listener?")
            }
        }
    }
}

impl core::error::Error for HandleError {}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;
    use proptest::prelude::*;

    const SECRET: [u8; HANDLE_SECRET_BYTES] = [9; HANDLE_SECRET_BYTES];

    proptest! {
        #[test]
        fn every_address_survives_both_wires(
            v6: bool, ip: [u8; 16], port in 1u16.., scope in any::<u32>(), nccl: bool,
        ) {
            let addr: SocketAddr = if v6 {
                SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into()
            } else {
                SocketAddrV4::new(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]), port).into()
            };
            let wire = if nccl { Wire::Nccl214 } else { Wire::Invar };
            let handle = Handle::new(addr, wire, &[9; HANDLE_SECRET_BYTES]);
            prop_assert_eq!(handle.addr(wire), Ok(addr));
            prop_assert_eq!(Handle::from_bytes(*handle.as_bytes()), Ok(handle));
            prop_assert_eq!(handle.secret(None).is_ok(), !nccl);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), HANDLE_BYTES)) {
            if let Ok(handle) = Handle::from_bytes(bytes.try_into().unwrap()) {
                assert!(handle.addr(Wire::Invar).is_ok() || handle.addr(Wire::Nccl214).is_ok());
            }
        }
    }

    #[test]
    fn the_nccl_handle_is_a_sockaddr_in() {
        let handle = Handle::new("10.1.2.3:4660".parse().unwrap(), Wire::Nccl214, &SECRET);
        let family = AF_INET.to_ne_bytes();
        assert_eq!(handle.as_bytes()[..8], [family[0], family[1], 0x12, 0x34, 10, 1, 2, 3]);
        assert!(handle.as_bytes()[8..].iter().all(|&b| b == 0));
    }

    #[test]
    fn a_handle_of_another_wire_or_version_is_refused_by_name() {
        let nccl = Handle::new("10.1.2.3:4660".parse().unwrap(), Wire::Nccl214, &SECRET);
        let error = nccl.addr(Wire::Invar).unwrap_err();
        assert!(matches!(error, HandleError::Magic(_)));
        assert!(error.to_string().ends_with("Set INVAR_WIRE alike on both"), "{error}");
        let ours = Handle::new("10.1.2.3:1".parse().unwrap(), Wire::Invar, &SECRET);
        let error = ours.addr(Wire::Nccl214).unwrap_err();
        assert_eq!(error, HandleError::OtherWire);
        assert!(error.to_string().ends_with("set INVAR_WIRE alike on both"), "{error}");
        let mut bytes = *ours.as_bytes();
        bytes[4] = 9;
        assert_eq!(Handle::from_bytes(bytes), Err(HandleError::Version(9)));
        assert_eq!(Handle::from_bytes([7; HANDLE_BYTES]), Err(HandleError::Magic([7; 4])));
    }
}
