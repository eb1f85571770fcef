//! Tests pinned memory and the copies into and out of it.

use invar_cuda::{Direction, Driver, Gpu, GpuMemory, MemoryError, StagingBuffer};
use invar_testkit::fake_cuda::{FakeCuda, calls, capture_mode};

fn buffer() -> (GpuMemory, StagingBuffer) {
    let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
    (GpuMemory::alloc(&gpu, 1000).unwrap(), StagingBuffer::new(&gpu, 2, 256).unwrap())
}

#[test]
fn a_copy_is_done_when_the_driver_says_so_and_not_before() {
    FakeCuda::new().set("FAKE_CUDA_QUERIES", "3").run(|| {
        let (memory, mut buffer) = buffer();
        memory.write_at(100, b"invar").unwrap();
        assert!(buffer.is_done(1).unwrap(), "nothing is under way");
        buffer.start(1, Direction::ToHost, &memory, 100, 5).unwrap();
        // There are two operations, the copy and its event, and each takes three queries.
        let asked = (1..).find(|_| buffer.is_done(1).unwrap());
        assert_eq!(asked, Some(6));
        let mut bytes = [0; 5];
        buffer.memory().read_at(256, &mut bytes).unwrap();
        assert_eq!(&bytes, b"invar");

        buffer.memory().write_at(0, b"nickel").unwrap();
        buffer.start(0, Direction::ToGpu, &memory, 994, 6).unwrap();
        while !buffer.is_done(0).unwrap() {}
        let mut bytes = [0; 6];
        memory.read_at(994, &mut bytes).unwrap();
        assert_eq!(&bytes, b"nickel");
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    FakeCuda::new().run(|| {
        let (memory, mut buffer) = buffer();
        for (slot, offset, len) in [(0, 0, 257), (2, 0, 1), (0, 1000, 1), (0, 800, 201)] {
            let copy = buffer.start(slot, Direction::ToHost, &memory, offset, len);
            assert!(copy.unwrap_err().to_string().ends_with(" bytes"), "{slot} {offset} {len}");
        }
        assert_eq!(calls("cuMemcpyDtoHAsync_v2"), 0);
    });
}

#[test]
fn memory_under_copy_outlives_its_owner_and_the_buffer_waits_for_it() {
    FakeCuda::new().run(|| {
        let (memory, mut buffer) = buffer();
        buffer.start(0, Direction::ToGpu, &memory, 0, 256).unwrap();
        drop(memory);
        assert_eq!(calls("cuMemFree_v2"), 0);
        drop(buffer);
        assert_eq!(calls("cuStreamSynchronize"), 1);
        assert_eq!((calls("cuMemFree_v2"), calls("cuMemFreeHost")), (1, 1));
        assert_eq!((calls("cuEventDestroy_v2"), calls("cuStreamDestroy_v2")), (2, 1));
    });
}

#[test]
fn a_slot_takes_no_second_copy_before_the_first_is_done() {
    FakeCuda::new().set("FAKE_CUDA_QUERIES", "3").run(|| {
        let (first, mut buffer) = buffer();
        let second = GpuMemory::alloc(first.gpu(), 256).unwrap();
        buffer.start(1, Direction::ToGpu, &first, 0, 256).unwrap();
        drop(first);
        let refused = buffer.start(1, Direction::ToGpu, &second, 0, 256).unwrap_err();
        assert_eq!(refused, MemoryError::Busy(1));
        assert_eq!((calls("cuMemcpyHtoDAsync_v2"), calls("cuMemFree_v2")), (1, 0));
        buffer.start(0, Direction::ToGpu, &second, 0, 256).unwrap();
        // Nobody has asked whether the first copy is done. It completes nevertheless.
        let start = |_: &i32| buffer.start(1, Direction::ToGpu, &second, 0, 256).is_ok();
        assert!((1..100).find(start).is_some());
        assert_eq!(calls("cuMemFree_v2"), 1);
    });
}

#[test]
fn memory_under_a_copy_that_has_no_event_stays_until_the_copy_is_done() {
    FakeCuda::new().set("FAKE_CUDA_FAIL", "cuEventRecord=999").run(|| {
        let (memory, mut buffer) = buffer();
        buffer.start(0, Direction::ToGpu, &memory, 0, 256).unwrap_err();
        assert_eq!(calls("cuStreamSynchronize"), 1);
        drop(memory);
        assert_eq!((calls("cuMemFree_v2"), buffer.is_done(0)), (1, Ok(true)));
    });
}

#[test]
fn copies_go_on_while_the_program_captures_a_stream_and_the_thread_keeps_its_capture_mode() {
    FakeCuda::new().set("FAKE_CUDA_CAPTURES", "1").run(|| {
        let (memory, mut buffer) = buffer();
        memory.write_at(0, b"invar").unwrap();
        buffer.start(0, Direction::ToHost, &memory, 0, 5).unwrap();
        while !buffer.is_done(0).unwrap() {}
        drop((memory, buffer));
        assert_eq!((calls("cuMemFree_v2"), calls("cuMemFreeHost")), (1, 1));
        assert_eq!(capture_mode(), 0);
        let exchanges = calls("cuThreadExchangeStreamCaptureMode");
        // A query needs no current context.
        assert_eq!(exchanges, 2 * (calls("cuCtxPushCurrent_v2") + calls("cuEventQuery")));
    });
}

#[test]
fn copies_go_on_with_a_driver_that_has_no_capture_modes() {
    FakeCuda::new().without("cuThreadExchangeStreamCaptureMode").run(|| {
        let (memory, mut buffer) = buffer();
        buffer.start(0, Direction::ToGpu, &memory, 0, 256).unwrap();
        while !buffer.is_done(0).unwrap() {}
        assert_eq!(calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2"));
    });
}

#[test]
fn a_buffer_that_is_larger_than_all_memory_is_refused() {
    FakeCuda::new().run(|| {
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        for (slots, slot_bytes) in [(8, 1 << 61), ((1 << 60) + 1, 16)] {
            let error = StagingBuffer::new(&gpu, slots, slot_bytes).unwrap_err();
            assert_eq!(error.code(), Some(2), "{error}");
        }
        assert_eq!(calls("cuMemHostAlloc"), 0);
    });
}

#[test]
fn a_buffer_that_comes_about_halfway_gives_all_back() {
    FakeCuda::new().set("FAKE_CUDA_FAIL", "cuEventCreate=2").run(|| {
        let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
        StagingBuffer::new(&gpu, 2, 256).unwrap_err();
        assert_eq!((calls("cuMemFreeHost"), calls("cuStreamDestroy_v2")), (1, 1));
    });
}
