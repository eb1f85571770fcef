//! Tests memory registrations.

use nccl_net_invar::abi::{PTR_CUDA, PTR_DMABUF};
use nccl_net_invar::tables::ncclNetPlugin_v6 as v6;

use super::rig::*;

#[test]
fn pages_that_are_registered_are_not_registered_again() {
    let pair = Pair::new(64 << 10);
    let (again, once_more) = (reg(pair.send, &pair.from), reg(pair.send, &pair.from));
    assert_eq!((again, once_more), (pair.from_mr, pair.from_mr));
    // SAFETY: No transfer uses the registrations.
    unsafe {
        assert_eq!((net.dereg_mr)(pair.send, again), Code::SUCCESS);
        assert_eq!((net.dereg_mr)(pair.send, once_more), Code::SUCCESS);
    }
    // The first registration is still valid.
    let (recv, send) = (pair.post(&[(0, 64 << 10, 0)]), pair.send(0, 64 << 10, 0));
    wait(&[recv, send]);
    assert_eq!(pair.to, pair.from);
}

/// Afterwards the owner may unmap the whole memory, so no transfer may access it any more.
#[test]
fn a_registration_ends_though_a_part_of_it_is_registered_too() {
    let pair = Pair::new(4096);
    let memory = vec![1u8; 1 << 20];
    let whole = reg(pair.send, &memory);
    let part = reg(pair.send, &memory[8192..12288]);
    assert_ne!(whole, part);
    // SAFETY: No transfer uses the registrations.
    unsafe {
        assert_eq!((net.dereg_mr)(pair.send, whole), Code::SUCCESS);
        assert_eq!((net.dereg_mr)(pair.send, whole), Code::INTERNAL_ERROR);
        assert_eq!((net.dereg_mr)(pair.send, part), Code::SUCCESS);
    }
}

#[test]
fn a_registration_ends_with_its_last_reference() {
    let pair = Pair::new(4096);
    let memory = vec![1u8; 1 << 20];
    let mr = reg(pair.send, &memory);
    // SAFETY: No transfer uses the registration.
    unsafe {
        assert_eq!((net.dereg_mr)(pair.send, mr), Code::SUCCESS);
        assert_eq!((net.dereg_mr)(pair.send, mr), Code::INTERNAL_ERROR);
    }
}

#[test]
fn ending_no_registration_succeeds() {
    let pair = Pair::new(4096);
    for comm in [pair.send, pair.recv] {
        // SAFETY: A null registration names nothing, so the call ends nothing.
        assert_eq!(unsafe { (net.dereg_mr)(comm, ptr::null_mut()) }, Code::SUCCESS);
    }
}

#[test]
fn a_registration_is_good_for_every_comm_of_the_device() {
    let (one, other) = (Pair::new(4096), Pair::new(4096));
    let mr = reg(one.send, &one.from);
    // SAFETY: No transfer uses the registration.
    assert_eq!(unsafe { (net.dereg_mr)(other.recv, mr) }, Code::SUCCESS);
}

#[test]
fn only_host_memory_that_there_is_can_be_registered() {
    let pair = Pair::new(4096);
    let data = pair.from.as_ptr().cast_mut().cast();
    let mut mr = ptr::null_mut();
    // SAFETY: The plugin refuses each call before it accesses the memory.
    unsafe {
        for (size, kind) in [(8, 4), (8, 0), (0, PTR_HOST), (usize::MAX, PTR_HOST)] {
            let code = (net.reg_mr)(pair.send, data, size, kind, &mut mr);
            assert_eq!(code, Code::INTERNAL_ERROR, "{size} bytes of type {kind}");
        }
        let code = (v6.reg_mr)(pair.send, data, -8, PTR_HOST, &mut mr);
        assert_eq!(code, Code::INTERNAL_ERROR);
    }
}

#[test]
fn memory_of_a_gpu_is_refused_where_the_device_does_not_reach_it() {
    let pair = Pair::new(4096);
    let data = pair.from.as_ptr().cast_mut().cast();
    let mut mr = ptr::null_mut();
    let reg_dma_buf = net.reg_mr_dma_buf;
    // SAFETY: The plugin refuses each call before it accesses the memory.
    unsafe {
        let code = (net.reg_mr)(pair.send, data, 8, PTR_CUDA, &mut mr);
        assert_ne!(code, Code::SUCCESS, "without CUDA, and host memory");
        assert_ne!(reg_dma_buf(pair.send, data, 8, PTR_CUDA, 0, 0, &mut mr), Code::SUCCESS);
        for (kind, fd) in [(PTR_CUDA, -1), (PTR_HOST, 0), (PTR_DMABUF, 0)] {
            let code = reg_dma_buf(pair.send, data, 8, kind, 0, fd, &mut mr);
            assert_eq!(code, Code::INTERNAL_ERROR, "type {kind}, descriptor {fd}");
        }
        let code = reg_dma_buf(pair.send, ptr::null_mut(), 8, PTR_CUDA, 0, 0, &mut mr);
        assert_ne!(code, Code::SUCCESS);
    }
    assert!(mr.is_null());
}
