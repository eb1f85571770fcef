//! Tests the driver through the bindings of the crate `cust`.

use invar_cuda::cust::error::CudaError;
use invar_cuda::cust::memory::DeviceBuffer;
use invar_cuda::{Direction, Driver, Gpu, GpuMemory, NoCuda, Pointer, StagingBuffer, cust};
use invar_testkit::fake_cuda::{FakeCuda, calls};

#[test]
fn without_a_driver_programs_with_cust_start_and_are_told() {
    match Driver::open_cust() {
        Err(error) => {
            assert_eq!(error, NoCuda::NoLibrary);
            assert_eq!(cust::init(cust::CudaFlags::empty()), Err(CudaError::NotInitialized));
            assert_eq!(cust::device::Device::num_devices(), Err(CudaError::NotInitialized));
        }
        Ok(driver) => eprintln!("skipped: this machine has {driver:?}"),
    }
}

#[test]
fn cust_by_itself_finds_the_driver() {
    FakeCuda::new().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0").run(|| {
        cust::init(cust::CudaFlags::empty()).unwrap();
        assert_eq!(cust::device::Device::num_devices(), Ok(2));
        let device = cust::device::Device::get_device(1).unwrap();
        assert_eq!(device.name().unwrap(), "Fake GPU 1");
        assert_eq!(calls("cuDeviceGetName"), 1);
    });
}

#[test]
fn what_the_driver_lacks_is_not_initialized_to_cust() {
    FakeCuda::new().without("cuDeviceGetName").run(|| {
        cust::init(cust::CudaFlags::empty()).unwrap();
        let device = cust::device::Device::get_device(0).unwrap();
        assert_eq!(device.name(), Err(CudaError::NotInitialized));
    });
}

#[test]
fn memory_is_copied_staged_and_exported_through_cust_while_the_program_captures_a_stream() {
    FakeCuda::new().set("FAKE_CUDA_CAPTURES", "1").run(|| {
        let driver = Driver::open_cust().unwrap();
        assert_eq!(driver.version(), Ok(12_080));
        let gpu = Gpu::open(driver, 0).unwrap();
        let memory = GpuMemory::alloc(&gpu, 4096).unwrap();
        memory.write_at(7, b"alloy").unwrap();
        let mut staging = StagingBuffer::new(&gpu, 1, 64).unwrap();
        staging.start(0, Direction::ToHost, &memory, 7, 5).unwrap();
        while !staging.is_done(0).unwrap() {}
        let mut bytes = [0; 5];
        staging.memory().read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"alloy");
        // The function for DMA-BUFs is newer than cust's bindings.
        assert_eq!(memory.dma_buf().unwrap().offset, 0);
    });
}

#[test]
fn a_buffer_of_cust_is_memory_like_any_other() {
    FakeCuda::new().run(|| {
        let driver = Driver::open_cust().unwrap();
        let gpu = Gpu::open(driver, 0).unwrap();
        let context = cust::context::Context::new(cust::device::Device::get_device(0).unwrap());
        let context = context.unwrap();
        cust::context::CurrentContext::set_current(&context).unwrap();
        let buffer = DeviceBuffer::from_slice(&[0x0403_0201_u32, 0x0807_0605]).unwrap();
        let memory = GpuMemory::from_cust(&gpu, buffer);
        let mut bytes = [0; 8];
        memory.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        let addr = memory.addr();
        assert!(Pointer::query(driver, addr).unwrap().is_some());
        // Drop the memory on a thread that has no context of its own.
        std::thread::spawn(move || drop(memory)).join().unwrap();
        assert_eq!(Pointer::query(driver, addr), Ok(None));
    });
}
