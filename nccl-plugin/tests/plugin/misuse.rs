//! Tests calls that NCCL must not make: each returns an error code and has no other effect.

use std::ptr::null_mut;

use nccl_net_invar::abi::CommConfig;
use nccl_net_invar::tables::{ncclNetPlugin_v6 as v6, ncclNetPlugin_v11 as v11};

use super::rig::*;

#[test]
fn null_pointers_are_refused() {
    let pair = Pair::new(64);
    let mut handle = [0u8; HANDLE_BYTES];
    let handle = handle.as_mut_ptr().cast();
    let (mut comm, mut mr, mut request) = (null_mut(), null_mut(), null_mut());
    let (mut done, null) = (0, null_mut());
    let mut data: *mut c_void = pair.to.as_ptr().cast_mut().cast();
    let (mut size, mut tag, mut to_mr) = (8usize, 0, pair.to_mr);
    // SAFETY: All pointers that are not null are valid.
    let codes = unsafe {
        [
            (net.devices)(null_mut()),
            (net.get_properties)(0, null_mut()),
            (net.listen)(0, null, &mut comm),
            (net.listen)(0, handle, null_mut()),
            (net.connect)(0, null, &mut comm, null),
            (net.connect)(0, handle, null_mut(), null),
            (net.accept)(pair.recv, null_mut(), null),
            (net.reg_mr)(pair.send, null, 8, PTR_HOST, &mut mr),
            (net.reg_mr)(pair.send, data, 8, PTR_HOST, null_mut()),
            (net.isend)(pair.send, data, 8, 0, null, &mut request),
            (net.isend)(pair.send, data, 8, 0, pair.from_mr, null_mut()),
            (net.irecv)(pair.recv, 1, null_mut(), &mut size, &mut tag, &mut to_mr, &mut request),
            (net.irecv)(pair.recv, 1, &mut data, null_mut(), &mut tag, &mut to_mr, &mut request),
            (net.irecv)(pair.recv, 1, &mut data, &mut size, null_mut(), &mut to_mr, &mut request),
            (net.irecv)(pair.recv, 1, &mut data, &mut size, &mut tag, null_mut(), &mut request),
            (net.irecv)(pair.recv, 1, &mut data, &mut size, &mut tag, &mut to_mr, null_mut()),
            (net.test)(pair.post(&[(0, 8, 0)]), null_mut(), null_mut()),
        ]
    };
    assert_eq!(codes, [Code::INVALID_ARGUMENT; 17]);
    // NCCL may pass null for the sizes.
    let send = pair.send(0, 8, 0);
    until("a send", || {
        // SAFETY: `done` has room for a flag.
        assert_eq!(unsafe { (net.test)(send, &mut done, null_mut()) }, Code::SUCCESS);
        (done == 1).then_some(())
    });
}

#[test]
fn what_is_no_comm_and_no_request_is_refused_by_every_call() {
    let pair = Pair::new(64);
    let mut data: *mut c_void = pair.to.as_ptr().cast_mut().cast();
    let (mut size, mut tag, mut mr, mut flushed) = (8usize, 0, pair.to_mr, 8);
    let (mut comm, mut request, mut done) = (null_mut(), null_mut(), 0);
    let closed = {
        let pair = Pair::new(64);
        pair.send
    };
    for wrong in [1usize, 0x1000, 0x7fff_ffff_f000, usize::MAX, closed.addr()] {
        let wrong: *mut c_void = ptr::without_provenance_mut(wrong);
        // SAFETY: All arguments except the comm are valid.
        let codes = unsafe {
            [
                (net.isend)(wrong, data, 8, 0, mr, &mut request),
                (net.irecv)(wrong, 1, &mut data, &mut size, &mut tag, &mut mr, &mut request),
                (net.iflush)(wrong, 1, &mut data, &mut flushed, &mut mr, &mut request),
                (net.test)(wrong, &mut done, null_mut()),
                (net.reg_mr)(wrong, data, 8, PTR_HOST, &mut mr),
                (net.dereg_mr)(wrong, pair.to_mr),
                (net.dereg_mr)(pair.recv, wrong),
                (net.accept)(wrong, &mut comm, null_mut()),
                (net.close_send)(wrong),
                (net.close_recv)(wrong),
                (net.close_listen)(wrong),
            ]
        };
        assert_eq!(codes, [Code::INTERNAL_ERROR; 11], "{wrong:p}");
    }
    // SAFETY: A null request names nothing, so the plugin accesses no memory through it.
    let code = unsafe { (net.test)(null_mut(), &mut done, null_mut()) };
    assert_eq!(code, Code::INTERNAL_ERROR);
}

#[test]
fn closing_nothing_succeeds_and_closing_twice_does_not() {
    let (pair, listening) = (Pair::new(64), Listening::new());
    let (send, recv, comm) = (pair.send, pair.recv, listening.comm);
    // These drops close the comms and check that closing succeeds.
    drop((pair, listening));
    // SAFETY: Nobody uses the comms any more.
    unsafe {
        for close in [net.close_send, net.close_recv, net.close_listen] {
            assert_eq!(close(null_mut()), Code::SUCCESS);
        }
        let comms = [(net.close_send, send), (net.close_recv, recv), (net.close_listen, comm)];
        for (close, comm) in comms {
            assert_eq!(close(comm), Code::INTERNAL_ERROR);
        }
    }
}

#[test]
fn the_wrong_end_is_refused() {
    let pair = Pair::new(64);
    let mut data: *mut c_void = pair.to.as_ptr().cast_mut().cast();
    let (mut size, mut tag, mut mr, mut flushed) = (8usize, 0, pair.to_mr, 8);
    let mut request = null_mut();
    // SAFETY: All arguments except the comm are valid.
    let codes = unsafe {
        [
            (net.isend)(pair.recv, data, 8, 0, mr, &mut request),
            (net.irecv)(pair.send, 1, &mut data, &mut size, &mut tag, &mut mr, &mut request),
            (net.iflush)(pair.send, 1, &mut data, &mut flushed, &mut mr, &mut request),
            (net.close_send)(pair.recv),
            (net.close_recv)(pair.send),
        ]
    };
    assert_eq!(codes, [Code::INTERNAL_ERROR; 5]);
}

#[test]
fn a_request_that_is_over_is_refused() {
    let pair = Pair::new(64);
    let (recv, send) = (pair.post(&[(0, 8, 0)]), pair.send(0, 8, 0));
    wait(&[recv, send]);
    for request in [recv, send] {
        assert_eq!(test(request), Err(Code::INTERNAL_ERROR));
    }
}

#[test]
fn numbers_and_sizes_out_of_range_are_refused() {
    let pair = Pair::new(64);
    for n in [0, 9, 100] {
        assert_eq!(pair.irecv(&vec![(0, 1, 0); n]).0, Code::INTERNAL_ERROR, "{n} buffers");
    }
    let too_long = 1 << 31;
    assert_eq!(pair.irecv(&[(0, too_long, 0)]).0, Code::INVALID_USAGE);
    pair.post(&[(0, 8, 0)]);
    assert_eq!(pair.isend(0, too_long, 0).0, Code::INVALID_USAGE);
    let (data, mut request) = (pair.from.as_ptr().cast_mut().cast(), null_mut());
    // SAFETY: All arguments except the size are valid.
    let code = unsafe { (v6.isend)(pair.send, data, -1, 0, pair.from_mr, &mut request) };
    assert_eq!(code, Code::INVALID_USAGE);
    let (mut handle, mut comm) = ([0u8; HANDLE_BYTES], null_mut());
    for device in [-1, 1, 1000] {
        // SAFETY: All arguments except the device are valid.
        let code = unsafe { (net.listen)(device, handle.as_mut_ptr().cast(), &mut comm) };
        assert_eq!(code, Code::INTERNAL_ERROR, "device {device}");
    }
}

/// NCCL 2.28 and 2.29 do so after `init` has failed.
#[test]
fn the_end_of_a_context_that_init_did_not_make_ends_nothing() {
    init();
    // SAFETY: a null context is allowed.
    assert_eq!(unsafe { (v11.tail.finalize)(null_mut()) }, Code::SUCCESS);
    let mut count = 0;
    // SAFETY: `count` has room for a number.
    assert_eq!(unsafe { (net.devices)(&mut count) }, Code::SUCCESS);
    assert_eq!(count, 1);
}

/// A plugin whose `init` fails is disabled for the whole process.
#[test]
fn a_traffic_class_out_of_range_fails_the_communicators_connections_and_not_its_init() {
    init();
    let (config, mut context) = (CommConfig { traffic_class: 256 }, null_mut());
    let (mut handle, mut comm) = ([0u8; HANDLE_BYTES], null_mut());
    // SAFETY: The configuration is valid, and there is room for a context, a handle and a comm.
    let codes = unsafe {
        [
            (v11.init)(&mut context, 0, &config, None, None),
            (v11.listen)(context, 0, handle.as_mut_ptr().cast(), &mut comm),
            (v11.tail.finalize)(context),
        ]
    };
    assert_eq!(codes, [Code::SUCCESS, Code::INVALID_USAGE, Code::SUCCESS]);
}
