//! The requester's timer: how long it waits for an answer, and how often it retries.

use super::Tuning;
use crate::nic::RtsAttr;

/// Local ACK timeout of a code from 0 to 31: 4.096 µs × 2^code. The code 0 gives `None`, which means
/// for ever (IBTA §9.7.6.1.3). `NCCL_IB_TIMEOUT` is such a code.
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4096 << code),
    }
}

/// Minimum wait after an RNR NAK with this timer code. The low 5 bits are the code (IBTA table 46).
pub const fn rnr_timer_ns(code: u8) -> u64 {
    const UNIT_NS: u64 = 10_000;
    UNIT_NS
        * match code & 31 {
            0 => 65_536,
            code @ 1..=3 => code as u64,
            // From 40 µs on, two code steps double the wait.
            code => (4 + 2 * (code as u64 & 1)) << (code / 2 - 2),
        }
}

/// Longest wait to which probes double if no ACK timeout bounds them.
const PROBE_NS_MAX: u64 = 1_000_000_000;
/// Value of `rnr_retry` that does not count retries. IBTA lets these retries go on for ever.
const UNCOUNTED: u8 = 7;
/// The action that an expired deadline asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// An acknowledge is late. Find out whether the last packets were lost.
    Late,
    /// Nothing arrived for [`Tuning::probe_ns`]. Send the oldest packets again.
    Probe,
    /// Nothing arrived for an ACK timeout. Send the oldest packets again and use up a retry.
    Timeout,
    /// The receiver may be ready by now.
    RnrOver,
    /// No retry is left.
    RetriesExceeded,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Idle,
    /// The timer waits for an acknowledge.
    Ack { timeout_at: u64, silent_at: u64, probe_at: u64, probe_step: u64 },
    /// The timer waits after an RNR NAK.
    Rnr { until: u64 },
}

/// The requester's timer and the retries that it counts.
#[derive(Clone, Default)]
pub(super) struct AckTimer {
    wait: Wait,
    timeout_ns: Option<u64>,
    timeout_ns_min: u64,
    probe_ns: u64,
    /// Time after which the first probe leaves, at most `probe_ns`.
    late_ns: u64,
    retry_cnt: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_retries_left: u8,
    rnr_ns_max: u64,
    /// Time of the first RNR NAK since the last progress.
    rnr_since: Option<u64>,
}

impl AckTimer {
    /// Takes the tuning. The least ACK timeout holds from the next [`start`](Self::start) on.
    pub(super) fn set_tuning(&mut self, tuning: &Tuning) {
        self.timeout_ns_min = tuning.ack_timeout_ns_min;
        self.probe_ns = tuning.probe_ns.max(1);
        self.late_ns = self.probe_ns;
        self.rnr_ns_max = tuning.rnr_ns_max;
    }

    pub(super) fn start(&mut self, attr: &RtsAttr) {
        self.timeout_ns = ack_timeout_ns(attr.timeout).map(|ns| ns.max(self.timeout_ns_min));
        self.retry_cnt = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.reload();
    }

    /// Time from sending a request to giving it up. `None` means never.
    pub(super) fn retry_time_ns(&self) -> Option<u64> {
        Some(self.timeout_ns?.saturating_mul(u64::from(self.retry_cnt) + 1))
    }

    /// Sets the time after which an acknowledge is late.
    pub(super) fn set_late(&mut self, late_ns: u64) {
        self.late_ns = late_ns.clamp(1, self.probe_ns);
    }

    fn reload(&mut self) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.rnr_since = None;
    }

    /// Notes that a request was sent.
    pub(super) fn on_transmit(&mut self, now: u64) {
        if self.wait == Wait::Idle {
            self.arm(now);
        }
    }

    /// Notes progress: the peer has acknowledged something. `outstanding` says whether more
    /// acknowledges are to come.
    pub(super) fn on_progress(&mut self, now: u64, outstanding: bool) {
        self.reload();
        match outstanding {
            true => self.arm(now),
            false => self.wait = Wait::Idle,
        }
    }

    /// Handles a peer's request for retransmission. The peer is alive and its next answer takes time,
    /// so probes start over. The timeout keeps running, so a peer cannot keep us waiting with NAKs.
    pub(super) fn on_nak(&mut self, now: u64) {
        let first_step_ns = self.first_step_ns();
        if let Wait::Ack { silent_at, probe_at, probe_step, .. } = &mut self.wait {
            *probe_step = first_step_ns;
            *probe_at = now.saturating_add(self.late_ns);
            *silent_at = now.saturating_add(self.probe_ns);
        }
    }

    /// Starts the wait after an RNR NAK, or returns `false` if no retry is left.
    pub(super) fn on_rnr_nak(&mut self, now: u64, code: u8) -> bool {
        if self.rnr_retry == UNCOUNTED {
            let since = *self.rnr_since.get_or_insert(now);
            if now.saturating_sub(since) >= self.rnr_ns_max {
                return false;
            }
        } else {
            let Some(left) = self.rnr_retries_left.checked_sub(1) else { return false };
            self.rnr_retries_left = left;
        }
        self.retries_left = self.retry_cnt;
        self.wait = Wait::Rnr { until: now.saturating_add(rnr_timer_ns(code)) };
        true
    }

    /// Returns whether the requester must not send because the receiver is not ready.
    pub(super) fn waits_for_receiver(&self) -> bool {
        matches!(self.wait, Wait::Rnr { .. })
    }

    pub(super) fn stop(&mut self) {
        self.wait = Wait::Idle;
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        match self.wait {
            Wait::Idle => None,
            Wait::Rnr { until } => Some(until),
            Wait::Ack { timeout_at, probe_at, .. } => Some(timeout_at.min(probe_at)),
        }
    }

    /// Returns the action that is due, if any, for the queue pair `qpn`.
    pub(super) fn expire(&mut self, now: u64, qpn: u32) -> Option<Expired> {
        match &mut self.wait {
            Wait::Rnr { until } if *until <= now => {
                self.wait = Wait::Idle;
                Some(Expired::RnrOver)
            }
            Wait::Ack { timeout_at, .. } if *timeout_at <= now => {
                let Some(left) = self.retries_left.checked_sub(1) else {
                    return Some(Expired::RetriesExceeded);
                };
                self.retries_left = left;
                self.arm(now);
                Some(Expired::Timeout)
            }
            Wait::Ack { silent_at, probe_at, probe_step, .. } if *probe_at <= now => {
                let is_silent = *silent_at <= now;
                *probe_step = probe_step.saturating_mul(2).min(PROBE_NS_MAX);
                *probe_at = now.saturating_add(*probe_step + spread_ns(now, qpn, *probe_step / 4));
                if !is_silent {
                    *probe_at = (*silent_at).min(*probe_at);
                }
                Some(if is_silent { Expired::Probe } else { Expired::Late })
            }
            _ => None,
        }
    }

    /// First value of the probe step, which doubles to the wait for the second probe. The first probe
    /// of a late acknowledge may be lost too. So the second probe waits no longer than the first.
    fn first_step_ns(&self) -> u64 {
        if self.late_ns < self.probe_ns { self.late_ns.div_ceil(2) } else { self.probe_ns }
    }

    fn arm(&mut self, now: u64) {
        self.wait = Wait::Ack {
            timeout_at: self.timeout_ns.map_or(u64::MAX, |ns| now.saturating_add(ns)),
            silent_at: now.saturating_add(self.probe_ns),
            probe_at: now.saturating_add(self.late_ns),
            probe_step: self.first_step_ns(),
        };
    }
}

/// Returns a time below `max_ns` that differs from one queue pair to the next and from one probe to the next.
/// Without this time, queue pairs whose packets were lost together would probe together each time, and a receiver
/// with little room would drop the packets of the same queue pairs each time.
fn spread_ns(now: u64, qpn: u32, max_ns: u64) -> u64 {
    let mixed = (now ^ u64::from(qpn) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 32) * max_ns) >> 32
}

#[cfg(test)]
mod tests;
