//! Tests which GPU memory collNet registers, and when it lets go of memory.

use std::sync::Barrier;

use invar::cuda::{Driver, Gpu, GpuMemory};
use invar_testkit::fake_cuda::{calls, pinned};
use nccl_net_invar::abi::PTR_CUDA;
use nccl_net_invar::tables::ncclCollNetPlugin_v9 as collnet;

use super::collnet_gpu::{NRANKS, Rank, fake, finish, is_done, outcome, ranks};
use super::rig::*;

/// The length in which the stand-in gives memory out.
const ALLOCATION: usize = 2 << 20;

fn register(rank: &Rank, memory: &GpuMemory, len: usize) -> Code {
    let (data, mut mr) = (memory.addr() as usize as *mut c_void, ptr::null_mut());
    // SAFETY: `mr` has room for a registration.
    unsafe { (collnet.reg_mr)(rank.comm, data, len, PTR_CUDA, &mut mr) }
}

#[test]
fn whole_pages_and_neighbouring_allocations_of_one_gpu_are_registered() {
    fake().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0").run(|| {
        ranks(|rank| {
            if rank.rank > 0 {
                return;
            }
            let other = Gpu::open(Driver::open().unwrap(), 1).unwrap();
            let first = GpuMemory::alloc(&rank.gpu, ALLOCATION).unwrap();
            let second = GpuMemory::alloc(&rank.gpu, 100).unwrap();
            let third = GpuMemory::alloc(&other, 100).unwrap();
            let far = |memory: &GpuMemory| (memory.addr() - first.addr()) as usize;
            assert_eq!((far(&second), far(&third)), (ALLOCATION, 2 * ALLOCATION));
            assert_eq!(register(rank, &second, 4096), Code::SUCCESS);
            assert_eq!(register(rank, &first, ALLOCATION + 4096), Code::SUCCESS);
            assert_eq!(register(rank, &second, 4097), Code::INTERNAL_ERROR, "a page of nobody");
            // This allocation takes the place of the second one, up to the other GPU's.
            drop(second);
            let second = GpuMemory::alloc(&rank.gpu, ALLOCATION).unwrap();
            assert_eq!(far(&second), ALLOCATION);
            assert_eq!(register(rank, &first, 2 * ALLOCATION), Code::SUCCESS);
            assert_eq!(register(rank, &first, 2 * ALLOCATION + 1), Code::INTERNAL_ERROR);
        });
    });
}

#[test]
fn pinned_memory_of_long_collectives_serves_short_ones_and_stays_until_the_comms_are_closed() {
    // Each rank copies 128 KiB in and out, and nothing is left for other lengths.
    fake().set("INVAR_STAGING_BYTES", "524288").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            for elements in [20_000, 1000] {
                let memory = rank.alloc(&vec![1; elements]);
                finish(&[rank.sum(&memory, &memory)]);
                assert_eq!(memory.values(), vec![2; elements]);
            }
            met.wait();
            assert_eq!((calls("cuMemHostAlloc"), calls("cuMemFreeHost")), (4, 0));
            met.wait();
        });
        assert_eq!(pinned(), 0);
    });
}

#[test]
fn pinned_memory_of_short_collectives_makes_room_for_long_ones() {
    // Each rank copies 64 KiB in and out, and then 128 KiB. All the budget is for two long collectives.
    fake().set("INVAR_STAGING_BYTES", "524288").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            for (elements, freed) in [(1000, 0), (20_000, 4)] {
                let memory = rank.alloc(&vec![1; elements]);
                let request = until("pinned memory", || {
                    let request = rank.sum(&memory, &memory);
                    (!request.is_null()).then_some(request)
                });
                met.wait();
                finish(&[request]);
                assert_eq!(memory.values(), vec![2; elements]);
                assert_eq!(calls("cuMemFreeHost"), freed, "{elements} elements");
                met.wait();
            }
        });
        assert_eq!(pinned(), 0);
    });
}

#[test]
fn memory_is_deregistered_only_after_its_copies() {
    fake().set("FAKE_CUDA_QUERIES", "20").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            let memory = rank.alloc(&[1; 1000]);
            let request = rank.sum(&memory, &memory);
            met.wait();
            rank.deregister(&memory);
            // A copy and its event take 20 queries each.
            assert!(calls("cuEventQuery") >= 40, "the input is still fetched");
            assert_eq!(outcome(request), Code::REMOTE_ERROR);
            met.wait();
        });
    });
}

#[test]
fn a_call_on_an_aborted_comm_leaves_its_copy_to_the_deregistration() {
    fake().set("FAKE_CUDA_QUERIES", "20").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            if rank.rank == 0 {
                let [first, second] = [0; 2].map(|_| rank.alloc(&[1; 1000]));
                let request = rank.sum(&first, &first);
                assert!(!request.is_null());
                rank.deregister(&first);
                let waits = calls("cuStreamSynchronize");
                let (code, _) = rank.start(second.all(), second.all());
                assert_eq!((code, calls("cuMemcpyDtoHAsync_v2")), (Code::REMOTE_ERROR, 2));
                assert_eq!(calls("cuStreamSynchronize"), waits, "the call waits for no copy");
                let asked = calls("cuEventQuery");
                rank.deregister(&second);
                // A copy and its event take 20 queries each. The call may have asked once.
                assert!(calls("cuEventQuery") >= asked + 39, "the input is still fetched");
            }
            met.wait();
        });
    });
}

#[test]
fn a_registration_whose_output_is_being_stored_ends_without_harm_to_the_collective() {
    fake().set("FAKE_CUDA_QUERIES", "20").run(|| {
        ranks(|rank| {
            let (memory, mut host) = (rank.alloc(&[1; 1000]), [1; 1000]);
            let on_host = rank.register(&mut host);
            // Only the output of the first rank is on a GPU.
            let part = [memory.all(), on_host][rank.rank];
            let (code, request) = rank.start(part, part);
            assert_eq!(code, Code::SUCCESS);
            if rank.rank == 0 {
                until("a store", || {
                    assert_eq!(is_done(request), Ok(false));
                    (calls("cuMemcpyHtoDAsync_v2") == 1).then_some(())
                });
                rank.deregister(&memory);
                assert_eq!(memory.values(), [2; 1000]);
            }
            assert_eq!(outcome(request), Code::SUCCESS);
            let again = rank.alloc(&[1; 1000]);
            finish(&[rank.sum(&again, &again)]);
            assert_eq!(again.values(), [2; 1000]);
        });
    });
}
