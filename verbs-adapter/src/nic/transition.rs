//! State transitions of a queue pair, expressed in the attributes of libibverbs.

use std::ffi::c_int;
use std::mem;

use invar_core::nic::{AddressVector, Ece, NicError, QpTransition, RtrAttr, RtsAttr, Verb};

use super::handles::Qp;
use crate::sys::*;
use crate::{errno, gid};

/// The UDP port on which every RoCEv2 device receives packets (IBTA Annex A17).
const ROCE_UDP_PORT: u16 = 4791;

impl Qp {
    pub(super) fn modify(&self, transition: &QpTransition) -> Result<(), NicError> {
        if let QpTransition::Rtr(RtrAttr { ah, .. }) = transition
            && ![0, ROCE_UDP_PORT].contains(&ah.udp_port)
        {
            let cause = "this device sends to UDP port 4791 only, and the peer is a software NIC \
                         at another: set INVAR_SOFT_PORT=4791 there";
            let error = NicError::new(Verb::ModifyQp, 0, cause);
            return Err(error.with("the peer's UDP port", ah.udp_port));
        }
        let (mut attr, mask) = attributes(transition);
        // SAFETY: The queue pair exists, and the attributes that the mask names are set.
        let rc = unsafe { (self.library().modify_qp)(self.raw(), &mut attr, mask) };
        if rc == 0 {
            return Ok(());
        }
        let error = self.with_state(errno::of(Verb::ModifyQp, rc));
        Err(match transition {
            QpTransition::Init { pkey_index, port_num, .. } => {
                error.with("to INIT, port", *port_num).with("P_Key index", *pkey_index)
            }
            QpTransition::Rtr(RtrAttr { path_mtu, ah, .. }) => {
                let cause = self.trouble_with(ah).unwrap_or(error.cause);
                let error = NicError { cause, ..error }.with("to RTR, path MTU", path_mtu.bytes());
                if ah.is_global {
                    error.with("GID index", ah.sgid_index)
                } else {
                    error.with("peer's LID", ah.dlid)
                }
            }
            QpTransition::Rts(RtsAttr { timeout, retry_cnt, .. }) => {
                error.with("to RTS, timeout", *timeout).with("retries", *retry_cnt)
            }
            _ => error.with("to state", attr.qp_state),
        })
    }

    /// Adds the queue pair's state to an error that the state may have caused.
    #[cold]
    pub(super) fn with_state(&self, error: NicError) -> NicError {
        match self.state().filter(|_| error.errno == libc::EINVAL) {
            Some(state) => error.with(state, self.qp_num()),
            None => error,
        }
    }

    /// Returns the state of the queue pair, if libibverbs can tell (`ibv_query_qp`).
    fn state(&self) -> Option<&'static str> {
        let query_qp = self.library().query_qp?;
        // SAFETY: The types consist of integers and pointers, for which all zeros is a valid value.
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { mem::zeroed() };
        // SAFETY: The queue pair exists, and both arguments have room for the result.
        let rc = unsafe { query_qp(self.raw(), &mut attr, IBV_QP_STATE, &mut init) };
        if rc != 0 {
            return None;
        }
        Some(match attr.qp_state {
            IBV_QPS_RESET => "in RESET, QP",
            IBV_QPS_INIT => "in INIT, QP",
            IBV_QPS_RTR => "in RTR, QP",
            IBV_QPS_RTS => "in RTS, QP",
            IBV_QPS_SQD => "in SQD, QP",
            IBV_QPS_SQE => "in SQE, QP",
            IBV_QPS_ERR => "in ERR, QP",
            _ => "in a state unknown here, QP",
        })
    }

    pub(super) fn ece(&self) -> Option<Ece> {
        let query_ece = self.library().query_ece?;
        let mut ece = ibv_ece::default();
        // SAFETY: The queue pair exists, and `ece` has room for the result.
        let rc = unsafe { query_ece(self.raw(), &mut ece) };
        let ibv_ece { vendor_id, options, comp_mask } = ece;
        // A driver may have the call and report vendor 0, or, as mlx5 without ECE in the firmware, no options.
        (rc == 0 && vendor_id != 0 && options != 0).then_some(Ece { vendor_id, options, comp_mask })
    }

    pub(super) fn set_ece(&self, ece: &Ece) -> Result<(), NicError> {
        let Ece { vendor_id, options, comp_mask } = *ece;
        let mut raw = ibv_ece { vendor_id, options, comp_mask };
        // SAFETY: The queue pair exists.
        let set = self.library().set_ece.map(|set_ece| unsafe { set_ece(self.raw(), &mut raw) });
        match set.unwrap_or(libc::EOPNOTSUPP) {
            // Without ECE the queue pair does what the verbs say, as over NCCL (`ibvwrap.cc wrap_ibv_set_ece`).
            0 | libc::EOPNOTSUPP => Ok(()),
            rc => {
                Err(errno::of(Verb::SetEce, rc).with("vendor", vendor_id).with("options", options))
            }
        }
    }

    /// Looks for a reason why a queue pair cannot reach a peer that is named by GID.
    fn trouble_with(&self, ah: &AddressVector) -> Option<&'static str> {
        if !ah.is_global {
            return None;
        }
        let Some(ours) = gid::read(self.opened(), ah.port_num, ah.sgid_index) else {
            return Some("our GID is gone: has its interface lost the address?");
        };
        (ours.gid.ip().is_ipv4() != ah.dgid.ip().is_ipv4()).then_some(
            "our GID and the peer's are not both of IPv4, or both of IPv6: set \
             NCCL_IB_ADDR_FAMILY or NCCL_IB_GID_INDEX, and see `invar devices` at both ends",
        )
    }
}

/// Returns the attributes of a transition and the mask of those that it sets (IBTA §11.2.5.2).
fn attributes(transition: &QpTransition) -> (ibv_qp_attr, c_int) {
    // SAFETY: The type consists of integers, for which all zeros is a valid value.
    let mut attr: ibv_qp_attr = unsafe { mem::zeroed() };
    let (state, mask) = match transition {
        QpTransition::Reset => (IBV_QPS_RESET, 0),
        QpTransition::Init { pkey_index, port_num, access } => {
            attr.pkey_index = *pkey_index;
            attr.port_num = *port_num;
            attr.qp_access_flags = access.bits();
            (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
        }
        QpTransition::Rtr(rtr) => {
            attr.path_mtu = rtr.path_mtu as u32;
            attr.dest_qp_num = rtr.dest_qp_num;
            attr.rq_psn = rtr.rq_psn;
            attr.max_dest_rd_atomic = rtr.max_dest_rd_atomic;
            attr.min_rnr_timer = rtr.min_rnr_timer;
            let ah = &rtr.ah;
            attr.ah_attr.is_global = ah.is_global.into();
            attr.ah_attr.grh.dgid.raw = ah.dgid.0;
            attr.ah_attr.grh.sgid_index = ah.sgid_index;
            attr.ah_attr.grh.hop_limit = ah.hop_limit;
            attr.ah_attr.grh.traffic_class = ah.traffic_class;
            attr.ah_attr.dlid = ah.dlid;
            attr.ah_attr.sl = ah.sl;
            attr.ah_attr.port_num = ah.port_num;
            let address = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN;
            let receiving = IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            (IBV_QPS_RTR, address | receiving)
        }
        QpTransition::Rts(rts) => {
            attr.timeout = rts.timeout;
            attr.retry_cnt = rts.retry_cnt;
            attr.rnr_retry = rts.rnr_retry;
            attr.sq_psn = rts.sq_psn;
            attr.max_rd_atomic = rts.max_rd_atomic;
            let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
            (IBV_QPS_RTS, retries | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
        }
        QpTransition::Sqd => (IBV_QPS_SQD, 0),
        QpTransition::Resume => (IBV_QPS_RTS, 0),
        QpTransition::Err => (IBV_QPS_ERR, 0),
    };
    attr.qp_state = state;
    (attr, mask | IBV_QP_STATE)
}
