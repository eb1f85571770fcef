//! States and attributes of queue pairs.

use invar_core::nic::{NicError, QpState, QpTransition, QpType, Verb};
use invar_core::roce::qp::QpUpdate;

use super::Device;
use super::path::Path;

impl Device {
    /// Moves a queue pair to another state (`ibv_modify_qp`). For datagrams, [`QpTransition::Rtr`] needs the
    /// path MTU of the port alone, and [`QpTransition::Rts`] the first PSN. A move to RESET removes completions
    /// that nobody has taken, as NICs in hardware do.
    ///
    /// # Errors
    /// `EINVAL`: the transition does not exist, or an attribute is out of range.
    pub fn modify_qp(&mut self, qpn: u32, transition: &QpTransition) -> Result<(), NicError> {
        let tuning = self.config.tuning;
        let local = match transition {
            QpTransition::Rtr(attr) => self.config.local(qpn, attr.ah.sgid_index),
            _ => None,
        };
        let mut used = None;
        let modified = self.with_qp(qpn, Verb::ModifyQp, |qp, env| {
            let path = match transition {
                QpTransition::Rtr(attr) if qp.qp_type() != QpType::Ud => {
                    used = Some(attr.ah.sgid_index);
                    Some(Path::new(local, attr)?)
                }
                _ => None,
            };
            qp.modify(transition, env)?;
            if *transition == QpTransition::Reset {
                qp.posted.forget_completions(env.cqs);
            }
            if let QpTransition::Rtr(attr) = transition {
                qp.set_tuning(tuning.scaled(attr));
                qp.path = path;
            }
            Ok(())
        });
        if modified.is_ok() && matches!(transition, QpTransition::Err | QpTransition::Reset) {
            // The program may use the memory of these packets again.
            self.staging.held.take_if(|(of, _)| *of == qpn);
            self.staging.drop_train_of(|of| of == qpn);
        }
        if let (Ok(()), Some(index)) = (modified, used) {
            self.used_addresses |= 1 << (index % 64);
        }
        modified
    }

    /// Changes attributes of a queue pair without a change of state (`ibv_modify_qp`).
    ///
    /// # Errors
    /// `EINVAL`: the state does not allow it, or an attribute is out of range.
    pub fn update_qp(&mut self, qpn: u32, update: &QpUpdate) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::ModifyQp, |qp, _| qp.update(update))
    }

    /// Raises [`AsyncEvent::SqDrained`](super::AsyncEvent::SqDrained) once no send that has begun is left
    /// (`en_sqd_async_notify`).
    ///
    /// # Errors
    /// `EINVAL`: the state is not SQD.
    pub fn notify_drained(&mut self, qpn: u32) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::ModifyQp, |qp, _| match qp.state() {
            QpState::Sqd => {
                qp.awaits_drain = true;
                Ok(())
            }
            _ => Err(NicError::new(Verb::ModifyQp, libc::EINVAL, "not in state SQD")),
        })
    }

    /// Sets the Q_Key of a queue pair. The queue pair drops datagrams that have another Q_Key.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair does not exist.
    pub fn set_qkey(&mut self, qpn: u32, qkey: u32) -> Result<(), NicError> {
        self.with_qp(qpn, Verb::ModifyQp, |qp, _| {
            qp.set_qkey(qkey);
            Ok(())
        })
    }
}
