//! What a NIC's driver asks of the GPU's, in the kernel: where the memory is. Here a NIC in the same
//! process asks.

use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use crate::DRIVER;

/// Memory that was exported.
pub(crate) struct DmaBuf {
    /// Where the CPU finds its first byte.
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Where the CPU finds `len` bytes at `addr` of a GPU's memory, as nvidia-peermem tells; null where
/// that is no such memory.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_pages(addr: u64, len: usize) -> *mut u8 {
    DRIVER.lock().unwrap().memory.pages(addr, len).unwrap_or(ptr::null_mut())
}

/// Where the CPU finds `len` bytes at `offset` of a DMA-BUF; null where `fd` is none that was
/// exported here, or too short.
///
/// # Safety
/// A descriptor that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_dma_buf(fd: c_int, offset: u64, len: usize) -> *mut u8 {
    // SAFETY: open, and left so.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let driver = DRIVER.lock().unwrap();
    let buf = file.metadata().ok().and_then(|data| driver.dma_bufs.get(&data.ino()));
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
    match (buf, end) {
        (Some(buf), Some(end)) if end <= buf.len => {
            ptr::with_exposed_provenance_mut(buf.start + offset as usize)
        }
        _ => ptr::null_mut(),
    }
}
