//! Tests collNet on GPU memory, which passes through pinned host memory. The RDMA device reaches the GPU.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Barrier;
use std::thread;

use invar::cuda::{Driver, Gpu, GpuMemory};
use invar_testkit::fake_cuda::FakeCuda;
use nccl_net_invar::abi::{PTR_CUDA, PTR_DMABUF, SgeV9};
use nccl_net_invar::tables::ncclCollNetPlugin_v9 as collnet;

use super::rig::*;

const NRANKS: usize = 2;
/// `ncclUint32` and `ncclSum`.
const U32: c_int = 3;
const SUM: c_int = 0;

fn fake() -> FakeCuda {
    FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes")
}

/// One rank's comm, and a GPU.
struct Rank {
    rank: usize,
    comm: *mut c_void,
    gpu: Gpu,
}

/// Runs `run` as each rank, in a thread of its own.
fn ranks(run: impl Fn(&Rank) + Sync) {
    init();
    let listen = || {
        let (mut handle, mut listening) = ([0_u8; HANDLE_BYTES], ptr::null_mut());
        // SAFETY: The call gives room for a handle and a comm.
        let code = unsafe { (collnet.listen)(0, handle.as_mut_ptr().cast(), &mut listening) };
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
struct OnGpu {
    memory: GpuMemory,
    mr: *mut c_void,
}

impl Rank {
    fn alloc(&self, values: &[u32]) -> OnGpu {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let memory = GpuMemory::alloc(&self.gpu, bytes.len()).unwrap();
        memory.write_at(0, &bytes).unwrap();
        let (data, mut mr) = (memory.addr() as usize as *mut c_void, ptr::null_mut());
        // SAFETY: The memory exists, and `mr` has room for a registration.
        let code = unsafe { (collnet.reg_mr)(self.comm, data, bytes.len(), PTR_CUDA, &mut mr) };
        assert_eq!((code, mr.is_null()), (Code::SUCCESS, false));
        OnGpu { memory, mr }
    }

    /// Starts an all-reduce of `u32`.
    fn sum(&self, from: &OnGpu, to: &OnGpu) -> *mut c_void {
        let mut request = ptr::null_mut();
        let count = from.memory.len() / 4;
        // SAFETY: The memory is registered, and lives until the request is done.
        let code = unsafe {
            let (from_mr, to_mr) = (from.mr, to.mr);
            (collnet.iallreduce)(
                self.comm,
                from.at(0),
                to.at(0),
                count,
                U32,
                SUM,
                from_mr,
                to_mr,
                &mut request,
            )
        };
        assert_eq!(code, Code::SUCCESS);
        request
    }
}

impl OnGpu {
    /// The address of an element.
    fn at(&self, element: usize) -> *mut c_void {
        (self.memory.addr() as usize + 4 * element) as *mut c_void
    }

    fn values(&self) -> Vec<u32> {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.read_at(0, &mut bytes).unwrap();
        bytes.chunks(4).map(|value| u32::from_ne_bytes(value.try_into().unwrap())).collect()
    }
}

/// Tests requests in turn until all are done.
fn finish(requests: &[*mut c_void]) {
    let mut left = requests.to_vec();
    assert!(left.iter().all(|request| !request.is_null()));
    until("collectives", || {
        left.retain(|request| {
            let mut done = 0;
            // SAFETY: The call gives room for the flag.
            let code = unsafe { (collnet.test)(*request, &mut done, ptr::null_mut()) };
            assert_eq!(code, Code::SUCCESS);
            done == 0
        });
        left.is_empty().then_some(())
    });
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
fn collectives_on_gpu_memory_and_on_host_memory_keep_their_order() {
    fake().run(|| {
        ranks(|rank| {
            let mine = rank.rank as u32;
            let from: Vec<OnGpu> = (0..3).map(|i| rank.alloc(&vec![i + mine; 30_000])).collect();
            let to: Vec<OnGpu> = (0..3).map(|_| rank.alloc(&vec![77; 30_000])).collect();
            let mut host = vec![mine + 5; 100];
            let (data, mut mr) = (host.as_mut_ptr().cast::<c_void>(), ptr::null_mut());
            // SAFETY: The memory exists, and `mr` has room for a registration.
            let code = unsafe { (collnet.reg_mr)(rank.comm, data, 400, PTR_HOST, &mut mr) };
            assert_eq!(code, Code::SUCCESS);
            let mut requests = vec![rank.sum(&from[0], &to[0]), rank.sum(&from[1], &to[1])];
            let mut request = ptr::null_mut();
            // SAFETY: The memory is registered, and lives until the request is done.
            let code = unsafe {
                (collnet.iallreduce)(rank.comm, data, data, 100, U32, SUM, mr, mr, &mut request)
            };
            assert_eq!(code, Code::SUCCESS);
            // The last is in place.
            requests.extend([request, rank.sum(&from[2], &from[2])]);
            requests.reverse();
            finish(&requests);
            assert_eq!((to[0].values(), to[1].values()), (vec![1; 30_000], vec![3; 30_000]));
            assert_eq!((host, from[2].values()), (vec![11; 100], vec![5; 30_000]));
            assert_eq!(to[2].values(), vec![77; 30_000], "nobody writes there");
        });
    });
}

#[test]
fn windows_of_gpu_memory_are_gathered_and_reduced() {
    fake().run(|| {
        ranks(|rank| {
            let mine = rank.rank as u32;
            // Blocks of 1000 elements, and a window from 400 to 1800: 600 of the first, 800 of the second.
            let (own, window) = (rank.alloc(&vec![mine + 1; 1000]), rank.alloc(&vec![9; 1400]));
            let part = |memory: &OnGpu, first: usize, count: usize| SgeV9 {
                mhandle: memory.mr,
                address: memory.at(first),
                size: 4 * count,
            };
            let mut request = ptr::null_mut();
            // SAFETY: The memory is registered, and lives until the request is done.
            let code = unsafe {
                let mut parts = [part(&window, 0, 1400)];
                let (own_at, parts) = (own.at(0), parts.as_mut_ptr());
                (collnet.blocks.iallgather)(
                    rank.comm,
                    own_at,
                    1,
                    parts,
                    4000,
                    1600,
                    5600,
                    own.mr,
                    &mut request,
                )
            };
            assert_eq!(code, Code::SUCCESS);
            finish(&[request]);
            assert_eq!(window.values(), [vec![1; 600], vec![2; 800]].concat());
            // The sum of both windows is 2 and then 4; each rank gets its piece.
            // SAFETY: As above.
            let code = unsafe {
                let mut parts = [part(&window, 0, 1400)];
                let (own_at, parts) = (own.at(0), parts.as_mut_ptr());
                (collnet.blocks.ireducescatter)(
                    rank.comm,
                    1,
                    parts,
                    own_at,
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
            finish(&[request]);
            let (piece, sum) = [(600, 2), (800, 4)][rank.rank];
            assert_eq!(own.values(), [vec![sum; piece], vec![mine + 1; 1000 - piece]].concat());
            // NCCL has one part.
            // SAFETY: As above.
            let code = unsafe {
                let mut parts = [part(&window, 0, 700), part(&window, 700, 700)];
                let (own_at, parts) = (own.at(0), parts.as_mut_ptr());
                (collnet.blocks.iallgather)(
                    rank.comm,
                    own_at,
                    2,
                    parts,
                    4000,
                    1600,
                    5600,
                    own.mr,
                    &mut request,
                )
            };
            assert_eq!((code, request.is_null()), (Code::INTERNAL_ERROR, true));
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
            let (mut mr, mut request) = (ptr::dangling_mut(), ptr::dangling_mut());
            let nowhere = 0x1000 as *mut c_void;
            // SAFETY: `mr` has room for a registration.
            let code = unsafe { (collnet.reg_mr)(rank.comm, nowhere, 64, PTR_CUDA, &mut mr) };
            assert_ne!(code, Code::SUCCESS);
            let long = rank.alloc(&[1; 20_000]);
            // SAFETY: The memory is registered, and lives until the request is done.
            let code = unsafe {
                let at = long.at(0);
                (collnet.iallreduce)(
                    rank.comm,
                    at,
                    at,
                    20_000,
                    U32,
                    SUM,
                    long.mr,
                    long.mr,
                    &mut request,
                )
            };
            assert_eq!((code, request.is_null()), (Code::INTERNAL_ERROR, true));
            let dma_buf = long.memory.dma_buf().unwrap();
            let (fd, mut mr) = (dma_buf.as_fd().as_raw_fd(), ptr::null_mut());
            // SAFETY: The descriptor is open, and `mr` has room for a registration.
            unsafe {
                let at = long.at(0);
                let code =
                    (collnet.reg_mr_dma_buf)(rank.comm, at, 80_000, PTR_CUDA, 0, fd, &mut mr);
                assert_eq!((code, mr.is_null()), (Code::SUCCESS, false));
                assert_eq!((collnet.dereg_mr)(rank.comm, mr), Code::SUCCESS);
            }
        });
    });
}
