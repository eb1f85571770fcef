//! Attributes for programs whose header may be older or newer than ours.

use std::ptr;

/// Writes the first `bytes` bytes of attributes. Bytes behind those that we know are set to 0.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes.
pub(crate) unsafe fn write<T: Copy>(to: *mut T, bytes: usize, known: &T) {
    let copied = bytes.min(size_of::<T>());
    // SAFETY: the caller promises `bytes` bytes, and `known` has `copied`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(known).cast::<u8>(), to.cast(), copied);
        ptr::write_bytes(to.cast::<u8>().add(copied), 0, bytes - copied);
    }
}
