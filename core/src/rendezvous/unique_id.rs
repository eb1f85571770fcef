//! The unique id: the bytes that all ranks of a communicator share before they meet.

use core::fmt;
use core::net::SocketAddr;

use crate::auth::{SECRET_BYTES, Secret};
use crate::conn::{HANDLE_BYTES, HANDLE_SECRET_BYTES, Handle, HandleError, Wire};
use crate::hex::{self, Hex};

/// Length of a unique id in bytes (`NCCL_UNIQUE_ID_BYTES`).
pub const UNIQUE_ID_BYTES: usize = HANDLE_BYTES;
/// Length of a communicator's id in bytes. The hub makes a random id when all ranks have joined.
pub const COMMUNICATOR_ID_BYTES: usize = 16;

/// Offset of the secret, behind the address.
const SECRET_AT: usize = 64;
/// Stands in place of the shorter secret of a handle.
const NO_SECRET: [u8; HANDLE_SECRET_BYTES] = [0; HANDLE_SECRET_BYTES];

/// The address at which a communicator's ranks meet, and the secret that lets them in
/// (`ncclUniqueId`). Copy its bytes to every rank in a way that others cannot read.
///
/// ```text
/// 0 the hub's address, as in a Handle   64 secret, 32 bytes   96 zero
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UNIQUE_ID_BYTES]);

/// Why bytes are not a unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UniqueIdError {
    /// The text is not twice as many hexadecimal digits as an id has bytes.
    #[error("not a unique id: it has {} hexadecimal digits", 2 * UNIQUE_ID_BYTES)]
    Text,
    /// The address is not valid.
    #[error("not a unique id: {0}")]
    Address(#[from] HandleError),
    /// The secret is zero.
    #[error("a unique id without a secret: is it the handle of a listener?")]
    Secret,
}

impl UniqueId {
    /// Builds the id of a hub that listens at `addr` and lets in whoever knows `secret`.
    pub fn new(addr: SocketAddr, secret: &Secret) -> Self {
        let mut bytes = *Handle::new(addr, Wire::Invar, &NO_SECRET).as_bytes();
        bytes[SECRET_AT..SECRET_AT + SECRET_BYTES].copy_from_slice(secret.as_bytes());
        UniqueId(bytes)
    }

    /// Checks copied bytes and builds the id from them.
    ///
    /// # Errors
    /// The address is not valid, or the secret is zero.
    pub fn from_bytes(bytes: [u8; UNIQUE_ID_BYTES]) -> Result<Self, UniqueIdError> {
        let id = UniqueId(bytes);
        Handle::unread(bytes).addr(Wire::Invar)?;
        if id.secret() == Secret::PUBLIC { Err(UniqueIdError::Secret) } else { Ok(id) }
    }

    /// Bytes to copy to the ranks.
    pub const fn as_bytes(&self) -> &[u8; UNIQUE_ID_BYTES] {
        &self.0
    }

    /// Shows the id as 256 hexadecimal digits, for channels of text. The secret is among them.
    pub const fn hex(&self) -> Hex<'_> {
        Hex(&self.0)
    }

    /// Reads the text of [`UniqueId::hex`].
    ///
    /// # Errors
    /// The text is something else, or the errors of [`UniqueId::from_bytes`].
    pub fn from_hex(text: &str) -> Result<Self, UniqueIdError> {
        UniqueId::from_bytes(hex::parse(text).ok_or(UniqueIdError::Text)?)
    }

    /// Address at which the hub listens.
    pub fn addr(&self) -> SocketAddr {
        let addr = Handle::unread(self.0).ours();
        addr.expect("it was made from an address, or looked at")
    }

    /// Secret that only the ranks and the hub know.
    pub fn secret(&self) -> Secret {
        Secret::new(core::array::from_fn(|i| self.0[SECRET_AT + i]))
    }

    /// Derives the key that all ranks of a communicator share. Each rank derives the key itself, so
    /// nobody sends it.
    pub fn key(&self, communicator: &[u8; COMMUNICATOR_ID_BYTES]) -> Secret {
        self.secret().derive(b"communicator", communicator)
    }
}

impl fmt::Debug for UniqueId {
    /// Formats the address and hides the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({})", self.addr())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::format;

    use super::*;

    const SECRET: Secret = Secret::new([7; SECRET_BYTES]);

    #[test]
    fn an_id_survives_its_bytes_and_keeps_its_secret_to_itself() {
        for addr in ["127.0.0.1:80", "[fd00::1%7]:65535"] {
            let addr = addr.parse().unwrap();
            let id = UniqueId::new(addr, &SECRET);
            assert_eq!(UniqueId::from_bytes(*id.as_bytes()), Ok(id));
            assert_eq!((id.addr(), id.secret()), (addr, SECRET));
            assert_eq!(format!("{id:?}"), format!("UniqueId({addr})"));
        }
    }

    #[test]
    fn an_id_without_a_port_is_refused_as_bytes_and_told_all_the_same() {
        let addr: SocketAddr = "[::1]:0".parse().unwrap();
        let id = UniqueId::new(addr, &SECRET);
        assert_eq!((id.addr(), format!("{id:?}")), (addr, "UniqueId([::1]:0)".into()));
        let error = UniqueId::from_bytes(*id.as_bytes()).unwrap_err();
        assert_eq!(error, UniqueIdError::Address(HandleError::Port));
    }

    #[test]
    fn bytes_that_are_none_are_refused() {
        let addr: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let handle = Handle::new(addr, Wire::Invar, &NO_SECRET);
        assert_eq!(UniqueId::from_bytes(*handle.as_bytes()), Err(UniqueIdError::Secret));
        let error = UniqueId::from_bytes([7; UNIQUE_ID_BYTES]).unwrap_err();
        assert_eq!(error, UniqueIdError::Address(HandleError::Magic([7; 4])));
    }
}
