//! States of a queue pair and the legal moves between them (IBTA §10.3.1).

use super::{LONG_MTU_BYTES_MAX, RD_ATOMIC_MAX};
use crate::nic::{NicError, QpState, QpTransition, RtrAttr, RtsAttr, Verb};
use crate::roce::Psn;

pub(super) const ENOMEM: i32 = 12;
pub(super) const EINVAL: i32 = 22;

/// Returns the state that a move leads to, or an error if the move or an attribute is illegal.
pub(super) fn check(from: QpState, move_: &QpTransition) -> Result<QpState, NicError> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    match (from, move_) {
        (_, QpTransition::Reset) => Ok(Reset),
        (_, QpTransition::Err) => Ok(Err),
        (Reset, QpTransition::Init { .. }) => Ok(Init),
        (Init, QpTransition::Rtr(attr)) => check_rtr(attr).map(|()| Rtr),
        (Rtr, QpTransition::Rts(attr)) => check_rts(attr).map(|()| Rts),
        (Rts, QpTransition::Sqd) => Ok(Sqd),
        (Sqd, QpTransition::Resume) => Ok(Rts),
        (_, QpTransition::Init { .. }) => refuse("to INIT only from RESET"),
        (_, QpTransition::Rtr(_)) => refuse("to RTR only from INIT"),
        (_, QpTransition::Rts(_)) => refuse("to RTS only from RTR"),
        (_, QpTransition::Sqd) => refuse("to SQD only from RTS"),
        (_, QpTransition::Resume) => refuse("to RTS again only from SQD"),
    }
}

pub(super) fn check_rtr(attr: &RtrAttr) -> Result<(), NicError> {
    match attr {
        _ if attr.dest_qp_num > Psn::MASK => refuse("dest_qp_num exceeds 24 bits"),
        _ if attr.rq_psn > Psn::MASK => refuse("rq_psn exceeds 24 bits"),
        _ if attr.min_rnr_timer > 31 => refuse("min_rnr_timer exceeds 31"),
        _ if attr.max_dest_rd_atomic > RD_ATOMIC_MAX => refuse("max_dest_rd_atomic exceeds 16"),
        _ if attr.long_mtu_bytes > LONG_MTU_BYTES_MAX => refuse("long_mtu_bytes exceeds 8192"),
        _ if !attr.long_mtu_bytes.is_multiple_of(4) => refuse("long_mtu_bytes is no multiple of 4"),
        _ => Ok(()),
    }
}

pub(super) fn check_rts(attr: &RtsAttr) -> Result<(), NicError> {
    match attr {
        _ if attr.sq_psn > Psn::MASK => refuse("sq_psn exceeds 24 bits"),
        _ if attr.timeout > 31 => refuse("timeout exceeds 31"),
        _ if attr.retry_cnt > 7 => refuse("retry_cnt exceeds 7"),
        _ if attr.rnr_retry > 7 => refuse("rnr_retry exceeds 7"),
        _ if attr.max_rd_atomic > RD_ATOMIC_MAX => refuse("max_rd_atomic exceeds 16"),
        _ => Ok(()),
    }
}

pub(super) fn refuse<T>(cause: &'static str) -> Result<T, NicError> {
    Err(NicError::new(Verb::ModifyQp, EINVAL, cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::Access;

    #[test]
    fn the_table_of_moves() {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
        let init = QpTransition::Init { pkey_index: 0, port_num: 1, access: Access::empty() };
        let moves = [
            QpTransition::Reset,
            init,
            QpTransition::Rtr(RtrAttr::default()),
            QpTransition::Rts(RtsAttr::default()),
            QpTransition::Sqd,
            QpTransition::Resume,
            QpTransition::Err,
        ];
        let table: [(QpState, [Option<QpState>; 7]); 6] = [
            (Reset, [Some(Reset), Some(Init), None, None, None, None, Some(Err)]),
            (Init, [Some(Reset), None, Some(Rtr), None, None, None, Some(Err)]),
            (Rtr, [Some(Reset), None, None, Some(Rts), None, None, Some(Err)]),
            (Rts, [Some(Reset), None, None, None, Some(Sqd), None, Some(Err)]),
            (Sqd, [Some(Reset), None, None, None, None, Some(Rts), Some(Err)]),
            (Err, [Some(Reset), None, None, None, None, None, Some(Err)]),
        ];
        for (from, row) in table {
            for (move_, to) in moves.iter().zip(row) {
                assert_eq!(check(from, move_).ok(), to, "{from:?} {move_:?}");
            }
        }
    }

    #[test]
    fn attributes_out_of_range_are_named() {
        let rtr = RtrAttr::default();
        let rts = RtsAttr::default();
        let cases = [
            (QpTransition::Rtr(RtrAttr { dest_qp_num: 1 << 24, ..rtr }), "dest_qp_num"),
            (QpTransition::Rtr(RtrAttr { rq_psn: 1 << 24, ..rtr }), "rq_psn"),
            (QpTransition::Rtr(RtrAttr { min_rnr_timer: 32, ..rtr }), "min_rnr_timer"),
            (QpTransition::Rtr(RtrAttr { max_dest_rd_atomic: 17, ..rtr }), "max_dest_rd_atomic"),
            (QpTransition::Rtr(RtrAttr { long_mtu_bytes: 8196, ..rtr }), "long_mtu_bytes exc"),
            (QpTransition::Rtr(RtrAttr { long_mtu_bytes: 1410, ..rtr }), "long_mtu_bytes is no"),
            (QpTransition::Rts(RtsAttr { sq_psn: 1 << 24, ..rts }), "sq_psn"),
            (QpTransition::Rts(RtsAttr { timeout: 32, ..rts }), "timeout"),
            (QpTransition::Rts(RtsAttr { retry_cnt: 8, ..rts }), "retry_cnt"),
            (QpTransition::Rts(RtsAttr { rnr_retry: 8, ..rts }), "rnr_retry"),
            (QpTransition::Rts(RtsAttr { max_rd_atomic: 17, ..rts }), "max_rd_atomic"),
        ];
        for (move_, name) in cases {
            let from = match move_ {
                QpTransition::Rtr(_) => QpState::Init,
                _ => QpState::Rtr,
            };
            let error = check(from, &move_).unwrap_err();
            assert_eq!((error.verb, error.errno), (Verb::ModifyQp, EINVAL));
            assert!(error.cause.starts_with(name), "{}", error.cause);
        }
    }
}
