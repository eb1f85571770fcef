//! Attributes of a queue pair that change without a change of state.

use super::Qp;
use super::state::{self, refuse};
use crate::nic::{Access, NicError, QpState, RtrAttr, RtsAttr};

/// Attributes to change (`ibv_modify_qp`). `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpUpdate {
    /// The operations that the peer may use.
    pub access: Option<Access>,
    /// Code of the wait that an RNR NAK asks for (IBTA table 46).
    pub min_rnr_timer: Option<u8>,
    /// How this end sends, except for the packet sequence number. Only in state SQD.
    pub sends: Option<RtsAttr>,
    /// The largest number of the peer's READs that may be outstanding at this end. Only in state SQD.
    pub max_dest_rd_atomic: Option<u8>,
}

impl<const SQ: usize, const RQ: usize> Qp<SQ, RQ> {
    /// Changes attributes without a change of state.
    ///
    /// # Errors
    /// `EINVAL`: the state does not allow it, or a value is out of range. Nothing has changed.
    pub fn update(&mut self, update: &QpUpdate) -> Result<(), NicError> {
        let QpUpdate { access, min_rnr_timer, sends, max_dest_rd_atomic } = *update;
        let needs_sqd = sends.is_some() || max_dest_rd_atomic.is_some();
        match self.state {
            QpState::Reset | QpState::Err => {
                return refuse("no attribute can change in state RESET or ERR");
            }
            QpState::Sqd => {}
            _ if needs_sqd => return refuse("retries and READs can change only in state SQD"),
            _ => {}
        }
        state::check_rtr(&RtrAttr {
            min_rnr_timer: min_rnr_timer.unwrap_or_default(),
            max_dest_rd_atomic: max_dest_rd_atomic.unwrap_or_default(),
            ..RtrAttr::default()
        })?;
        if let Some(sends) = &sends {
            state::check_rts(sends)?;
            if sends.max_rd_atomic == 0 && self.requester.posted() > 0 {
                return refuse("max_rd_atomic becomes 0 while sends are posted");
            }
            self.requester.update(sends);
        }
        self.path.access = access.unwrap_or(self.path.access);
        if let Some(code) = min_rnr_timer {
            self.responder.set_min_rnr_timer(code);
        }
        if let Some(most) = max_dest_rd_atomic {
            self.responder.set_reads_max(most);
        }
        Ok(())
    }

    /// Whether the state is SQD, so that no send begins, and all that have begun are complete.
    pub fn is_drained(&self) -> bool {
        self.state == QpState::Sqd && !self.requester.is_under_way()
    }
}
