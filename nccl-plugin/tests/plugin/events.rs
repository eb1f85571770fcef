//! Tests the profiler's events of transfers over queue pairs (`ncclProfilerCallback_t`, since v11).

use std::sync::Mutex;

use invar_testkit::fake_cuda::FakeCuda;
use nccl_net_invar::abi::{Description, ProfilerCallback, QpWork};
use nccl_net_invar::tables::{ncclNetPlugin_v10 as v10, ncclNetPlugin_v11 as v11};

use super::rig::*;

/// `NCCL_PROFILER_NET_TYPE_IB`, version 1.
const IB_V1: i64 = 1 << 16 | 1;
const RDMA_WRITE: c_int = 0;
const RDMA_WRITE_WITH_IMM: c_int = 1;
const RECV_RDMA_WITH_IMM: c_int = 129;

/// An event that the plugin reported; this process runs only one test.
#[derive(Clone, Copy)]
struct Told {
    step: usize,
    work: QpWork,
    is_over: bool,
}

static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// NCCL's callback: its handles are the numbers of events, from 1.
unsafe extern "C" fn profiler(
    event: *mut *mut c_void,
    what: c_int,
    step: *mut c_void,
    id: i64,
    about: *mut c_void,
) -> Code {
    let mut told = TOLD.lock().unwrap();
    // SAFETY: The plugin gives room for a handle, and describes the event that starts.
    unsafe {
        if what == 0 {
            let Description { kind, about: work } = *about.cast::<Description<QpWork>>();
            assert_eq!((id, kind, work.device), (IB_V1, 1, 0));
            told.push(Told { step: step.addr(), work, is_over: false });
            *event = ptr::without_provenance_mut(told.len());
        } else {
            let Told { is_over, .. } = &mut told[(*event).addr() - 1];
            assert!(!std::mem::replace(is_over, true), "an event is over once");
        }
    }
    Code::SUCCESS
}

/// NCCL's callback where no profiler is loaded.
unsafe extern "C" fn nobody(
    _: *mut *mut c_void,
    what: c_int,
    _: *mut c_void,
    _: i64,
    _: *mut c_void,
) -> Code {
    assert_eq!(what, 0, "an event that nobody took has ended");
    Code::SUCCESS
}

/// Returns the events after the first `before` ones.
fn told_since(before: usize) -> Vec<Told> {
    TOLD.lock().unwrap()[before..].to_vec()
}

/// Returns the opcode and the bytes of each event of one step.
fn of_step(told: &[Told], step: usize) -> Vec<(c_int, usize)> {
    let its = told.iter().filter(|told| told.step == step);
    its.map(|told| (told.work.opcode, told.work.length)).collect()
}

/// Makes a connection over four queue pairs, with a profiler.
fn profiled(profiler: ProfilerCallback) -> Pair {
    let pair = Pair::new(4096);
    let mut context = ptr::null_mut();
    // SAFETY: `context` has room for a context, there is no logger, and the callback stays valid.
    let code = unsafe { (v11.init)(&mut context, 0, ptr::null(), None, Some(profiler)) };
    assert_eq!(code, Code::SUCCESS);
    pair
}

fn four_queue_pairs() -> FakeCuda {
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_STRICT", "0");
    fake.set("NCCL_IB_QPS_PER_CONNECTION", "4")
}

/// Posts a receive with one buffer per step; the tag of a buffer is the step's number.
fn irecv(pair: &Pair, steps: &[usize]) -> *mut c_void {
    let n = steps.len();
    let mut data = vec![pair.to.as_ptr().cast_mut().cast(); n];
    let (mut sizes, mut mrs) = (vec![4096; n], vec![pair.to_mr; n]);
    let mut tags: Vec<c_int> = steps.iter().map(|step| *step as c_int).collect();
    let mut steps: Vec<_> = steps.iter().map(|step| ptr::without_provenance_mut(*step)).collect();
    let mut request = ptr::null_mut();
    // SAFETY: Each array has `n` entries, and the memory is registered.
    let code = unsafe {
        (v11.irecv)(
            pair.recv,
            n as c_int,
            data.as_mut_ptr(),
            sizes.as_mut_ptr(),
            tags.as_mut_ptr(),
            mrs.as_mut_ptr(),
            steps.as_mut_ptr(),
            &mut request,
        )
    };
    assert_eq!((code, request.is_null()), (Code::SUCCESS, false));
    request
}

/// Sends to the buffer of that tag.
fn isend(pair: &Pair, size: usize, tag: usize, step: usize) -> *mut c_void {
    let (data, tag) = (pair.from.as_ptr().cast_mut().cast(), tag as c_int);
    let (step, mut request) = (ptr::without_provenance_mut(step), ptr::null_mut());
    // SAFETY: The memory is registered.
    let code = unsafe { (v11.isend)(pair.send, data, size, tag, pair.from_mr, step, &mut request) };
    assert_eq!((code, request.is_null()), (Code::SUCCESS, false));
    request
}

#[test]
fn each_queue_pair_has_the_share_that_it_carries() {
    four_queue_pairs().run(|| {
        let pair = profiled(profiler);
        for (row, size, shares) in [(0, 1000, [256, 256, 256, 232]), (1, 8, [8, 0, 0, 0])] {
            let before = told_since(0).len();
            let received = irecv(&pair, &[5]);
            let sent = isend(&pair, size, 5, 6);
            let told = told_since(before);
            assert_eq!(of_step(&told, 5), [(RECV_RDMA_WITH_IMM, 0); 4]);
            assert_eq!(of_step(&told, 6), shares.map(|bytes| (RDMA_WRITE_WITH_IMM, bytes)));
            for (told, wr_id) in [(&told[..4], row), (&told[4..], told[4].work.wr_id)] {
                assert!(told.iter().all(|told| told.work.wr_id == wr_id));
                let mut qps: Vec<c_int> = told.iter().map(|told| told.work.qp_num).collect();
                qps.dedup();
                assert_eq!(qps.len(), 4, "of each queue pair");
            }
            assert!(told.iter().all(|told| !told.is_over));
            wait(&[sent, received]);
            assert!(told_since(before).iter().all(|told| told.is_over));
        }
    });
}

#[test]
fn the_messages_of_a_group_start_with_the_last_of_them() {
    four_queue_pairs().run(|| {
        let pair = profiled(profiler);
        let received = irecv(&pair, &[5, 6]);
        let first = isend(&pair, 300, 5, 15);
        assert_eq!(told_since(8).len(), 0, "only the receive has started");
        let second = isend(&pair, 1000, 6, 16);
        let told = told_since(8);
        assert_eq!(of_step(&told, 15), [128, 128, 44, 0].map(|bytes| (RDMA_WRITE, bytes)));
        assert_eq!(of_step(&told, 16), [256, 256, 256, 232].map(|bytes| (RDMA_WRITE, bytes)));
        wait(&[first, second, received]);
        assert!(told_since(0).iter().all(|told| told.is_over));
        // A message that never leaves has no events.
        let before = told_since(0).len();
        irecv(&pair, &[7, 8]);
        isend(&pair, 300, 7, 17);
        drop(pair);
        assert!(told_since(before).iter().all(|told| told.work.opcode == RECV_RDMA_WITH_IMM));
    });
}

#[test]
fn requests_have_no_events_where_no_profiler_is_loaded() {
    four_queue_pairs().run(|| {
        let pair = profiled(nobody);
        let (received, sent) = (irecv(&pair, &[5]), isend(&pair, 1000, 5, 6));
        // A request with events has an odd number.
        assert_eq!([received, sent].map(|request| request.addr() % 2), [0, 0]);
        assert_eq!(wait(&[sent, received])[1][0], 1000);
        // A profiler that starts to take events is asked again soon.
        let mut context = ptr::null_mut();
        // SAFETY: `context` has room for a context, and the callback stays valid.
        let code = unsafe { (v11.init)(&mut context, 0, ptr::null(), None, Some(profiler)) };
        assert_eq!(code, Code::SUCCESS);
        let transfers = (0..64).map(|_| {
            let requests = [irecv(&pair, &[5]), isend(&pair, 8, 5, 6)];
            wait(&requests);
            requests.map(|request| request.addr() % 2)
        });
        let marks: Vec<_> = transfers.collect();
        assert_eq!((marks[62], marks[63]), ([0, 0], [1, 1]));
    });
}

#[test]
fn no_event_is_told_through_the_interface_whose_nccl_crashes_in_it() {
    four_queue_pairs().run(|| {
        let pair = Pair::new(4096);
        // SAFETY: There is no logger, and the callback stays valid.
        assert_eq!(unsafe { (v10.init)(None, Some(profiler)) }, Code::SUCCESS);
        wait(&[irecv(&pair, &[5]), isend(&pair, 1000, 5, 6)]);
        assert!(told_since(0).is_empty());
    });
}
