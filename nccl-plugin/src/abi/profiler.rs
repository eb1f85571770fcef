//! Descriptions of network work for a profiler plugin (NCCL's `net_ib_v1.h` and `net_socket_v1.h`).

use std::ffi::c_int;

/// `ncclProfilerNetIbDescr_v1_t` and `ncclProfilerNetSockDescr_v1_t`: a kind, and the work that the
/// event describes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Description<T> {
    /// `ncclProfileQp` or `ncclProfileSocket`: both are 1, the only kind of their description.
    pub kind: u8,
    /// The work that the event describes.
    pub about: T,
}

/// Work on a queue pair.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QpWork {
    /// NCCL's number of the device.
    pub device: c_int,
    /// `wr_id` of the work request.
    pub wr_id: u64,
    /// Verbs opcode: `IBV_WR_RDMA_WRITE_WITH_IMM` for the last write of a message or a group,
    /// `IBV_WR_RDMA_WRITE` for writes before it, `IBV_WC_RECV_RDMA_WITH_IMM` for a receive.
    pub opcode: c_int,
    /// Number of the queue pair.
    pub qp_num: c_int,
    /// Bytes that the work request carries; 0 for a receive, which has no buffer.
    pub length: usize,
}

/// Work on a socket.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SocketWork {
    /// File descriptor of the socket.
    pub fd: c_int,
    /// `NCCL_SOCKET_SEND` (0) or `NCCL_SOCKET_RECV` (1).
    pub op: c_int,
    /// Length of the message in bytes.
    pub length: usize,
}
