//! Tells a NIC where GPU memory is. In the kernel a NIC's driver asks the GPU's driver. Here a NIC in
//! the same process asks.

use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use crate::DRIVER;

/// GPU memory that was exported as a DMA-BUF.
pub(crate) struct DmaBuf {
    /// The address where the CPU finds the first byte.
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// The address where the CPU finds `len` bytes at `addr` of GPU memory, as nvidia-peermem tells it.
/// Returns null if `addr` is no GPU memory.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_pages(addr: u64, len: usize) -> *mut u8 {
    DRIVER.lock().unwrap().memory.pages(addr, len).unwrap_or(ptr::null_mut())
}

/// The address where the CPU finds `len` bytes at `offset` of a DMA-BUF. Returns null if `fd` is no
/// DMA-BUF of this library, or is too short.
///
/// # Safety
/// The descriptor `fd` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_dma_buf(fd: c_int, offset: u64, len: usize) -> *mut u8 {
    // SAFETY: the caller's descriptor is open, and `ManuallyDrop` keeps this function from closing it.
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
