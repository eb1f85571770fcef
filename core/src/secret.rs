//! Secrets, and values that are derived from them.

use core::fmt;

use hmac_sha256::HMAC;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;

/// A value that both ends know and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// The secret of a service that is open to everybody.
    pub const PUBLIC: Secret = Secret([0; SECRET_BYTES]);

    /// Creates a secret from its bytes.
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Secret(bytes)
    }

    /// The secret's bytes.
    pub const fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Derives a secret for one purpose. An end that knows the derived secret does not know this
    /// secret.
    #[must_use]
    pub fn derive(&self, label: &[u8], context: &[u8]) -> Secret {
        Secret(mac(&self.0, label, &[context]))
    }
}

impl fmt::Debug for Secret {
    /// Hides the secret's bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Computes the HMAC-SHA-256 of a label and further parts. The label's length comes first, so its end
/// is unambiguous.
pub(crate) fn mac(key: &[u8], label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = HMAC::new(key);
    mac.update([label.len() as u8]);
    mac.update(label);
    for part in parts {
        mac.update(part);
    }
    mac.finalize()
}
