//! Registered memory. It is host memory, or GPU memory if CUDA's driver is the one of
//! `tests/fake-cuda`, which tells where the CPU finds it.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem;
use std::ptr::{self, NonNull};

use invar_core::nic::Access;
use invar_linux::env::page_size;
use invar_linux::memory::HostMemory;
use invar_testkit::null::Fabric;
use invar_verbs::sys::*;

use crate::resource::{Object, end, index, refused};
use crate::{SETTINGS, fabric};

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let start = addr.addr() as u64;
    SETTINGS.note(|| format!("ibv_reg_mr addr={start:#x} length={length} access={access:#x}"));
    let memory = match gpu_pages(start, length) {
        Some(_) if !SETTINGS.peermem => return refused(libc::EFAULT),
        Some(pages) => pages,
        None => addr.cast::<u8>(),
    };
    register(pd, start, memory, length, access)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if iova != addr.addr() as u64 {
        return refused(libc::EOPNOTSUPP);
    }
    ibv_reg_mr(pd, addr, length, access as c_int)
}

/// Registers a DMA-BUF. Programs probe for support without a descriptor; such a call is not noted.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if let Err(errno) = SETTINGS.dma_buf {
        return refused(errno);
    }
    // The kernel (`UVERBS_METHOD_REG_DMABUF_MR`) makes this check too, before it looks at the
    // descriptor.
    let in_page = page_size() as u64 - 1;
    if offset & in_page != iova & in_page {
        return refused(libc::EINVAL);
    }
    // SAFETY: `fcntl` with `F_GETFD` looks up a number and accepts any.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
        return refused(libc::EBADF);
    }
    SETTINGS.note(|| {
        format!(
            "ibv_reg_dmabuf_mr offset={offset} length={length} iova={iova:#x} access={access:#x}"
        )
    });
    match gpu_dma_buf(fd, offset, length) {
        Some(memory) => register(pd, iova, memory, length, access),
        None => refused(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    fabric().dereg_mr(end(mr));
    0
}

/// Registers memory. The CPU finds it at `memory`, and work requests name it by `start`.
fn register(
    pd: *mut ibv_pd,
    start: u64,
    memory: *mut u8,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let Some(first) = NonNull::new(memory) else { return refused(libc::EFAULT) };
    // SAFETY: by the contract of registration, the memory exists until the region is gone. Nobody else
    // uses it while it is transferred.
    let memory = unsafe { HostMemory::from_raw(first, length, ()) };
    let access = Access::from_bits_truncate(access as u32);
    let index = fabric().reg_mr(index(pd), start, memory, access);
    let key = Fabric::key(index);
    // SAFETY: the caller gives a valid protection domain.
    let context = unsafe { (*pd).context };
    let addr = ptr::without_provenance_mut(start as usize);
    let mr = ibv_mr { context, pd, addr, length, handle: 0, lkey: key, rkey: key };
    Object::give(mr, index)
}

/// The address where the CPU finds a range of GPU memory. Returns `None` if it is no GPU memory.
fn gpu_pages(addr: u64, len: usize) -> Option<*mut u8> {
    let function = fake_cuda(c"fake_cuda_pages")?;
    // SAFETY: this is the type that `tests/fake-cuda` declares for this function.
    let function = unsafe {
        mem::transmute::<NonNull<c_void>, extern "C" fn(u64, usize) -> *mut u8>(function)
    };
    Some(function(addr, len)).filter(|memory| !memory.is_null())
}

/// The address where the CPU finds a range of a DMA-BUF, or `None`.
fn gpu_dma_buf(fd: c_int, offset: u64, len: usize) -> Option<*mut u8> {
    let function = fake_cuda(c"fake_cuda_dma_buf")?;
    // SAFETY: this is the type that `tests/fake-cuda` declares for this function.
    let function = unsafe {
        mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(c_int, u64, usize) -> *mut u8>(
            function,
        )
    };
    // SAFETY: the caller has checked that the descriptor is open.
    Some(unsafe { function(fd, offset, len) }).filter(|memory| !memory.is_null())
}

/// Looks up a function of the stand-in for CUDA's driver, if this process has loaded that.
fn fake_cuda(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: with `RTLD_NOLOAD` the call loads no library and runs no code.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    let library = NonNull::new(library)?;
    // SAFETY: the library is loaded and stays so, because its loader never closes it.
    unsafe {
        let function = libc::dlsym(library.as_ptr(), name.as_ptr());
        libc::dlclose(library.as_ptr());
        NonNull::new(function)
    }
}
