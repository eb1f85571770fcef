//! Atomic operations on the peer's memory.

use invar_core::nic::{Atomic, NicError, SendWr};

use super::Device;

impl Device {
    /// Posts one atomic operation. The word before the operation goes to the buffer of `wr`, in this
    /// host's byte order. The opcode of `wr` has no meaning.
    ///
    /// # Errors
    /// The errors of [`Device::post_send`]. `EINVAL`: the buffer has less than 8 bytes, or the peer's
    /// address is no multiple of 8.
    pub fn post_atomic(&mut self, qpn: u32, wr: &SendWr, atomic: Atomic) -> Result<(), NicError> {
        self.with_sender(qpn, |qp, env| qp.post_atomic(wr, atomic, env))
    }
}
