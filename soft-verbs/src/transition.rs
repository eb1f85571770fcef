//! `ibv_modify_qp`: the attributes that each move of a queue pair needs and takes.

use std::ffi::c_int;
use std::mem;
use std::sync::PoisonError;

use invar_core::nic::{Access, AddressVector, Mtu, Nic, QpTransition, RtrAttr, RtsAttr};
use invar_core::roce::Psn;
use invar_core::roce::qp::QpUpdate;
use invar_verbs::sys::provider::{IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, ibv_qp};
use invar_verbs::sys::*;

use crate::address;
use crate::errno;
use crate::object;
use crate::peers;
use crate::queue_pair::{Qp, state_code};

versions! {
    "IBVERBS_1.1":
        ibv_modify_qp;
}

const TO_INIT: c_int = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
/// The attributes of its peer that a connection needs.
const TO_RTR: c_int = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const TO_RTR_RELIABLE: c_int = TO_RTR | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
/// How a reliable connection sends. The attributes may change in SQD.
const SENDS: c_int = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

/// The attributes of a transport service.
struct Attributes {
    /// May change while the queue pair works.
    working: c_int,
    /// May change in SQD as well.
    drained: c_int,
    init: c_int,
    rtr: c_int,
    rts: c_int,
}

fn attributes(qp_type: u32) -> Attributes {
    match qp_type {
        IBV_QPT_UD => Attributes {
            working: IBV_QP_QKEY,
            drained: IBV_QP_PKEY_INDEX,
            init: TO_INIT | IBV_QP_QKEY,
            rtr: 0,
            rts: IBV_QP_SQ_PSN,
        },
        IBV_QPT_UC => Attributes {
            working: IBV_QP_ACCESS_FLAGS,
            drained: IBV_QP_PKEY_INDEX,
            init: TO_INIT | IBV_QP_ACCESS_FLAGS,
            rtr: TO_RTR,
            rts: IBV_QP_SQ_PSN,
        },
        _ => Attributes {
            working: IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER,
            drained: SENDS | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_PKEY_INDEX | IBV_QP_PORT,
            init: TO_INIT | IBV_QP_ACCESS_FLAGS,
            rtr: TO_RTR_RELIABLE,
            rts: SENDS | IBV_QP_SQ_PSN,
        },
    }
}

/// The attributes that a move needs, and those that it also takes (IBTA table 91). A queue pair that is in
/// RESET cannot fail, as in Linux (`ib_core`'s `qp_state_table`).
fn masks(qp_type: u32, from: u32, to: u32) -> Result<(c_int, c_int), c_int> {
    let Attributes { working, drained, init, rtr, rts } = attributes(qp_type);
    let rights = working & !IBV_QP_MIN_RNR_TIMER;
    Ok(match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_ERR) => return Err(libc::EINVAL),
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => (init, 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => (0, init),
        (IBV_QPS_INIT, IBV_QPS_RTR) => (rtr, rights | IBV_QP_PKEY_INDEX),
        (IBV_QPS_RTR, IBV_QPS_RTS) => (rts, working),
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => (0, working),
        (IBV_QPS_SQD, IBV_QPS_SQD) => (0, working | drained),
        (IBV_QPS_RTS, IBV_QPS_SQD) => (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        _ => return Err(libc::EINVAL),
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller gives attributes, and those of the mask are set. The others have integers.
    errno::status(object::get::<Qp>(qp).and_then(|object| {
        // SAFETY: the caller gives valid attributes.
        let state = modify(object, unsafe { &*attr }, mask)?;
        // SAFETY: the queue pair lives, and the program does not change it elsewhere meanwhile.
        unsafe { (&raw mut (*qp).state).write(state) };
        Ok(())
    }))
}

fn modify(qp: &Qp, attr: &ibv_qp_attr, mask: c_int) -> Result<u32, c_int> {
    // Programs give a random number as a PSN, and rxe and mlx5 cut it to 24 bits.
    let [rq_psn, sq_psn] = [attr.rq_psn, attr.sq_psn].map(|psn| psn & Psn::MASK);
    let attr = &ibv_qp_attr { rq_psn, sq_psn, ..*attr };
    let mut known = qp.attr.lock().unwrap_or_else(PoisonError::into_inner);
    let from = state_code(qp.pair.state());
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { from };
    let (needed, taken) = masks(qp.base().qp_type, from, to)?;
    let given = mask & !(IBV_QP_STATE | IBV_QP_CUR_STATE);
    if given & needed != needed || given & !(needed | taken) != 0 {
        return Err(libc::EINVAL);
    }
    let has = |flag| given & flag != 0;
    if has(IBV_QP_PORT) && attr.port_num != 1 || has(IBV_QP_PKEY_INDEX) && attr.pkey_index != 0 {
        return Err(libc::EINVAL);
    }
    let is_reliable = qp.base().qp_type == IBV_QPT_RC;
    let access = || Access::from_bits_truncate(attr.qp_access_flags);
    let mut update = QpUpdate {
        access: has(IBV_QP_ACCESS_FLAGS).then(access),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        ..QpUpdate::default()
    };
    let move_ = match (from, to) {
        (_, IBV_QPS_RESET) => Some(QpTransition::Reset),
        (_, IBV_QPS_ERR) => Some(QpTransition::Err),
        (IBV_QPS_RESET, _) => {
            let access = update.access.take().unwrap_or(Access::empty());
            Some(QpTransition::Init { pkey_index: 0, port_num: 1, access })
        }
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            update.min_rnr_timer = None;
            Some(QpTransition::Rtr(match qp.base().qp_type {
                IBV_QPT_UD => RtrAttr { path_mtu: port_mtu(qp)?, ..RtrAttr::default() },
                _ => rtr(qp, attr)?,
            }))
        }
        (IBV_QPS_RTR, _) if !is_reliable => {
            Some(QpTransition::Rts(RtsAttr { sq_psn: attr.sq_psn, ..RtsAttr::default() }))
        }
        (IBV_QPS_RTR, _) => Some(QpTransition::Rts(rts(attr))),
        (IBV_QPS_RTS, IBV_QPS_SQD) => Some(QpTransition::Sqd),
        (IBV_QPS_SQD, IBV_QPS_RTS) => Some(QpTransition::Resume),
        (IBV_QPS_SQD, IBV_QPS_SQD) => {
            let mut sends = *known;
            note(&mut sends, attr, given);
            update.sends = (given & SENDS != 0).then(|| rts(&sends));
            update.max_dest_rd_atomic =
                has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
            None
        }
        _ => None,
    };
    if update.min_rnr_timer.is_some_and(|code| code > 31) {
        return Err(libc::EINVAL);
    }
    if let Some(move_) = move_ {
        qp.nic.modify_qp(&qp.pair, &move_).map_err(errno::of)?;
    }
    if update != QpUpdate::default() {
        qp.nic.update_qp(&qp.pair, &update).map_err(errno::of)?;
    }
    if has(IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify != 0 {
        qp.nic.notify_drained(&qp.pair).map_err(errno::of)?;
    }
    if has(IBV_QP_QKEY) {
        qp.nic.set_qkey(&qp.pair, attr.qkey).map_err(errno::of)?;
    }
    if to == IBV_QPS_RESET {
        // SAFETY: the structure has integers alone, for which zero is valid.
        *known = ibv_qp_attr { cap: known.cap, ..unsafe { mem::zeroed() } };
    }
    note(&mut known, attr, given);
    Ok(to)
}

/// The peer's address. A queue pair number tells the port.
fn rtr(qp: &Qp, attr: &ibv_qp_attr) -> Result<RtrAttr, c_int> {
    let path_mtu = Mtu::from_code(attr.path_mtu).ok_or(libc::EINVAL)?;
    if path_mtu > port_mtu(qp)? {
        return Err(libc::EINVAL);
    }
    let udp_port = peers::port(attr.dest_qp_num);
    let ah = AddressVector { udp_port, ..address::vector(&attr.ah_attr, qp.nic.gids().len())? };
    let is_reliable = qp.base().qp_type == IBV_QPT_RC;
    Ok(RtrAttr {
        path_mtu,
        long_mtu_bytes: 0,
        dest_qp_num: attr.dest_qp_num,
        rq_psn: attr.rq_psn,
        max_dest_rd_atomic: if is_reliable { attr.max_dest_rd_atomic } else { 0 },
        min_rnr_timer: if is_reliable { attr.min_rnr_timer } else { 0 },
        ah,
        options: peers::options(),
        packet_keys: None,
        peer_host: None,
    })
}

fn rts(attr: &ibv_qp_attr) -> RtsAttr {
    RtsAttr {
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sq_psn: attr.sq_psn,
        max_rd_atomic: attr.max_rd_atomic,
    }
}

fn port_mtu(qp: &Qp) -> Result<Mtu, c_int> {
    Ok(qp.nic.query_port().map_err(errno::of)?.active_mtu)
}

/// Keeps the given attributes for `ibv_query_qp`.
fn note(known: &mut ibv_qp_attr, attr: &ibv_qp_attr, given: c_int) {
    macro_rules! keep {
        ($($flag:ident: $($field:ident)+;)*) => { $(
            if given & $flag != 0 {
                $(known.$field = attr.$field;)+
            }
        )* };
    }
    keep! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
    }
}
