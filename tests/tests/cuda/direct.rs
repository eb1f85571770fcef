//! Tests GPU memory that the NIC reaches. A null libibverbs runs beside the stand-in for CUDA's driver.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use invar::cuda::gdr::Path;
use invar::cuda::{Gpu, GpuMemory, PointerKind};
use invar::raw::{self, GpuRange};
use invar::{Device, ErrorKind, MemoryRegion};
use invar_core::nic::Nic;
use invar_linux::env::page_size;
use invar_testkit::fake_cuda::{FakeCuda, calls, verbs_calls};
use invar_testkit::sysfs::Tree;
use invar_testkit::wait::until;
use invar_verbs::{VerbsConfig, VerbsNic};

use super::transfer::Rig;

/// NICs that register DMA-BUFs at any distance from the GPU.
fn fake() -> FakeCuda {
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes");
    fake.set("NCCL_NET_GDR_LEVEL", "SYS").set("INVAR_SYSFS", "/nowhere")
}

fn rig() -> Rig {
    Rig::on(Device::open("null0").unwrap())
}

/// The registrations of DMA-BUFs so far.
fn dma_bufs() -> Vec<String> {
    verbs_calls().into_iter().filter(|call| call.starts_with("ibv_reg_dmabuf_mr ")).collect()
}

/// The READs so far, with their remote addresses.
fn reads() -> Vec<String> {
    verbs_calls().into_iter().filter(|call| call.starts_with("RDMA_READ ")).collect()
}

/// A part of an allocation. The part keeps the allocation alive.
fn part(memory: &GpuMemory, offset: usize, len: usize) -> GpuMemory {
    let addr = memory.addr() + offset as u64;
    // SAFETY: the part keeps a clone of `memory`, and one transfer or copy at a time touches its bytes.
    unsafe { GpuMemory::from_raw(memory.gpu(), addr, len, memory.clone()) }
}

#[test]
fn memory_of_a_gpu_is_registered_as_a_dma_buf_of_whole_pages() {
    fake().run(|| {
        let rig = rig();
        let gpu = Gpu::open(rig.driver, 0).unwrap();
        let memory = GpuMemory::alloc(&gpu, 5 * page_size()).unwrap();
        let memory = part(&memory, 2 * page_size() + 100, page_size());
        let region = MemoryRegion::on_gpu(&rig.device, &memory, &rig.settings).unwrap();
        assert_eq!(region.gpu_path().unwrap().decision.path, Path::DmaBuf);
        // The access flags are LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ and RELAXED_ORDERING.
        let registered = format!(
            "ibv_reg_dmabuf_mr offset=100 length={} iova={:#x} access=0x100007",
            page_size(),
            memory.addr()
        );
        assert_eq!(dma_bufs(), [registered]);
        assert_eq!(calls("cuPointerSetAttribute"), 1, "SYNC_MEMOPS");
    });
}

#[test]
fn a_brought_nic_reaches_gpu_memory_only_if_its_device_is_made_for_that() {
    fake().run(|| {
        let open = || {
            let nic = VerbsNic::open(&VerbsConfig::new("null0")).unwrap();
            let pd = nic.alloc_pd().unwrap();
            (nic, pd, Ipv4Addr::LOCALHOST.into())
        };
        let ((nic, pd, address), (gpu_nic, gpu_pd, _)) = (open(), open());
        let with = Rig::on(Device::on_gpu_nic(gpu_nic, gpu_pd, address).unwrap());
        let without = Rig::on(Device::on(nic, pd, address).unwrap());
        for (mut rig, path, registered) in [(without, Path::Staging, 0), (with, Path::DmaBuf, 2)] {
            let (from, to) = (rig.gpu_region(0, 5000), rig.gpu_region(0, 5000));
            assert_eq!(from.gpu_path().unwrap().decision.path, path);
            rig.check(&from, &to);
            assert_eq!(dma_bufs().len(), registered);
        }
    });
}

#[test]
fn messages_go_from_gpu_to_gpu_and_to_hosts_without_a_copy() {
    fake().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0").run(|| {
        let mut rig = rig();
        for len in [1, 100, 4096, 1_000_003] {
            let (host, other_host) = (rig.host_region(len), rig.host_region(len));
            let (gpu, other_gpu) = (rig.gpu_region(0, len), rig.gpu_region(1, len));
            rig.check(&gpu, &other_gpu);
            rig.check(&host, &gpu);
            rig.check(&other_gpu, &other_host);
        }
        assert_eq!(calls("cuMemHostAlloc"), 0);
        assert_eq!(calls("cuMemcpyDtoHAsync_v2") + calls("cuMemcpyHtoDAsync_v2"), 0);
    });
}

#[test]
fn a_group_of_receives_takes_memory_of_a_gpu_that_the_nic_reaches() {
    fake().run(|| {
        let mut rig = rig();
        let (from, to) = (rig.gpu_region(0, 100), rig.gpu_region(0, 200));
        from.write_at(0, &[7; 100]).unwrap();
        let receive = rig.recv.irecv(&[(&to, 0..100, 1), (&to, 100..200, 2)]).unwrap().unwrap();
        let mut sends = Vec::new();
        until("sends", || {
            if let Some(send) = rig.send.isend(&from, 0..100, 1 + sends.len() as u32).unwrap() {
                sends.push(send);
            }
            sends.len() == 2
        });
        until("a receive", || rig.recv.test(&receive).unwrap().is_some());
        let mut bytes = [0; 200];
        to.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 200]);
    });
}

#[test]
fn a_gpu_that_may_see_writes_too_late_is_flushed_by_a_read_of_one_byte() {
    fake().run(|| {
        let mut rig = rig();
        let region = rig.gpu_region(0, 100);
        assert!(rig.flush(&[(&region, 10..100)]));
        assert_eq!(reads().len(), 1);
        assert!(reads()[0].ends_with("a length=1"), "10 bytes into pages: {:?}", reads());
        assert_eq!(calls("cuFlushGPUDirectRDMAWrites"), 0);
        assert!(!rig.flush(&[(&region, 5..5)]), "nothing came");
        assert_eq!(reads().len(), 1);
    });
}

#[test]
fn of_several_regions_the_last_of_a_gpu_that_is_not_empty_is_read() {
    fake().run(|| {
        let mut rig = rig();
        let (first, last) = (rig.gpu_region(0, 100), rig.gpu_region(0, 100));
        let host = rig.host_region(100);
        let read_at = |addr: u64| format!("RDMA_READ remote_addr={addr:#x} length=1");
        // The addresses are in the order of registration.
        let starts: Vec<u64> = dma_bufs()
            .iter()
            .map(|call| call.split("iova=0x").nth(1).unwrap().split(' ').next().unwrap())
            .map(|addr| u64::from_str_radix(addr, 16).unwrap())
            .collect();
        assert!(rig.flush(&[(&first, 1..2), (&last, 3..9), (&last, 5..5)]));
        assert!(rig.flush(&[(&first, 1..2), (&last, 3..3)]));
        assert!(rig.flush(&[(&first, 2..3), (&host, 0..100)]));
        let expected = [starts[1] + 3, starts[0] + 1, starts[0] + 2].map(read_at);
        assert_eq!(reads(), expected);
        assert!(!rig.flush(&[(&first, 7..7), (&host, 0..0)]));
        let error = rig.recv.iflush(&[(&first, 99..101), (&last, 0..1)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(reads().len(), 3);
    });
}

#[test]
fn memory_that_is_staged_hides_none_that_must_be_flushed() {
    let fake = fake().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0");
    let sysfs = Tree::new("null0", "null1");
    let fake = fake.set("NCCL_NET_GDR_LEVEL", "PIX");
    fake.set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        let mut rig = rig();
        let (near, unknown) = (rig.gpu_region(0, 100), rig.gpu_region(1, 100));
        assert_eq!(unknown.gpu_path().unwrap().decision.path, Path::Staging);
        assert!(rig.flush(&[(&near, 0..1), (&unknown, 0..1)]));
        assert_eq!(reads().len(), 1);
        assert!(!rig.flush(&[(&unknown, 0..1)]));
    });
}

#[test]
fn each_gpu_whose_driver_can_flush_is_flushed_once() {
    let fake = fake().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0");
    fake.set("FAKE_CUDA_ATTRIBUTES", "117=1").run(|| {
        let mut rig = rig();
        let regions = [0, 0, 1].map(|gpu| rig.gpu_region(gpu, 100));
        let bufs: Vec<_> = regions.iter().map(|region| (region, 0..1)).collect();
        assert!(!rig.flush(&bufs));
        assert_eq!((calls("cuFlushGPUDirectRDMAWrites"), reads().len()), (2, 0));
    });
}

/// Flushes a region. Checks how many calls of the driver and how many READs that takes. A flush without
/// a READ is done at once.
fn flush_takes(made: (usize, usize)) {
    let mut rig = rig();
    let region = rig.gpu_region(0, 100);
    assert_eq!(rig.flush(&[(&region, 0..100)]), made.1 > 0);
    assert_eq!((calls("cuFlushGPUDirectRDMAWrites"), reads().len()), made);
}

#[test]
fn a_driver_that_can_flush_is_called_instead() {
    fake().set("FAKE_CUDA_ATTRIBUTES", "117=1").run(|| flush_takes((1, 0)));
}

#[test]
fn a_gpu_that_orders_writes_is_not_flushed() {
    fake().set("FAKE_CUDA_ATTRIBUTES", "118=100").run(|| flush_takes((0, 0)));
}

#[test]
fn a_gpu_that_orders_writes_is_flushed_where_that_is_forced() {
    let fake = fake().set("FAKE_CUDA_ATTRIBUTES", "118=100");
    fake.set("NCCL_NET_FORCE_FLUSH", "1").run(|| flush_takes((0, 1)));
}

#[test]
fn no_gpu_is_flushed_where_that_is_off_however_forced() {
    let fake = fake().set("NCCL_GDR_FLUSH_DISABLE", "1").set("NCCL_NET_FORCE_FLUSH", "1");
    fake.set("FAKE_CUDA_ATTRIBUTES", "117=1").run(|| flush_takes((0, 0)));
}

/// NICs that register memory by its address, and the `/sys` tree with the kernel module for that.
fn peermem() -> (FakeCuda, Tree) {
    let sysfs = Tree::new("null0", "null1");
    sysfs.file("module/nvidia_peermem/version", "550.54");
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_PEERMEM", "1");
    (fake.set("INVAR_SYSFS", sysfs.root().display().to_string()), sysfs)
}

fn memory_is_registered_by_its_address(mut rig: Rig) {
    let regions = [rig.gpu_region(0, 5000), rig.gpu_region(0, 5000)];
    let path = regions[0].gpu_path().unwrap().to_string();
    let text = "GPUDirect by peer memory: GPU and NIC are PIX apart, nvidia-peermem 550.54 is \
                loaded, the NIC's driver or the kernel registers no DMA-BUF; flush by a READ";
    assert!(path.starts_with(text), "{path}");
    rig.check(&regions[0], &regions[1]);
    assert_eq!(dma_bufs(), [""; 0]);
    let is_plain = |call: &String| {
        call.starts_with("ibv_reg_mr ") && call.ends_with(" length=5000 access=0x100007")
    };
    assert_eq!(verbs_calls().iter().filter(|call| is_plain(call)).count(), 2);
    assert_eq!(calls("cuMemGetHandleForAddressRange"), 0);
    assert_eq!(calls("cuPointerSetAttribute"), 2, "SYNC_MEMOPS");
    assert!(rig.flush(&[(&regions[1], 0..1)]));
}

#[test]
fn where_the_kernel_has_no_dma_bufs_a_module_lets_memory_be_registered_by_its_address() {
    let (fake, _sysfs) = peermem();
    fake.set("NULL_VERBS_DMA_BUF", "EOPNOTSUPP").run(|| memory_is_registered_by_its_address(rig()));
}

#[test]
fn where_the_nics_driver_has_no_dma_bufs_it_does_so_too() {
    let (fake, _sysfs) = peermem();
    fake.set("NULL_VERBS_DMA_BUF", "EPROTONOSUPPORT")
        .run(|| memory_is_registered_by_its_address(rig()));
}

#[test]
fn a_module_that_does_not_know_the_memory_is_an_error() {
    let (fake, _sysfs) = peermem();
    fake.set("NULL_VERBS_PEERMEM", "0").run(|| {
        let rig = rig();
        let memory = GpuMemory::alloc(&Gpu::open(rig.driver, 0).unwrap(), 5000).unwrap();
        let error = MemoryRegion::on_gpu(&rig.device, &memory, &rig.settings).err().unwrap();
        let error = error.to_string();
        assert!(error.starts_with("null0: ") && error.contains("errno 14"), "{error}");
    });
}

#[test]
fn a_nic_that_is_too_far_away_is_not_given_memory() {
    let sysfs = Tree::new("null1", "null0");
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes");
    fake.set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        let mut rig = rig();
        let regions = [rig.gpu_region(0, 5000), rig.gpu_region(0, 5000)];
        let path = regions[0].gpu_path().unwrap().to_string();
        let text = "staging: GPU and NIC are SYS apart, beyond NCCL_NET_GDR_LEVEL=PXB; no flush";
        assert!(path.starts_with(text), "{path}");
        rig.check(&regions[0], &regions[1]);
        assert_eq!(dma_bufs(), [""; 0]);
    });
}

#[test]
fn managed_memory_is_staged_where_the_nic_reaches_the_gpu() {
    fake().set("FAKE_CUDA_MANAGED", "1").run(|| {
        let mut rig = rig();
        let gpu = Gpu::open(rig.driver, 0).unwrap();
        let memory = GpuMemory::alloc(&gpu, 5000).unwrap();
        assert_eq!(memory.pointer().unwrap().kind, PointerKind::Managed);
        let region = MemoryRegion::on_gpu(&rig.device, &memory, &rig.settings).unwrap();
        let path = region.gpu_path().unwrap().to_string();
        let text = "staging: the memory is managed, and moves between GPU and host; no flush: ";
        assert!(path.starts_with(text), "{path}");
        let other = rig.gpu_region(0, 5000);
        rig.check(&region, &other);
        assert_eq!(dma_bufs(), [""; 0]);
        let range = GpuRange { addr: memory.addr(), len: 5000, dma_buf: None };
        // SAFETY: the registration fails, and no transfer uses the memory.
        let error = unsafe { raw::register_gpu(&rig.device, &range) }.unwrap_err().to_string();
        assert!(error.ends_with("there is managed memory, which leaves the GPU"), "{error}");
    });
}

#[test]
fn a_range_beyond_its_allocation_is_refused_and_both_are_named() {
    fake().run(|| {
        let rig = rig();
        let memory = GpuMemory::alloc(&Gpu::open(rig.driver, 0).unwrap(), 5000).unwrap();
        let range = GpuRange { addr: memory.addr() + 1000, len: 4001, dma_buf: None };
        // SAFETY: the registration fails, and no transfer uses the memory.
        let error = unsafe { raw::register_gpu(&rig.device, &range) }.unwrap_err().to_string();
        let text = format!(
            "4001 bytes at {:#x} end beyond their allocation, 5000 bytes of GPU memory at {:#x}: \
             each allocation is registered by itself",
            range.addr,
            memory.addr()
        );
        assert_eq!(error, text);
    });
}

#[test]
fn memory_that_is_freed_while_it_is_registered_and_allocated_again_is_registered_again() {
    fake().run(|| {
        let rig = rig();
        let gpu = Gpu::open(rig.driver, 0).unwrap();
        let register = |memory: &GpuMemory| {
            let dma_buf = memory.dma_buf().unwrap();
            let dma_buf = Some((dma_buf.as_fd(), dma_buf.offset));
            let range = GpuRange { addr: memory.addr(), len: memory.len(), dma_buf };
            // SAFETY: no transfer uses the memory.
            unsafe { raw::register_gpu(&rig.device, &range) }.unwrap()
        };
        let memory = GpuMemory::alloc(&gpu, 5000).unwrap();
        let (addr, first) = (memory.addr(), register(&memory));
        assert_eq!(register(&memory), first);
        assert_eq!(dma_bufs().len(), 1);
        drop(memory);
        let memory = GpuMemory::alloc(&gpu, 5000).unwrap();
        assert_eq!(memory.addr(), addr, "the test needs the same address again");
        let second = register(&memory);
        assert!(second.lkey != first.lkey && second.rkey != first.rkey);
        assert_eq!(dma_bufs().len(), 2);
        for keys in [first, second, first] {
            raw::deregister(&rig.device, keys).unwrap();
        }
        raw::deregister(&rig.device, first).unwrap_err();
    });
}

#[test]
fn the_same_range_of_several_mappings_is_registered_once_and_anew_for_other_mappings() {
    fake().set("FAKE_CUDA_MAPPING", "2097152").run(|| {
        let rig = rig();
        let memory = GpuMemory::alloc(&Gpu::open(rig.driver, 0).unwrap(), 4 << 20).unwrap();
        let register = |memory: &GpuMemory| {
            let dma_buf = memory.dma_buf().unwrap();
            let dma_buf = Some((dma_buf.as_fd(), dma_buf.offset));
            let range = GpuRange { addr: memory.addr(), len: memory.len(), dma_buf };
            // SAFETY: no transfer uses the memory.
            unsafe { raw::register_gpu(&rig.device, &range) }.unwrap()
        };
        let one = part(&memory, 0, 2 << 20);
        let keys = [&memory, &memory, &one, &one].map(register);
        assert_eq!((keys[0], keys[2]), (keys[1], keys[3]));
        assert_ne!(keys[0], keys[2]);
        assert_eq!(dma_bufs().len(), 2);
        let addr = memory.addr();
        drop((memory, one));
        let memory = GpuMemory::alloc(&Gpu::open(rig.driver, 0).unwrap(), 4 << 20).unwrap();
        assert_eq!(memory.addr(), addr, "the test needs the same address again");
        let anew = register(&memory);
        assert!(!keys.contains(&anew), "{anew:?}");
        for keys in keys.into_iter().chain([anew]) {
            raw::deregister(&rig.device, keys).unwrap();
        }
    });
}

#[test]
fn mapped_memory_is_a_region_with_a_driver_that_cannot_make_its_copies_wait() {
    let fake = fake().set("FAKE_CUDA_MAPPING", "2097152").without("cuCtxSetFlags");
    fake.run(|| {
        let mut rig = rig();
        let (from, to) = (rig.gpu_region(0, 5000), rig.gpu_region(0, 5000));
        assert_eq!(from.gpu_path().unwrap().decision.path, Path::DmaBuf);
        rig.check(&from, &to);
    });
}

#[test]
fn memory_that_was_created_without_gpudirect_is_staged() {
    fake().set("FAKE_CUDA_GPUDIRECT", "0").run(|| {
        let mut rig = rig();
        let (from, to) = (rig.gpu_region(0, 5000), rig.gpu_region(0, 5000));
        let path = from.gpu_path().unwrap().to_string();
        let text = "staging: the memory was created without gpuDirectRDMACapable; no flush: ";
        assert!(path.starts_with(text), "{path}");
        rig.check(&from, &to);
        assert_eq!(dma_bufs(), [""; 0]);
    });
}
