//! Tests registrations of GPU memory over the memory's life.

use invar::Device;
use invar::raw::{self, GpuRange};
use invar_cuda::{BufferDomains, Driver, Gpu, GpuMemory};
use invar_testkit::fake_cuda::{FakeCuda, calls, context_flags};

#[test]
fn a_numbers_turn_comes_again_only_after_its_registrations() {
    let mut domains = BufferDomains::default();
    let (first, both) = ([1 << 40], [1 << 40, 1 << 41]);
    let (one, two) = (domains.acquire(&first), domains.acquire(&both));
    assert!(one != 0 && two != 0 && one != two);
    assert_eq!(domains.acquire(&first), one);
    domains.release(one);
    assert_eq!(domains.acquire(&first), one, "one registration is left");
    domains.release(one);
    domains.release(one);
    let anew = domains.acquire(&first);
    assert!(![0, one, two].contains(&anew), "{anew}");
    assert_eq!(domains.acquire(&both), two);
}

#[test]
fn copies_of_the_driver_are_made_to_wait_before_a_nic_is_given_memory() {
    FakeCuda::new().run(|| {
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        GpuMemory::alloc(&gpu, 4096).unwrap().sync_memops().unwrap();
        assert_eq!(calls("cuPointerSetAttribute"), 1);
        // SAFETY: nobody reads or writes this memory.
        let unknown = unsafe { GpuMemory::from_raw(&gpu, 0x1000, 4096, ()) };
        assert_eq!(unknown.sync_memops().unwrap_err().code(), Some(1));
        assert_eq!(unknown.pointer().unwrap_err().code(), Some(1));
    });
}

#[test]
fn a_nic_that_does_not_reach_a_gpu_is_not_given_its_memory() {
    FakeCuda::new().run(|| {
        let device = Device::open_at("[::1]:0".parse().unwrap()).unwrap();
        let register = |addr| {
            let range = GpuRange { addr, len: 4096, dma_buf: None };
            // SAFETY: the registration fails, and no transfer uses the memory.
            unsafe { raw::register_gpu(&device, &range) }.unwrap_err().to_string()
        };
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        let memory = GpuMemory::alloc(&gpu, 4096).unwrap();
        let error = register(memory.addr());
        assert!(error.contains("a NIC in software does not reach GPU memory"), "{error}");
        assert_eq!(register(0x1000), "at 0x1000 there is no memory that CUDA knows");
        let pinned = gpu.pinned(4096).unwrap();
        let error = register(pinned.as_ptr().addr() as u64);
        assert!(error.ends_with("there is memory of the host, not of a GPU"), "{error}");
    });
}

#[test]
fn copies_of_mapped_memory_are_made_to_wait_by_the_context_whose_other_flags_stay() {
    FakeCuda::new().set("FAKE_CUDA_MAPPING", "2097152").run(|| {
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        assert_eq!(GpuMemory::alloc(&gpu, 4096).unwrap().sync_memops(), Ok(true));
        // CU_CTX_SYNC_MEMOPS, and CU_CTX_SCHED_BLOCKING_SYNC from before.
        assert_eq!(context_flags(), 0x84);
    });
}

#[test]
fn an_old_driver_cannot_make_copies_of_mapped_memory_wait_and_says_so() {
    let fake = FakeCuda::new().set("FAKE_CUDA_MAPPING", "2097152");
    fake.without("cuCtxSetFlags").run(|| {
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        assert_eq!(GpuMemory::alloc(&gpu, 4096).unwrap().sync_memops(), Ok(false));
    });
}
