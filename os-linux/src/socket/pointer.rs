//! Pointers to the buffers of messages.

use std::ptr::NonNull;

use invar_core::error::Error;

/// Converts the address of a buffer to a pointer; an empty buffer may have the address 0.
pub(super) fn pointer(addr: u64, len: u32) -> Result<NonNull<u8>, Error> {
    match NonNull::new(std::ptr::with_exposed_provenance_mut(addr as usize)) {
        Some(start) => Ok(start),
        None if len == 0 => Ok(NonNull::dangling()),
        None => Err(Error::Argument("a buffer at address 0")),
    }
}
