//! Tests GPU memory, with a GPU that may see the NIC's writes too late.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use invar::cuda::{Driver, Gpu, GpuMemory};
use invar_testkit::fake_cuda::{FakeCuda, calls, verbs_calls};
use invar_testkit::pattern::pattern;
use invar_testkit::sysfs::Tree;
use nccl_net_invar::abi::{PTR_CUDA, PTR_DMABUF};

use super::rig::*;

fn fake() -> FakeCuda {
    FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes")
}

fn gpu() -> Gpu {
    Gpu::open(Driver::open().unwrap(), 0).unwrap()
}

/// Both ends of a connection.
struct Ends {
    send: *mut c_void,
    recv: *mut c_void,
}

impl Ends {
    fn new() -> Self {
        let listening = Listening::new();
        let mut handle = listening.handle;
        let (send, recv) = listening.pair(&mut handle, connect);
        Ends { send, recv }
    }

    /// Sends a message and checks it at the receiver.
    fn check(
        &self,
        (from, from_mr): (&GpuMemory, *mut c_void),
        (to, to_mr): (&GpuMemory, *mut c_void),
    ) {
        let bytes = pattern(0, from.len());
        from.write_at(0, &bytes).unwrap();
        to.write_at(0, &vec![0; to.len()]).unwrap();
        let mut data = to.addr() as usize as *mut c_void;
        let (mut size, mut tag, mut mr, mut receive) = (to.len(), 3, to_mr, ptr::null_mut());
        // SAFETY: The memory is registered.
        let code = unsafe {
            (net.irecv)(self.recv, 1, &mut data, &mut size, &mut tag, &mut mr, &mut receive)
        };
        assert_eq!((code, receive.is_null()), (Code::SUCCESS, false));
        let data = from.addr() as usize as *mut c_void;
        let send = until("a receive", || {
            let mut send = ptr::null_mut();
            // SAFETY: The memory is registered.
            let code = unsafe { (net.isend)(self.send, data, from.len(), 3, from_mr, &mut send) };
            assert_eq!(code, Code::SUCCESS);
            (!send.is_null()).then_some(send)
        });
        wait(&[send, receive]);
        let mut came = vec![0; to.len()];
        to.read_at(0, &mut came).unwrap();
        assert!(came == bytes, "other bytes came");
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: Nobody uses the comms any more.
        unsafe {
            assert_eq!((net.close_send)(self.send), Code::SUCCESS);
            assert_eq!((net.close_recv)(self.recv), Code::SUCCESS);
        }
    }
}

/// Calls `regMr`, and returns its code and the registration.
fn reg_mr(comm: *mut c_void, addr: u64, len: usize) -> (Code, *mut c_void) {
    let mut mr = ptr::null_mut();
    // SAFETY: `mr` has room for a registration.
    let code = unsafe { (net.reg_mr)(comm, addr as usize as *mut c_void, len, PTR_CUDA, &mut mr) };
    (code, mr)
}

/// Calls `regMrDmaBuf` as NCCL does: with a descriptor that NCCL closes after the call.
fn reg_dma_buf(comm: *mut c_void, memory: &GpuMemory) -> *mut c_void {
    let dma_buf = memory.dma_buf().unwrap();
    let (data, fd) = (memory.addr() as usize as *mut c_void, dma_buf.as_fd().as_raw_fd());
    let mut mr = ptr::null_mut();
    // SAFETY: The descriptor is open, and `mr` has room for a registration.
    let code = unsafe {
        (net.reg_mr_dma_buf)(comm, data, memory.len(), PTR_CUDA, dma_buf.offset, fd, &mut mr)
    };
    assert_eq!((code, mr.is_null()), (Code::SUCCESS, false));
    mr
}

fn dereg(comm: *mut c_void, mr: *mut c_void) -> Code {
    // SAFETY: No transfer uses the registration.
    unsafe { (net.dereg_mr)(comm, mr) }
}

/// Calls `iflush` for some buffers, and returns whether there was a request to wait for.
fn flush(comm: *mut c_void, bufs: &[(u64, c_int, *mut c_void)]) -> bool {
    let mut data: Vec<_> = bufs.iter().map(|buf| buf.0 as usize as *mut c_void).collect();
    let mut sizes: Vec<_> = bufs.iter().map(|buf| buf.1).collect();
    let mut mrs: Vec<_> = bufs.iter().map(|buf| buf.2).collect();
    let mut request = ptr::dangling_mut();
    // SAFETY: Each array has as many entries as `n` says.
    let code = unsafe {
        let n = bufs.len() as c_int;
        (net.iflush)(comm, n, data.as_mut_ptr(), sizes.as_mut_ptr(), mrs.as_mut_ptr(), &mut request)
    };
    assert_eq!(code, Code::SUCCESS);
    if !request.is_null() {
        wait(&[request]);
    }
    !request.is_null()
}

/// Returns the recorded calls that begin with `what`.
fn noted(what: &str) -> Vec<String> {
    verbs_calls().into_iter().filter(|call| call.starts_with(what)).collect()
}

fn ptr_support() -> c_int {
    init();
    let mut properties = MaybeUninit::uninit();
    // SAFETY: `properties` has room for the properties.
    unsafe {
        assert_eq!((net.get_properties)(0, properties.as_mut_ptr()), Code::SUCCESS);
        properties.assume_init().ptr_support
    }
}

#[test]
fn without_a_module_dma_bufs_are_what_a_device_reaches_a_gpu_by() {
    let sysfs = Tree::new("null0", "null1");
    fake().set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        assert_eq!(ptr_support(), PTR_HOST | PTR_DMABUF);
    });
}

#[test]
fn with_a_module_it_is_by_address_too() {
    let sysfs = Tree::new("null0", "null1");
    sysfs.file("kernel/mm/memory_peers/nv_mem/version", "1.3");
    fake().set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        assert_eq!(ptr_support(), PTR_HOST | PTR_CUDA | PTR_DMABUF);
    });
}

#[test]
fn with_a_module_alone_it_is_by_address() {
    let sysfs = Tree::new("null0", "null1");
    sysfs.file("kernel/mm/memory_peers/nvidia-peermem/version", "1.3");
    let fake = fake().set("NULL_VERBS_DMA_BUF", "EPROTONOSUPPORT");
    fake.set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        assert_eq!(ptr_support(), PTR_HOST | PTR_CUDA);
    });
}

#[test]
fn with_neither_it_is_not_reached() {
    let sysfs = Tree::new("null0", "null1");
    let fake = fake().set("NULL_VERBS_DMA_BUF", "EOPNOTSUPP");
    fake.set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        assert_eq!(ptr_support(), PTR_HOST);
    });
}

#[test]
fn a_dma_buf_is_registered_moved_flushed_and_given_back() {
    fake().run(|| {
        let ends = Ends::new();
        let gpu = gpu();
        let (from, to) = (GpuMemory::alloc(&gpu, 70_000), GpuMemory::alloc(&gpu, 70_000));
        let (from, to) = (from.unwrap(), to.unwrap());
        let (from_mr, to_mr) = (reg_dma_buf(ends.send, &from), reg_dma_buf(ends.recv, &to));
        // The plugin registers whole pages, once each.
        let whole = format!("ibv_reg_dmabuf_mr offset=0 length=73728 iova={:#x} ", to.addr());
        assert!(noted("ibv_reg_dmabuf_mr")[1].starts_with(&whole), "{:?}", verbs_calls());
        ends.check((&from, from_mr), (&to, to_mr));
        assert!(flush(ends.recv, &[(to.addr() + 9, 1, to_mr)]));
        let read = format!("RDMA_READ remote_addr={:#x} length=1", to.addr() + 9);
        assert_eq!(noted("RDMA_READ"), [read]);
        assert_eq!(dereg(ends.send, from_mr), Code::SUCCESS);
        assert_eq!(dereg(ends.recv, to_mr), Code::SUCCESS);
        assert_eq!(dereg(ends.recv, to_mr), Code::INTERNAL_ERROR);
    });
}

#[test]
fn memory_is_registered_by_its_address_where_a_module_knows_it() {
    let sysfs = Tree::new("null0", "null1");
    sysfs.file("module/nvidia_peermem/version", "550.54");
    let fake = fake().set("NULL_VERBS_DMA_BUF", "EOPNOTSUPP").set("NULL_VERBS_PEERMEM", "1");
    fake.set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        let ends = Ends::new();
        let gpu = gpu();
        let (from, to) = (GpuMemory::alloc(&gpu, 70_000), GpuMemory::alloc(&gpu, 70_000));
        let (from, to) = (from.unwrap(), to.unwrap());
        let registered = |comm, memory: &GpuMemory| {
            let (code, mr) = reg_mr(comm, memory.addr(), memory.len());
            assert_eq!(code, Code::SUCCESS);
            mr
        };
        let (from_mr, to_mr) = (registered(ends.send, &from), registered(ends.recv, &to));
        ends.check((&from, from_mr), (&to, to_mr));
        assert!(flush(ends.recv, &[(to.addr(), 70_000, to_mr)]));
        assert_eq!(noted("ibv_reg_dmabuf_mr"), [""; 0]);
    });
}

#[test]
fn of_several_buffers_the_last_that_is_not_empty_is_read() {
    fake().run(|| {
        let ends = Ends::new();
        let memory = GpuMemory::alloc(&gpu(), 3 << 20).unwrap();
        let (mr, at) = (reg_dma_buf(ends.recv, &memory), memory.addr());
        assert!(flush(ends.recv, &[(at, 5, mr), (at + 100, 7, mr), (at + 200, 0, mr)]));
        let read = format!("RDMA_READ remote_addr={:#x} length=1", at + 100);
        assert_eq!(noted("RDMA_READ"), [read]);
        assert!(!flush(ends.recv, &[(at, 0, mr), (at, 0, mr)]));
        assert_eq!(noted("RDMA_READ").len(), 1);
    });
}

#[test]
fn nothing_is_flushed_where_that_is_off() {
    fake().set("NCCL_GDR_FLUSH_DISABLE", "1").run(|| {
        let ends = Ends::new();
        let memory = GpuMemory::alloc(&gpu(), 5000).unwrap();
        let mr = reg_dma_buf(ends.recv, &memory);
        assert!(!flush(ends.recv, &[(memory.addr(), 5000, mr)]));
        assert_eq!(noted("RDMA_READ"), [""; 0]);
    });
}

#[test]
fn memory_at_an_address_that_was_freed_is_not_what_lay_there_before() {
    fake().run(|| {
        let ends = Ends::new();
        let gpu = gpu();
        let from = GpuMemory::alloc(&gpu, 5000).unwrap();
        let from_mr = reg_dma_buf(ends.send, &from);
        let mut registrations = Vec::new();
        let mut addresses = Vec::new();
        for _ in 0..3 {
            let to = GpuMemory::alloc(&gpu, 5000).unwrap();
            let to_mr = reg_dma_buf(ends.recv, &to);
            ends.check((&from, from_mr), (&to, to_mr));
            registrations.push(to_mr);
            addresses.push(to.addr());
            // The memory is freed while its registration stays.
        }
        assert_eq!(addresses, [addresses[0]; 3], "the test needs the same address again");
        for mr in registrations {
            assert_eq!(dereg(ends.recv, mr), Code::SUCCESS);
            assert_eq!(dereg(ends.recv, mr), Code::INTERNAL_ERROR);
        }
    });
}

#[test]
fn what_no_nic_can_be_given_is_refused() {
    fake().set("FAKE_CUDA_MANAGED", "1").run(|| {
        let ends = Ends::new();
        let gpu = gpu();
        let (managed, pinned) = (GpuMemory::alloc(&gpu, 5000).unwrap(), gpu.pinned(64).unwrap());
        let pinned = pinned.as_ptr().addr() as u64;
        for (addr, len) in [(managed.addr(), 5000), (pinned, 64), (0x1000, 64)] {
            let (code, mr) = reg_mr(ends.recv, addr, len);
            assert_eq!((code, mr.is_null()), (Code::INTERNAL_ERROR, true), "{addr:#x}");
        }
        assert_eq!(calls("cuMemGetHandleForAddressRange"), 0);
    });
}

#[test]
fn a_range_beyond_its_allocation_needs_a_dma_buf_and_the_driver_checks_that_it_has_the_range() {
    fake().run(|| {
        let ends = Ends::new();
        let memory = GpuMemory::alloc(&gpu(), 4096).unwrap();
        let (code, mr) = reg_mr(ends.recv, memory.addr(), 4097);
        assert_eq!((code, mr.is_null()), (Code::INTERNAL_ERROR, true));
        let dma_buf = memory.dma_buf().unwrap();
        let (data, fd) = (memory.addr() as usize as *mut c_void, dma_buf.as_fd().as_raw_fd());
        let register = |len| {
            let mut mr = ptr::null_mut();
            // SAFETY: The descriptor is open, and `mr` has room for a registration.
            let code = unsafe {
                (net.reg_mr_dma_buf)(ends.recv, data, len, PTR_CUDA, dma_buf.offset, fd, &mut mr)
            };
            (code, mr)
        };
        assert_eq!(register(usize::MAX), (Code::INTERNAL_ERROR, ptr::null_mut()));
        assert_eq!(noted("ibv_reg_dmabuf_mr"), [""; 0]);
        // NCCL's DMA-BUF has all segments of PyTorch's memory. This one lacks the range, which only the driver knows.
        assert_eq!(register(8192), (Code::SYSTEM_ERROR, ptr::null_mut()));
        let asked = format!("ibv_reg_dmabuf_mr offset={} length=8192 ", dma_buf.offset);
        assert!(noted("ibv_reg_dmabuf_mr")[0].starts_with(&asked), "{:?}", verbs_calls());
    });
}
