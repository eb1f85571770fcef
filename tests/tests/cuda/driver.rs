//! Tests what Invar finds out about the driver and the GPUs.

use invar_cuda::flush::WritesOrdering;
use invar_cuda::{Driver, Gpu, NoCuda};
use invar_testkit::fake_cuda::{FakeCuda, calls};

#[test]
fn without_a_driver_the_answer_is_that_there_is_none() {
    match Driver::open() {
        Err(error) => {
            assert_eq!(error, NoCuda::NoLibrary);
            assert!(error.to_string().starts_with("no libcuda.so.1 here"), "{error}");
        }
        Ok(driver) => eprintln!("skipped: this machine has {driver:?}"),
    }
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    FakeCuda::new().set("FAKE_CUDA_FAIL", "cuInit=100").run(|| {
        let error = Driver::open().unwrap_err().to_string();
        assert!(error.starts_with("cuInit failed: CUDA_ERROR_NO_DEVICE (100)"), "{error}");
        assert_eq!(Driver::open().unwrap_err().to_string(), error);
    });
}

#[test]
fn a_result_that_the_driver_has_no_name_for_is_shown_as_a_number() {
    FakeCuda::new().set("FAKE_CUDA_FAIL", "cuInit=98765").run(|| {
        let error = Driver::open().unwrap_err().to_string();
        assert!(error.starts_with("cuInit failed: an error without a name (98765)"), "{error}");
    });
}

#[test]
fn a_gpu_is_described_without_a_context_on_it() {
    let fake = FakeCuda::new().set("FAKE_CUDA_GPUS", "0000:3D:00.0,0001:86:00.0");
    fake.set("FAKE_CUDA_ATTRIBUTES", "75=9,118=100,117=1").run(|| {
        let driver = Driver::open().unwrap();
        assert_eq!(driver.version(), Ok(12_080));
        let [gpu, other] = driver.gpus().unwrap().try_into().unwrap();
        assert_eq!((gpu.ordinal, &*gpu.name, &*gpu.pci_bus_id), (0, "Fake GPU 0", "0000:3d:00.0"));
        assert_eq!((other.ordinal, &*other.pci_bus_id), (1, "0001:86:00.0"));
        assert_eq!(gpu.compute_capability, (9, 0));
        assert_eq!((gpu.gpudirect, gpu.dma_buf, gpu.host_flush), (Some(true), true, true));
        assert_eq!(gpu.writes_ordering, Some(WritesOrdering::Owner));
        assert_eq!(calls("cuDevicePrimaryCtxRetain"), 0);
    });
}

#[test]
fn what_an_old_driver_does_not_know_is_not_assumed() {
    FakeCuda::new().set("FAKE_CUDA_ATTRIBUTES", "116=,117=,118=,124=").run(|| {
        let gpu = Driver::open().unwrap().gpus().unwrap().remove(0);
        assert_eq!((gpu.gpudirect, gpu.dma_buf), (None, false));
        assert_eq!((gpu.writes_ordering, gpu.host_flush), (None, false));
    });
}

#[test]
fn what_there_is_no_function_for_is_not_assumed() {
    let fake = FakeCuda::new().set("FAKE_CUDA_ATTRIBUTES", "117=1,124=1");
    let fake = fake.without("cuMemGetHandleForAddressRange");
    fake.without("cuFlushGPUDirectRDMAWrites").run(|| {
        let gpu = Driver::open().unwrap().gpus().unwrap().remove(0);
        assert_eq!((gpu.dma_buf, gpu.host_flush), (false, false));
    });
}

#[test]
fn a_machine_without_gpus_has_none() {
    FakeCuda::new().set("FAKE_CUDA_GPUS", "").run(|| {
        let driver = Driver::open().unwrap();
        assert_eq!(driver.gpus(), Ok(Vec::new()));
        let error = Gpu::open(driver, 0).unwrap_err().to_string();
        assert_eq!(error, "cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE (101)");
    });
}

#[test]
fn the_context_is_held_as_long_as_the_gpu_is_in_use_and_left_off_the_thread() {
    FakeCuda::new().run(|| {
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        gpu.flush_writes().unwrap();
        drop(gpu.clone());
        assert_eq!(calls("cuDevicePrimaryCtxRelease_v2"), 0);
        drop(gpu);
        assert_eq!(calls("cuDevicePrimaryCtxRelease_v2"), 1);
        assert_eq!(calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2"));
        assert_eq!(calls("cuFlushGPUDirectRDMAWrites"), 1);
    });
}
