//! Tests collNet on GPU memory, which passes through pinned host memory. The RDMA device reaches the GPU.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use invar::cuda::{Driver, Gpu, GpuMemory};
use invar_testkit::fake_cuda::FakeCuda;
use nccl_net_invar::abi::{PTR_CUDA, PTR_DMABUF, SgeV9};
use nccl_net_invar::tables::ncclCollNetPlugin_v9 as collnet;

use super::rig::*;

pub(super) const NRANKS: usize = 2;
/// `ncclUint32` and `ncclSum`.
const U32: c_int = 3;
const SUM: c_int = 0;

pub(super) fn fake() -> FakeCuda {
    FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes")
}

/// One rank's comm, and a GPU.
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) comm: *mut c_void,
    pub(super) gpu: Gpu,
}

/// Runs `run` as each rank on the first device.
pub(super) fn ranks(run: impl Fn(&Rank) + Sync) {
    ranks_on(0, run);
}

/// Runs `run` as each rank on a device, in a thread of its own.
pub(super) fn ranks_on(device: c_int, run: impl Fn(&Rank) + Sync) {
    init();
    let listen = || {
        let (mut handle, mut listening) = ([0_u8; HANDLE_BYTES], ptr::null_mut());
        // SAFETY: The call gives room for a handle and a comm.
        let code = unsafe { (collnet.listen)(device, handle.as_mut_ptr().cast(), &mut listening) };
        assert_eq!(code, Code::SUCCESS);
        (handle, listening.addr())
    };
    let listening: [_; NRANKS] = std::array::from_fn(|_| listen());
    let (listening, run) = (&listening, &run);
    thread::scope(|scope| {
        for rank in 0..NRANKS {
            scope.spawn(move || {
                let mut handles = listening.map(|(handle, _)| handle);
                let mut handles = handles.each_mut().map(|handle| handle.as_mut_ptr().cast());
                let (listener, mut comm) =
                    (ptr::without_provenance_mut(listening[rank].1), ptr::null_mut());
                // SAFETY: There are as many handles as ranks, and the call gives room for a comm.
                unsafe {
                    let (handles, nranks) = (handles.as_mut_ptr(), NRANKS as c_int);
                    let code =
                        (collnet.connect)(handles, nranks, rank as c_int, listener, &mut comm);
                    assert_eq!((code, comm.is_null()), (Code::SUCCESS, false));
                    assert_eq!((collnet.close_listen)(listener), Code::SUCCESS);
                }
                let gpu = Gpu::open(Driver::open().unwrap(), 0).unwrap();
                run(&Rank { rank, comm, gpu });
                // SAFETY: Nothing uses the comm any more.
                assert_eq!(unsafe { (collnet.close_coll)(comm) }, Code::SUCCESS);
            });
        }
    });
}

/// Registered GPU memory.
pub(super) struct OnGpu {
    memory: GpuMemory,
    pub(super) mr: *mut c_void,
}

impl Rank {
    pub(super) fn alloc(&self, values: &[u32]) -> OnGpu {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let memory = GpuMemory::alloc(&self.gpu, bytes.len()).unwrap();
        memory.write_at(0, &bytes).unwrap();
        let (data, mut mr) = (memory.addr() as usize as *mut c_void, ptr::null_mut());
        // SAFETY: The memory exists, and `mr` has room for a registration.
        let code = unsafe { (collnet.reg_mr)(self.comm, data, bytes.len(), PTR_CUDA, &mut mr) };
        assert_eq!((code, mr.is_null()), (Code::SUCCESS, false));
        OnGpu { memory, mr }
    }

    /// Ends a registration, which must succeed.
    pub(super) fn deregister(&self, memory: &OnGpu) {
        // SAFETY: Nobody registers the memory again.
        assert_eq!(unsafe { (collnet.dereg_mr)(self.comm, memory.mr) }, Code::SUCCESS);
    }

    /// Starts an all-reduce of `u32`, which must succeed.
    pub(super) fn sum(&self, from: &OnGpu, to: &OnGpu) -> *mut c_void {
        let (code, request) = self.start(from.all(), to.all());
        assert_eq!(code, Code::SUCCESS);
        request
    }

    /// Starts an all-reduce of `u32`.
    pub(super) fn start(&self, from: SgeV9, to: SgeV9) -> (Code, *mut c_void) {
        let (mut request, count) = (ptr::dangling_mut(), from.size / 4);
        // SAFETY: The memory is registered, and lives until the request is done.
        let code = unsafe {
            (collnet.iallreduce)(
                self.comm,
                from.address,
                to.address,
                count,
                U32,
                SUM,
                from.mhandle,
                to.mhandle,
                &mut request,
            )
        };
        (code, request)
    }

    /// Registers host memory.
    pub(super) fn register(&self, memory: &mut [u32]) -> SgeV9 {
        let (address, mut mhandle) = (memory.as_mut_ptr().cast(), ptr::null_mut());
        let size = size_of_val(memory);
        // SAFETY: The memory exists, and `mhandle` has room for a registration.
        let code = unsafe { (collnet.reg_mr)(self.comm, address, size, PTR_HOST, &mut mhandle) };
        assert_eq!((code, mhandle.is_null()), (Code::SUCCESS, false));
        SgeV9 { mhandle, address, size }
    }

    /// Gathers the window from element 400 to 1800 of blocks of 1000 elements, into these parts.
    fn gather(&self, own: &OnGpu, parts: &mut [SgeV9]) -> *mut c_void {
        let (mut request, nparts) = (ptr::null_mut(), parts.len() as c_int);
        // SAFETY: The memory is registered, and lives until the request is done.
        let code = unsafe {
            (collnet.blocks.iallgather)(
                self.comm,
                own.at(0),
                nparts,
                parts.as_mut_ptr(),
                4000,
                1600,
                5600,
                own.mr,
                &mut request,
            )
        };
        assert_eq!(code, Code::SUCCESS);
        request
    }

    /// Reduces the same window from these parts.
    fn scatter(&self, parts: &mut [SgeV9], own: &OnGpu) -> *mut c_void {
        let (mut request, nparts) = (ptr::null_mut(), parts.len() as c_int);
        // SAFETY: The memory is registered, and lives until the request is done.
        let code = unsafe {
            (collnet.blocks.ireducescatter)(
                self.comm,
                nparts,
                parts.as_mut_ptr(),
                own.at(0),
                4000,
                1600,
                5600,
                U32,
                SUM,
                own.mr,
                &mut request,
            )
        };
        assert_eq!(code, Code::SUCCESS);
        request
    }
}

impl OnGpu {
    pub(super) fn all(&self) -> SgeV9 {
        self.part(0, self.memory.len() / 4)
    }

    fn part(&self, first: usize, count: usize) -> SgeV9 {
        SgeV9 { mhandle: self.mr, address: self.at(first), size: 4 * count }
    }

    /// The address of an element.
    fn at(&self, element: usize) -> *mut c_void {
        (self.memory.addr() as usize + 4 * element) as *mut c_void
    }

    pub(super) fn values(&self) -> Vec<u32> {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.read_at(0, &mut bytes).unwrap();
        bytes.chunks(4).map(|value| u32::from_ne_bytes(value.try_into().unwrap())).collect()
    }
}

/// Tests requests in turn until all are done.
pub(super) fn finish(requests: &[*mut c_void]) {
    let mut left = requests.to_vec();
    assert!(left.iter().all(|request| !request.is_null()));
    until("collectives", || {
        left.retain(|request| !is_done(*request).unwrap());
        left.is_empty().then_some(())
    });
}

/// Tests a request until it is done, and returns its code.
pub(super) fn outcome(request: *mut c_void) -> Code {
    until("a collective", || match is_done(request) {
        Ok(is_done) => is_done.then_some(Code::SUCCESS),
        Err(code) => Some(code),
    })
}

/// Tests a request once. Returns whether it is done.
pub(super) fn is_done(request: *mut c_void) -> Result<bool, Code> {
    let mut done = 0;
    // SAFETY: The call gives room for the flag.
    match unsafe { (collnet.test)(request, &mut done, ptr::null_mut()) } {
        Code::SUCCESS => Ok(done == 1),
        code => Err(code),
    }
}

#[test]
fn collnet_says_of_gpu_memory_what_the_network_says() {
    let sysfs = invar_testkit::sysfs::Tree::new("null0", "null1");
    sysfs.file("kernel/mm/memory_peers/nv_mem/version", "1.3");
    fake().set("INVAR_SYSFS", sysfs.root().display().to_string()).run(|| {
        init();
        let mut properties = MaybeUninit::uninit();
        // SAFETY: `properties` has room for the properties.
        let support = unsafe {
            assert_eq!((collnet.get_properties)(0, properties.as_mut_ptr()), Code::SUCCESS);
            properties.assume_init().ptr_support
        };
        assert_eq!(support, PTR_HOST | PTR_CUDA | PTR_DMABUF);
    });
}

#[test]
fn several_collectives_on_gpu_memory_are_tested_in_any_order() {
    fake().run(|| {
        ranks(|rank| {
            let mine = rank.rank as u32;
            let from: Vec<OnGpu> = (0..3).map(|i| rank.alloc(&vec![i + mine; 30_000])).collect();
            let to: Vec<OnGpu> = (0..2).map(|_| rank.alloc(&vec![77; 30_000])).collect();
            // The last is in place.
            let mut requests = [(&from[0], &to[0]), (&from[1], &to[1]), (&from[2], &from[2])]
                .map(|(from, to)| rank.sum(from, to));
            requests.reverse();
            finish(&requests);
            for (i, memory) in [&to[0], &to[1], &from[2]].into_iter().enumerate() {
                assert_eq!(memory.values(), vec![2 * i as u32 + 1; 30_000], "{i}");
            }
        });
    });
}

#[test]
fn collectives_keep_their_order_though_only_one_rank_fetches_its_input() {
    fake().run(|| {
        ranks(|rank| {
            for turn in 0..10 {
                let on_gpu = rank.alloc(&vec![turn; 5000]);
                let mut on_host = vec![turn; 5000];
                let on_host_mr = rank.register(&mut on_host);
                // The first collective of one rank is the second rank's host memory.
                let mut order = [on_gpu.all(), on_host_mr];
                order.rotate_left(rank.rank);
                let lengths = [20_000, 4000];
                let requests = [0, 1].map(|i| {
                    let part = SgeV9 { size: lengths[i], ..order[i] };
                    let (code, request) = rank.start(part, part);
                    assert_eq!(code, Code::SUCCESS);
                    request
                });
                finish(&requests);
                let sums =
                    |count: usize| [vec![2 * turn; count], vec![turn; 5000 - count]].concat();
                let mut wanted = [sums(5000), sums(1000)];
                wanted.rotate_left(rank.rank);
                assert_eq!([on_gpu.values(), on_host], wanted, "turn {turn}");
            }
        });
    });
}

#[test]
fn windows_of_gpu_memory_are_gathered_and_reduced_in_one_part_and_in_several() {
    fake().run(|| {
        ranks(|rank| {
            let mine = rank.rank as u32;
            for cut in [1400, 700] {
                // The window has 600 elements of the first block and 800 of the second.
                let (own, window) = (rank.alloc(&[mine + 1; 1000]), rank.alloc(&[9; 1400]));
                let mut parts = match cut {
                    1400 => vec![window.part(0, 1400)],
                    _ => vec![window.part(0, cut), window.part(cut, 1400 - cut)],
                };
                finish(&[rank.gather(&own, &mut parts)]);
                assert_eq!(window.values(), [vec![1; 600], vec![2; 800]].concat());
                // The sums of both windows are 2 and 4. Each rank gets its piece.
                finish(&[rank.scatter(&mut parts, &own)]);
                let (piece, sum) = [(600, 2), (800, 4)][rank.rank];
                let rest = vec![mine + 1; 1000 - piece];
                assert_eq!(own.values(), [vec![sum; piece], rest].concat());
            }
        });
    });
}

#[test]
fn a_collective_waits_while_others_use_all_pinned_memory() {
    // Both ranks are in this process. Each copies 64 KiB, the least, in and out.
    fake().set("INVAR_STAGING_BYTES", "262144").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            let (from, to) = (rank.alloc(&[1; 1000]), rank.alloc(&[0; 1000]));
            let request = rank.sum(&from, &to);
            assert!(!request.is_null());
            met.wait();
            assert!(rank.sum(&from, &to).is_null(), "there is no memory for another");
            met.wait();
            finish(&[request]);
            assert_eq!(to.values(), [2; 1000]);
            met.wait();
            let again = rank.alloc(&[0; 500]);
            finish(&[rank.sum(&again, &again)]);
            assert_eq!(again.values(), [0; 500]);
        });
    });
}

#[test]
fn memory_of_no_gpu_and_gpu_memory_beyond_the_setting_are_refused() {
    fake().set("INVAR_STAGING_BYTES", "65536").run(|| {
        ranks(|rank| {
            let (mut mr, nowhere) = (ptr::null_mut(), 0x1000 as *mut c_void);
            // SAFETY: `mr` has room for a registration.
            let code = unsafe { (collnet.reg_mr)(rank.comm, nowhere, 64, PTR_CUDA, &mut mr) };
            assert_eq!((code, mr.is_null()), (Code::INTERNAL_ERROR, true));
            let long = rank.alloc(&[1; 20_000]);
            let (code, request) = rank.start(long.all(), long.all());
            assert_eq!((code, request.is_null()), (Code::INTERNAL_ERROR, true));
        });
    });
}

#[test]
fn gpu_memory_is_registered_by_its_dma_buf_and_needs_no_flush() {
    fake().run(|| {
        ranks(|rank| {
            let memory = rank.alloc(&[1; 1000]);
            let (dma_buf, at) = (memory.memory.dma_buf().unwrap(), memory.at(0));
            let (fd, mut mr) = (dma_buf.as_fd().as_raw_fd(), ptr::null_mut());
            let mut request = ptr::dangling_mut();
            // SAFETY: The descriptor is open, and there is room for a registration and a request.
            unsafe {
                let code = (collnet.reg_mr_dma_buf)(rank.comm, at, 4000, PTR_CUDA, 0, fd, &mut mr);
                assert_eq!((code, mr.is_null()), (Code::SUCCESS, false));
                let code = (collnet.iflush)(rank.comm, at, 4000, mr, &mut request);
                assert_eq!((code, request.is_null()), (Code::SUCCESS, true));
                for (len, kind, fd) in [(4097, PTR_CUDA, fd), (8, PTR_HOST, fd), (8, PTR_CUDA, -1)]
                {
                    let mut mr = ptr::null_mut();
                    let code = (collnet.reg_mr_dma_buf)(rank.comm, at, len, kind, 0, fd, &mut mr);
                    assert_eq!((code, mr.is_null()), (Code::INTERNAL_ERROR, true), "{len} {fd}");
                }
            }
            let by_dma_buf = OnGpu { memory: memory.memory.clone(), mr };
            finish(&[rank.sum(&by_dma_buf, &memory)]);
            assert_eq!(memory.values(), [2; 1000]);
            rank.deregister(&by_dma_buf);
        });
    });
}

#[test]
fn all_ranks_hear_of_a_copy_that_fails() {
    fake().set("FAKE_CUDA_FAIL", "cuMemcpyHtoDAsync_v2=700").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            // The output of the second rank is in host memory, so that rank hears of the failure later.
            let (from, mut host) = (rank.alloc(&[1; 1000]), vec![0; 1000]);
            let on_host = rank.register(&mut host);
            let code = until("an error", || {
                let (code, request) = rank.start(from.all(), [from.all(), on_host][rank.rank]);
                let code = if code == Code::SUCCESS { outcome(request) } else { code };
                (code != Code::SUCCESS).then_some(code)
            });
            assert_eq!(code, [Code::SYSTEM_ERROR, Code::REMOTE_ERROR][rank.rank]);
            met.wait();
        });
    });
}

#[test]
fn all_ranks_hear_of_an_input_that_cannot_be_copied() {
    fake().set("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync_v2=700").run(|| {
        all_ranks_hear_of_a_rank_that_cannot_start(1000, Code::SYSTEM_ERROR);
    });
}

#[test]
fn all_ranks_hear_of_a_rank_with_too_little_pinned_memory() {
    fake().set("INVAR_STAGING_BYTES", "65536").run(|| {
        all_ranks_hear_of_a_rank_that_cannot_start(20_000, Code::INTERNAL_ERROR);
    });
}

/// Rank 0 has its memory on the host, and starts. Rank 1 has its memory on a GPU, and fails with this code.
fn all_ranks_hear_of_a_rank_that_cannot_start(elements: usize, failure: Code) {
    let has_heard = AtomicBool::new(false);
    ranks(|rank| {
        let (on_gpu, mut host) = (rank.alloc(&vec![1; elements]), vec![1; elements]);
        let on_host = rank.register(&mut host);
        let memory = [on_host, on_gpu.all()][rank.rank];
        let (code, request) = rank.start(memory, memory);
        if rank.rank == 1 {
            assert_eq!((code, request.is_null()), (failure, true));
            // To close the comm would end the other rank's collective too.
            return until("the other rank", || has_heard.load(Relaxed).then_some(()));
        }
        // Rank 1 may have failed before.
        let code = if code == Code::SUCCESS { outcome(request) } else { code };
        assert_eq!(code, Code::REMOTE_ERROR);
        has_heard.store(true, Relaxed);
    });
}

#[test]
fn a_comm_is_closed_while_copies_are_under_way() {
    fake().set("FAKE_CUDA_QUERIES", "1000000").run(|| {
        let met = Barrier::new(NRANKS);
        ranks(|rank| {
            let memory = rank.alloc(&[1; 1000]);
            let request = rank.sum(&memory, &memory);
            assert_eq!(is_done(request), Ok(false), "the input is still fetched");
            met.wait();
        });
    });
}
