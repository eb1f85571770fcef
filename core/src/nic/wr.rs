//! Work requests and work completions.

use core::mem::offset_of;

use static_assertions::{assert_eq_size, const_assert_eq};

/// A local buffer (`struct ibv_sge`). Length 0 stands for no buffer at all: address and key are
/// then not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the region that holds it.
    pub lkey: u32,
}

/// `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SendOpcode {
    /// RDMA WRITE.
    #[default]
    RdmaWrite = 0,
    /// RDMA WRITE that also completes a receive of the peer.
    RdmaWriteWithImm = 1,
    /// SEND.
    Send = 2,
    /// SEND with immediate.
    SendWithImm = 3,
    /// RDMA READ.
    RdmaRead = 4,
}

bitflags::bitflags! {
    /// `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct SendFlags: u32 {
        /// A completion is wanted.
        const SIGNALED = 1 << 1;
        /// The peer's completion asks for an event.
        const SOLICITED = 1 << 2;
        /// The bytes are taken while posting; lkey is not looked at.
        const INLINE = 1 << 3;
    }
}

/// `ibv_send_wr::num_sge`: a driver reads as many buffers behind `sg_list`, and a [`SendWr`] has
/// room for one. So a program cannot say more:
///
/// ```compile_fail,E0308
/// use invar_core::nic::SendWr;
///
/// let _ = SendWr { num_sge: 2, ..SendWr::default() };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum NumSge {
    /// No buffer.
    #[default]
    Zero = 0,
    /// [`SendWr::sge`].
    One = 1,
}

/// A pointer of a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Link(usize);

impl Link {
    /// To nothing.
    pub const NULL: Link = Link(0);

    /// To what a driver reads through it.
    #[inline(always)]
    pub fn to<T>(target: *mut T) -> Self {
        Link(target.expose_provenance())
    }
}

/// `struct ibv_send_wr`, one buffer at most, laid out as that is as far as `rkey`, where RDMA and
/// SEND end: an adapter can hand it to a driver as it lies. For that `next`, `sg_list` and `num_sge`
/// are set, by [`SendList`](super::SendList) or the adapter; nobody else looks at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next of a chain.
    pub next: Link,
    /// To `sge`.
    pub sg_list: Link,
    /// How many buffers `sg_list` is of.
    pub num_sge: NumSge,
    /// What to do.
    pub opcode: SendOpcode,
    /// How.
    pub flags: SendFlags,
    /// Immediate data: four bytes that travel as they lie in memory, as `ibv_send_wr::imm_data`
    /// does. NCCL puts a host-order integer there, and so do we.
    pub imm_data: u32,
    /// Start of the peer's memory (WRITE, READ).
    pub remote_addr: u64,
    /// Key of the peer's memory (WRITE, READ).
    pub rkey: u32,
    /// Local bytes: source of WRITE and SEND, target of READ.
    pub sge: Sge,
}

const_assert_eq!(offset_of!(SendWr, opcode), 28);
const_assert_eq!(offset_of!(SendWr, rkey), 48);

/// Nothing, in a field that only an adapter needs, in requests of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Nought<T>(T);

/// `struct ibv_recv_wr`, one buffer at most. One without a buffer lies as a driver takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The next of a chain.
    pub next: Nought<usize>,
    /// To `sge`.
    pub sg_list: Nought<usize>,
    /// Buffers.
    pub num_sge: Nought<u32>,
    /// Where a SEND goes; unused by WRITE_WITH_IMM.
    pub sge: Sge,
}

/// `enum ibv_wc_opcode`: what completed. A code that this table does not know is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct WcOpcode(pub u32);

impl WcOpcode {
    /// A SEND of ours.
    pub const SEND: Self = Self(0);
    /// A WRITE of ours.
    pub const RDMA_WRITE: Self = Self(1);
    /// A READ of ours.
    pub const RDMA_READ: Self = Self(2);
    /// A SEND of the peer.
    pub const RECV: Self = Self(128);
    /// A WRITE_WITH_IMM of the peer.
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);
}

/// `enum ibv_wc_status`. A code that this table does not know is kept.
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
    /// `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct WcFlags: u32 {
        /// There is immediate data.
        const WITH_IMM = 1 << 1;
    }
}

/// `struct ibv_wc`, of the same layout: libibverbs can fill an array of them. Where `status` is
/// not success only `wr_id`, `status`, `qp_num` and `vendor_err` mean anything (IBTA §11.4.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wc {
    /// Of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The vendor's own code; for the software NIC the AETH syndrome, if there was one.
    pub vendor_err: u32,
    /// Bytes received, or read.
    pub byte_len: u32,
    /// The peer's immediate data, if `flags` says so; see [`SendWr::imm_data`].
    pub imm_data: u32,
    /// Our queue pair.
    pub qp_num: u32,
    /// The peer's queue pair; of datagrams, as is what follows `flags`.
    pub src_qp: u32,
    /// What more there is.
    pub flags: WcFlags,
    /// P_Key index.
    pub pkey_index: u16,
    /// The peer's LID.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the LID that was sent to.
    pub dlid_path_bits: u8,
}

assert_eq_size!(Wc, [u8; 48]);
const_assert_eq!(offset_of!(Wc, flags), 36);
