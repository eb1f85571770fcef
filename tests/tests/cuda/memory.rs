//! Tests GPU memory: bytes, addresses, DMA-BUFs.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use invar_core::nic::Memory;
use invar_cuda::{Driver, Gpu, GpuMemory, Pointer, PointerKind};
use invar_linux::env::page_size;
use invar_testkit::fake_cuda::{FakeCuda, calls};

fn gpu() -> Gpu {
    Gpu::open(Driver::open().unwrap(), 0).unwrap()
}

#[test]
fn bytes_go_in_and_come_out() {
    FakeCuda::new().run(|| {
        let memory = GpuMemory::alloc(&gpu(), 100).unwrap();
        memory.write_at(10, b"nickel").unwrap();
        memory.clone().write_at(16, b", iron").unwrap();
        let mut bytes = [0; 12];
        memory.read_at(10, &mut bytes).unwrap();
        assert_eq!(&bytes, b"nickel, iron");
    });
}

#[test]
fn bytes_outside_are_refused_before_the_driver_is_asked() {
    FakeCuda::new().run(|| {
        let memory = GpuMemory::alloc(&gpu(), 100).unwrap();
        for (offset, len) in [(100, 1), (0, 101), (usize::MAX, 1), (1, 100)] {
            let error = memory.write_at(offset, &vec![0; len]).unwrap_err().to_string();
            let text = format!("bytes {offset}..+{len} asked of a region of 100 bytes");
            assert_eq!(error, text);
            assert!(memory.read_at(offset, &mut vec![0; len]).is_err());
        }
        assert_eq!(calls("cuMemcpyAsync"), 0);
    });
}

#[test]
fn memory_is_freed_with_its_last_clone() {
    FakeCuda::new().run(|| {
        let gpu = gpu();
        let memory = GpuMemory::alloc(&gpu, 100).unwrap();
        let pinned = gpu.pinned(100).unwrap();
        drop((memory.clone(), pinned.clone()));
        assert_eq!(calls("cuMemFree_v2") + calls("cuMemFreeHost"), 0);
        drop((memory, pinned, gpu));
        assert_eq!((calls("cuMemFree_v2"), calls("cuMemFreeHost")), (1, 1));
        assert_eq!(calls("cuDevicePrimaryCtxRelease_v2"), 1);
    });
}

#[test]
fn memory_that_there_is_not_is_an_error() {
    FakeCuda::new().run(|| {
        let error = GpuMemory::alloc(&gpu(), 1 << 50).unwrap_err();
        assert_eq!(error.to_string(), "cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
        assert_eq!(error.code(), Some(2));
    });
}

#[test]
fn pinned_memory_is_zeroed_host_memory() {
    FakeCuda::new().run(|| {
        let pinned = gpu().pinned(4096).unwrap();
        let mut bytes = [1; 4096];
        pinned.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn an_address_is_the_gpus_or_the_hosts_or_unknown() {
    FakeCuda::new().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0").run(|| {
        let driver = Driver::open().unwrap();
        let gpu = Gpu::open(driver, 1).unwrap();
        let (memory, pinned) = (GpuMemory::alloc(&gpu, 5000).unwrap(), gpu.pinned(64).unwrap());
        let inside = Pointer::query(driver, memory.addr() + 4999).unwrap().unwrap();
        assert_eq!((inside.kind, inside.gpu), (PointerKind::Device, 1));
        assert_eq!((inside.base, inside.len), (memory.addr(), 5000));
        assert_eq!(memory.pointer(), Ok(inside));
        let host = Pointer::query(driver, pinned.addr()).unwrap().unwrap();
        assert_eq!((host.kind, host.len), (PointerKind::Host, 64));
        assert_ne!(host.buffer_id, inside.buffer_id);
        let local = 0_u64;
        assert_eq!(Pointer::query(driver, (&raw const local).addr() as u64), Ok(None));
    });
}

#[test]
fn a_driver_that_fails_to_answer_about_an_address_is_an_error() {
    FakeCuda::new().set("FAKE_CUDA_FAIL", "cuPointerGetAttribute=700").run(|| {
        let error = Pointer::query(Driver::open().unwrap(), 0x1000).unwrap_err();
        assert_eq!(error.code(), Some(700));
    });
}

#[test]
fn a_dma_buf_is_of_whole_pages_around_the_memory() {
    FakeCuda::new().run(|| {
        let memory = GpuMemory::alloc(&gpu(), 3 * page_size()).unwrap();
        let bytes: Vec<u8> = (0..memory.len()).map(|i| (i / 16) as u8).collect();
        memory.write_at(0, &bytes).unwrap();
        let (start, len) = (page_size() + 100, page_size());
        // SAFETY: the part keeps a clone of `memory`, and nobody writes to it.
        let part = unsafe {
            GpuMemory::from_raw(memory.gpu(), memory.addr() + start as u64, len, memory.clone())
        };
        let dma_buf = part.dma_buf().unwrap();
        assert_eq!((dma_buf.offset, dma_buf.len, dma_buf.iova), (100, len, part.addr()));
        let file = File::from(dma_buf.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(file.metadata().unwrap().len(), 2 * page_size() as u64);
        let mut exported = vec![0; len];
        file.read_exact_at(&mut exported, dma_buf.offset).unwrap();
        assert_eq!(exported, bytes[start..start + len]);
    });
}

#[test]
fn a_driver_too_old_for_dma_bufs_does_the_rest() {
    FakeCuda::new().without("cuMemGetHandleForAddressRange").run(|| {
        let memory = GpuMemory::alloc(&gpu(), 4096).unwrap();
        memory.write_at(0, b"bytes").unwrap();
        let error = memory.dma_buf().unwrap_err();
        let text = "this CUDA driver has no cuMemGetHandleForAddressRange: a newer one is needed";
        assert_eq!((error.to_string().as_str(), error.code()), (text, None));
    });
}

#[test]
fn bytes_go_in_and_come_out_while_the_program_captures_a_blocking_stream() {
    FakeCuda::new().set("FAKE_CUDA_CAPTURES", "1").run(|| {
        let memory = GpuMemory::alloc(&gpu(), 100).unwrap();
        memory.write_at(10, b"nickel").unwrap();
        let mut bytes = [0; 6];
        memory.read_at(10, &mut bytes).unwrap();
        assert_eq!(&bytes, b"nickel");
        drop(memory);
        assert_eq!((calls("cuStreamCreate"), calls("cuStreamDestroy_v2")), (1, 1));
    });
}

/// The base and the length of the allocation at the first byte of the second mapping of 3.
fn second_mapping() -> (u64, usize) {
    let memory = GpuMemory::alloc(&gpu(), 6 << 20).unwrap();
    let addr = memory.addr() + (2 << 20);
    let found = Pointer::query(memory.gpu().driver(), addr).unwrap().unwrap();
    (found.base - memory.addr(), found.len)
}

#[test]
fn mapped_memory_is_an_allocation_for_each_mapping() {
    FakeCuda::new().set("FAKE_CUDA_MAPPING", "2097152").run(|| {
        assert_eq!(second_mapping(), (2 << 20, 2 << 20));
    });
}

#[test]
fn an_old_driver_tells_the_reservation_of_mapped_memory() {
    let fake = FakeCuda::new().set("FAKE_CUDA_OLD_POINTERS", "1");
    fake.set("FAKE_CUDA_MAPPING", "2097152").run(|| {
        assert_eq!(second_mapping(), (0, 6 << 20));
    });
}
