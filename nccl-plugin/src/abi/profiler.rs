//! What a profiler plugin is told of network work (NCCL's `net_ib_v1.h` and `net_socket_v1.h`).

use std::ffi::c_int;

/// `ncclProfilerNetIbDescr_v1_t` and `ncclProfilerNetSockDescr_v1_t`: a kind, and the one thing
/// that it can be about.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Description<T> {
    /// `ncclProfileQp` or `ncclProfileSocket`: the first and only kind of each, 1.
    pub kind: u8,
    /// What it is about.
    pub about: T,
}

/// Work on a queue pair.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QpWork {
    /// Number of the device.
    pub device: c_int,
    /// Of the work request.
    pub wr_id: u64,
    /// Of the verbs: `IBV_WR_RDMA_WRITE_WITH_IMM`; `IBV_WR_RDMA_WRITE` in a group, or ahead of that;
    /// `IBV_WC_RECV_RDMA_WITH_IMM`.
    pub opcode: c_int,
    /// Number of the queue pair.
    pub qp_num: c_int,
    /// Bytes that it carries; a receive has no buffer.
    pub length: usize,
}

/// Work on a socket.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SocketWork {
    /// Its descriptor.
    pub fd: c_int,
    /// `NCCL_SOCKET_SEND` (0) or `NCCL_SOCKET_RECV` (1).
    pub op: c_int,
    /// Bytes.
    pub length: usize,
}
