//! Work requests and work completions.

use core::mem::offset_of;

use static_assertions::{assert_eq_size, const_assert_eq};

/// A local buffer (`struct ibv_sge`). A length of 0 means that there is no buffer; the address and the
/// key are then ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region that contains the buffer.
    pub lkey: u32,
}

/// Operation of a send work request (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SendOpcode {
    /// RDMA WRITE into memory of the peer, which does not notice it.
    #[default]
    RdmaWrite = 0,
    /// RDMA WRITE that also completes a receive of the peer.
    RdmaWriteWithImm = 1,
    /// SEND into the buffer of the next receive of the peer.
    Send = 2,
    /// SEND with immediate data.
    SendWithImm = 3,
    /// RDMA READ from memory of the peer, which does not notice it.
    RdmaRead = 4,
    /// SEND that also invalidates the key of a memory window of the peer. [`SendWr::imm_data`] is the key.
    SendWithInv = 9,
}

/// An operation on the send queue that sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalOp {
    /// Binds a memory window (`IBV_WR_BIND_MW`).
    BindWindow,
    /// Invalidates the key of a memory window (`IBV_WR_LOCAL_INV`).
    Invalidate,
}

/// An atomic operation on an aligned 8-byte word of the peer's memory (`ibv_send_wr::wr.atomic`). The word
/// has the peer's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// Replaces the word by `swap` if it equals `compare`.
    CompareSwap {
        /// The value to compare the word with.
        compare: u64,
        /// The new word.
        swap: u64,
    },
    /// Adds to the word and ignores the carry.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
}

impl Atomic {
    /// Length of the word in bytes.
    pub const BYTES: u32 = 8;

    /// Returns the word after the operation.
    pub fn apply(self, word: u64) -> u64 {
        match self {
            Atomic::CompareSwap { compare, swap } => {
                if word == compare {
                    swap
                } else {
                    word
                }
            }
            Atomic::FetchAdd { add } => word.wrapping_add(add),
        }
    }
}

bitflags::bitflags! {
    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct SendFlags: u32 {
        /// The request starts after all READs before it are done. No part of Invar's protocol asks for
        /// this.
        const FENCE = 1;
        /// The work request asks for a completion.
        const SIGNALED = 1 << 1;
        /// The peer's completion raises an event.
        const SOLICITED = 1 << 2;
        /// The bytes are copied while posting; the lkey is ignored.
        const INLINE = 1 << 3;
    }
}

/// Number of buffers of a work request (`ibv_send_wr::num_sge`). A driver reads this number of buffers
/// behind `sg_list`, and a [`SendWr`] has room for one. So the type allows no larger number:
///
/// ```compile_fail,E0308
/// use invar_core::nic::SendWr;
///
/// let _ = SendWr { num_sge: 2, ..SendWr::default() };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum NumSge {
    /// The request has no buffer.
    #[default]
    Zero = 0,
    /// The request has one buffer, [`SendWr::sge`].
    One = 1,
}

/// A pointer inside a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Link(usize);

impl Link {
    /// The null pointer.
    pub const NULL: Link = Link(0);

    /// A pointer to `target`, which a driver may read through it.
    #[inline(always)]
    pub fn to<T>(target: *mut T) -> Self {
        Link(target.expose_provenance())
    }
}

/// A send work request with at most one buffer (`struct ibv_send_wr`). Up to `rkey`, where RDMA and
/// SEND end, the layout is that of libibverbs, so an adapter can pass it to a driver directly. For such
/// a driver [`SendList`](super::SendList) or the adapter sets `next`, `sg_list` and `num_sge`; no other
/// code reads these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SendWr {
    /// Number that the completion returns.
    pub wr_id: u64,
    /// Pointer to the next request of a chain.
    pub next: Link,
    /// Pointer to `sge`.
    pub sg_list: Link,
    /// The number of buffers at `sg_list`.
    pub num_sge: NumSge,
    /// Operation of the request.
    pub opcode: SendOpcode,
    /// Flags of the request.
    pub flags: SendFlags,
    /// Immediate data: four bytes that travel as they lie in memory, like `ibv_send_wr::imm_data`. NCCL
    /// and Invar put an integer in host order there.
    pub imm_data: u32,
    /// Address of the peer's memory (WRITE, READ).
    pub remote_addr: u64,
    /// Key of the peer's memory (WRITE, READ).
    pub rkey: u32,
    /// Local bytes: source of WRITE and SEND, target of READ.
    pub sge: Sge,
}

const_assert_eq!(offset_of!(SendWr, opcode), 28);
const_assert_eq!(offset_of!(SendWr, rkey), 48);

/// A field that is always zero here. Only an adapter uses this field, in requests of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Nought<T>(T);

/// A receive work request with at most one buffer (`struct ibv_recv_wr`). A driver can take a request
/// without a buffer directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecvWr {
    /// Number that the completion returns.
    pub wr_id: u64,
    /// Pointer to the next request of a chain.
    pub next: Nought<usize>,
    /// Pointer to `sge`.
    pub sg_list: Nought<usize>,
    /// The number of buffers.
    pub num_sge: Nought<u32>,
    /// Destination of a SEND; WRITE_WITH_IMM does not use it.
    pub sge: Sge,
}

/// Operation that completed (`enum ibv_wc_opcode`). Codes without a name here are kept as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcOpcode(pub u32);

impl WcOpcode {
    /// Completion of a SEND of this end.
    pub const SEND: Self = Self(0);
    /// Completion of a WRITE of this end.
    pub const RDMA_WRITE: Self = Self(1);
    /// Completion of a READ of this end.
    pub const RDMA_READ: Self = Self(2);
    /// Completion of an atomic COMPARE_SWAP of this end.
    pub const COMP_SWAP: Self = Self(3);
    /// Completion of an atomic FETCH_ADD of this end.
    pub const FETCH_ADD: Self = Self(4);
    /// Completion of a bind of a memory window.
    pub const BIND_MW: Self = Self(5);
    /// Completion of a local invalidation.
    pub const LOCAL_INV: Self = Self(6);
    /// Completion of a receive by a SEND of the peer.
    pub const RECV: Self = Self(128);
    /// Completion of a receive by a WRITE_WITH_IMM of the peer.
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);
}

/// Status of a completion (`enum ibv_wc_status`). Codes without a name here are kept as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcStatus(pub u32);

#[expect(missing_docs, reason = "the names and values of verbs.h; docs: `WcStatus::hint`")]
impl WcStatus {
    pub const SUCCESS: Self = Self(0);
    pub const LOC_LEN_ERR: Self = Self(1);
    pub const LOC_QP_OP_ERR: Self = Self(2);
    pub const LOC_EEC_OP_ERR: Self = Self(3);
    pub const LOC_PROT_ERR: Self = Self(4);
    pub const WR_FLUSH_ERR: Self = Self(5);
    pub const MW_BIND_ERR: Self = Self(6);
    pub const BAD_RESP_ERR: Self = Self(7);
    pub const LOC_ACCESS_ERR: Self = Self(8);
    pub const REM_INV_REQ_ERR: Self = Self(9);
    pub const REM_ACCESS_ERR: Self = Self(10);
    pub const REM_OP_ERR: Self = Self(11);
    pub const RETRY_EXC_ERR: Self = Self(12);
    pub const RNR_RETRY_EXC_ERR: Self = Self(13);
    pub const LOC_RDD_VIOL_ERR: Self = Self(14);
    pub const REM_INV_RD_REQ_ERR: Self = Self(15);
    pub const REM_ABORT_ERR: Self = Self(16);
    pub const INV_EECN_ERR: Self = Self(17);
    pub const INV_EEC_STATE_ERR: Self = Self(18);
    pub const FATAL_ERR: Self = Self(19);
    pub const RESP_TIMEOUT_ERR: Self = Self(20);
    pub const GENERAL_ERR: Self = Self(21);
    pub const TM_ERR: Self = Self(22);
    pub const TM_RNDV_INCOMPLETE: Self = Self(23);
}

bitflags::bitflags! {
    /// Flags of a completion (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct WcFlags: u32 {
        /// A global route header lies in front of the received bytes.
        const GRH = 1;
        /// The completion has immediate data.
        const WITH_IMM = 1 << 1;
        /// The SEND has invalidated a key, which lies in the place of the immediate data.
        const WITH_INV = 1 << 3;
    }
}

/// A work completion with the layout of `struct ibv_wc`, so libibverbs can fill an array of them. If
/// `status` is not success, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid (IBTA
/// §11.4.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wc {
    /// Number of the work request that completed.
    pub wr_id: u64,
    /// Status of the work request.
    pub status: WcStatus,
    /// Operation of the work request.
    pub opcode: WcOpcode,
    /// Error code of the vendor. The software NIC reports the AETH syndrome here, if there was one.
    pub vendor_err: u32,
    /// Number of bytes received or read.
    pub byte_len: u32,
    /// The peer's immediate data, if `flags` has [`WcFlags::WITH_IMM`]; see [`SendWr::imm_data`].
    pub imm_data: u32,
    /// Number of this end's queue pair.
    pub qp_num: u32,
    /// Number of the peer's queue pair. Only datagrams set this field and the fields behind `flags`.
    pub src_qp: u32,
    /// Flags that tell which further fields are valid.
    pub flags: WcFlags,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// The peer's LID.
    pub slid: u16,
    /// Service level. For a datagram over RoCE: the packet's headers, as mlx5 encodes them.
    pub sl: u8,
    /// Low bits of the destination LID.
    pub dlid_path_bits: u8,
}

assert_eq_size!(Wc, [u8; 48]);
const_assert_eq!(offset_of!(Wc, flags), 36);
