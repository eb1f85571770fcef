//! Tests that need a real GPU: `cargo xtask gpu`. Without a GPU they are skipped, unless `INVAR_GPU=1`
//! asks for them. One test runs them on the stand-in, to show that they work.

use std::os::fd::AsFd;

use invar::cuda::flush::Method;
use invar::cuda::{Driver, Gpu, GpuMemory, Pointer, PointerKind};
use invar::{Device, MemoryRegion};
use invar_testkit::fake_cuda::{FakeCuda, verbs_calls};
use invar_testkit::pattern::pattern;

use super::transfer::Rig;

/// The length is a little more than the unit of registrations and copies.
const LEN: usize = (16 << 20) + 1234;

/// Runs a check on each GPU of this machine.
fn on_each_gpu(check: impl Fn(&Gpu)) {
    #[cfg(feature = "cust")]
    let opened = Driver::open_cust();
    #[cfg(not(feature = "cust"))]
    let opened = Driver::open();
    let driver = match opened {
        Ok(driver) => driver,
        Err(why) => {
            assert!(std::env::var_os("INVAR_GPU").is_none(), "INVAR_GPU is set: {why}");
            return eprintln!("skipped: {why}");
        }
    };
    let gpus = driver.gpus().unwrap();
    assert!(!gpus.is_empty(), "a driver without GPUs");
    for info in gpus {
        eprintln!("{info:?}");
        check(&Gpu::open(driver, info.ordinal).unwrap());
    }
}

fn memory_of_a_gpu_works(gpu: &Gpu) {
    let memory = GpuMemory::alloc(gpu, LEN).unwrap();
    memory.write_at(0, &pattern(0, LEN)).unwrap();
    let mut bytes = vec![0; LEN - 7];
    memory.read_at(7, &mut bytes).unwrap();
    assert_eq!(bytes, &pattern(0, LEN)[7..]);
    let pointer = memory.pointer().unwrap();
    assert_eq!((pointer.kind, pointer.gpu), (PointerKind::Device, gpu.info().ordinal));
    assert!((pointer.base..pointer.base + pointer.len as u64).contains(&memory.addr()));
    let again = GpuMemory::alloc(gpu, LEN).unwrap().pointer().unwrap();
    assert_ne!(again.buffer_id, pointer.buffer_id);
    let local = 0_u64;
    assert_eq!(Pointer::query(gpu.driver(), (&raw const local).addr() as u64), Ok(None));
    memory.sync_memops().unwrap();
    if gpu.info().dma_buf {
        let dma_buf = memory.dma_buf().unwrap();
        assert_eq!((dma_buf.iova, dma_buf.len), (memory.addr(), LEN));
        assert!(dma_buf.as_fd().try_clone_to_owned().is_ok());
    } else {
        eprintln!("no DMA-BUF: the driver exports none");
    }
    if gpu.info().host_flush {
        gpu.flush_writes().unwrap();
    }
}

fn every_device_moves_memory_of_a_gpu(gpu: &Gpu) {
    for info in Device::list().unwrap() {
        let mut rig = Rig::on(Device::open(&info.name).unwrap());
        for len in [1, 4096, LEN] {
            // A receive may be longer than its message.
            let regions = [len, 2 * len + 1].map(|len| {
                let memory = GpuMemory::alloc(gpu, len).unwrap();
                MemoryRegion::on_gpu(&rig.device, &memory, &rig.settings).unwrap()
            });
            eprintln!("{}, {len} bytes: {}", info.name, regions[0].gpu_path().unwrap());
            rig.check(&regions[0], &regions[1]);
            let read = rig.flush(&[(&regions[1], 0..len)]);
            assert_eq!(read, regions[1].gpu_path().unwrap().flush.method == Method::Read);
        }
    }
}

#[test]
fn memory_of_each_gpu_works() {
    on_each_gpu(memory_of_a_gpu_works);
}

#[test]
fn each_device_moves_memory_of_each_gpu() {
    on_each_gpu(every_device_moves_memory_of_a_gpu);
}

#[test]
fn these_checks_work_with_the_stand_in() {
    FakeCuda::new().set("INVAR_GPU", "1").set("FAKE_CUDA_ATTRIBUTES", "117=1").run(|| {
        on_each_gpu(memory_of_a_gpu_works);
        on_each_gpu(every_device_moves_memory_of_a_gpu);
    });
}

#[test]
fn these_checks_work_with_a_stand_in_for_a_nic_that_reaches_gpus() {
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes");
    let fake = fake.set("NCCL_NET_GDR_LEVEL", "SYS").set("INVAR_GPU", "1");
    fake.run(|| {
        on_each_gpu(memory_of_a_gpu_works);
        on_each_gpu(every_device_moves_memory_of_a_gpu);
        assert!(verbs_calls().iter().any(|call| call.starts_with("ibv_reg_dmabuf_mr ")));
        assert!(verbs_calls().iter().any(|call| call.starts_with("RDMA_READ ")));
    });
}
