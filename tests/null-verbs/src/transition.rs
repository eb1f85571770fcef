//! Translates the attributes of `ibv_modify_qp` into transitions of a queue pair.

use std::ffi::c_int;

use invar_core::nic::{Access, AddressVector, Gid, Mtu, QpOptions, QpTransition, RtrAttr, RtsAttr};
use invar_verbs::sys::*;

use crate::fabric;
use crate::resource::index;

/// The attributes that the transition to INIT needs (IBTA §11.2.5.2). RTR and RTS follow.
const INIT: c_int = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
const RTR: c_int = IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const RTS: c_int =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller gives valid attributes.
    let attr = unsafe { &*attr };
    let Some(transition) = transition(attr, mask) else { return libc::EINVAL };
    match fabric().modify_qp(index(qp), &transition) {
        Ok(()) => 0,
        Err(error) => error.errno,
    }
}

/// The transition that the attributes ask for. Returns `None` if attributes are missing or superfluous,
/// or have invalid values.
fn transition(attr: &ibv_qp_attr, mask: c_int) -> Option<QpTransition> {
    let given = mask & !IBV_QP_STATE;
    if mask == given {
        return None;
    }
    let (transition, needed) = match attr.qp_state {
        IBV_QPS_RESET => (QpTransition::Reset, 0),
        IBV_QPS_INIT => {
            let access = Access::from_bits_truncate(attr.qp_access_flags);
            let ibv_qp_attr { pkey_index, port_num, .. } = *attr;
            (QpTransition::Init { pkey_index, port_num, access }, INIT)
        }
        IBV_QPS_RTR => (QpTransition::Rtr(rtr(attr)?), RTR),
        IBV_QPS_RTS if given == 0 => (QpTransition::Resume, 0),
        IBV_QPS_RTS => {
            let ibv_qp_attr { timeout, retry_cnt, rnr_retry, sq_psn, max_rd_atomic, .. } = *attr;
            let rts = RtsAttr { timeout, retry_cnt, rnr_retry, sq_psn, max_rd_atomic };
            (QpTransition::Rts(rts), RTS)
        }
        IBV_QPS_SQD => (QpTransition::Sqd, 0),
        IBV_QPS_ERR => (QpTransition::Err, 0),
        _ => return None,
    };
    (given == needed).then_some(transition)
}

fn rtr(attr: &ibv_qp_attr) -> Option<RtrAttr> {
    let ibv_ah_attr { grh, dlid, sl, is_global, port_num, .. } = attr.ah_attr;
    Some(RtrAttr {
        path_mtu: Mtu::from_code(attr.path_mtu)?,
        long_mtu_bytes: 0,
        dest_qp_num: attr.dest_qp_num,
        rq_psn: attr.rq_psn,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        ah: AddressVector {
            is_global: is_global != 0,
            dgid: Gid(grh.dgid.raw),
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            dlid,
            sl,
            port_num,
            udp_port: 0,
            udp_source_port: 0,
        },
        options: QpOptions::empty(),
        packet_keys: None,
        peer_host: None,
    })
}
