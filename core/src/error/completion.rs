//! Error completions: the meaning of each status, and advice.

use core::fmt;

use super::ErrorKind;
use crate::nic::WcStatus;

/// A work request that ended in error.
///
/// Opcode and length are left out. In an error completion only `wr_id`, status, QP number and vendor
/// error are valid (IBTA §11.4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// Status of the completion.
    pub status: WcStatus,
    /// Number of this end's queue pair.
    pub qpn: u32,
    /// Error code of the vendor.
    pub vendor_err: u32,
    /// Local ACK timeout code of the queue pair: 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Retry count of the queue pair.
    pub retry_cnt: u8,
    /// The fault of this end's own port when the completion came, if there was one.
    pub port_trouble: Option<&'static str>,
}

impl CompletionError {
    /// The party that caused the error.
    pub fn kind(&self) -> ErrorKind {
        if self.port_trouble.is_some() {
            return ErrorKind::Local;
        }
        match self.status {
            WcStatus::RETRY_EXC_ERR | WcStatus::RESP_TIMEOUT_ERR => ErrorKind::Network,
            WcStatus::LOC_LEN_ERR
            | WcStatus::LOC_QP_OP_ERR
            | WcStatus::LOC_EEC_OP_ERR
            | WcStatus::LOC_PROT_ERR
            | WcStatus::MW_BIND_ERR
            | WcStatus::FATAL_ERR
            | WcStatus::GENERAL_ERR => ErrorKind::Local,
            _ => ErrorKind::Peer,
        }
    }
}

/// The time after which a queue pair gives up a silent peer: (1 + retries) × 4.096 µs × 2^t.
pub(crate) fn give_up_ns(timeout: u8, retry_cnt: u8) -> u64 {
    (1 + u64::from(retry_cnt)) * (4096 << timeout.min(31))
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "completion with error {} ({})", self.status.0, status_name(self.status))?;
        write!(f, " on QP {:#x}", self.qpn)?;
        if self.vendor_err != 0 {
            write!(f, ", vendor error {:#x}", self.vendor_err)?;
        }
        if self.status == WcStatus::RETRY_EXC_ERR {
            write!(
                f,
                ": no answer for {:.1} s (timeout {}, 1 + {} tries)",
                give_up_ns(self.timeout, self.retry_cnt) as f32 / 1e9,
                self.timeout,
                self.retry_cnt
            )?;
        }
        match self.port_trouble {
            Some(trouble) => write!(f, "; look at this end first: {trouble}"),
            None => write!(f, "; {}", hint(self.status)),
        }
    }
}

/// Name of a status in libibverbs, without `IBV_WC_`.
pub const fn status_name(status: WcStatus) -> &'static str {
    match status {
        WcStatus::SUCCESS => "SUCCESS",
        WcStatus::LOC_LEN_ERR => "LOC_LEN_ERR",
        WcStatus::LOC_QP_OP_ERR => "LOC_QP_OP_ERR",
        WcStatus::LOC_EEC_OP_ERR => "LOC_EEC_OP_ERR",
        WcStatus::LOC_PROT_ERR => "LOC_PROT_ERR",
        WcStatus::WR_FLUSH_ERR => "WR_FLUSH_ERR",
        WcStatus::MW_BIND_ERR => "MW_BIND_ERR",
        WcStatus::BAD_RESP_ERR => "BAD_RESP_ERR",
        WcStatus::LOC_ACCESS_ERR => "LOC_ACCESS_ERR",
        WcStatus::REM_INV_REQ_ERR => "REM_INV_REQ_ERR",
        WcStatus::REM_ACCESS_ERR => "REM_ACCESS_ERR",
        WcStatus::REM_OP_ERR => "REM_OP_ERR",
        WcStatus::RETRY_EXC_ERR => "RETRY_EXC_ERR",
        WcStatus::RNR_RETRY_EXC_ERR => "RNR_RETRY_EXC_ERR",
        WcStatus::LOC_RDD_VIOL_ERR => "LOC_RDD_VIOL_ERR",
        WcStatus::REM_INV_RD_REQ_ERR => "REM_INV_RD_REQ_ERR",
        WcStatus::REM_ABORT_ERR => "REM_ABORT_ERR",
        WcStatus::INV_EECN_ERR => "INV_EECN_ERR",
        WcStatus::INV_EEC_STATE_ERR => "INV_EEC_STATE_ERR",
        WcStatus::FATAL_ERR => "FATAL_ERR",
        WcStatus::RESP_TIMEOUT_ERR => "RESP_TIMEOUT_ERR",
        WcStatus::GENERAL_ERR => "GENERAL_ERR",
        WcStatus::TM_ERR => "TM_ERR",
        WcStatus::TM_RNDV_INCOMPLETE => "TM_RNDV_INCOMPLETE",
        _ => "unknown status",
    }
}

/// The meaning of a status, with advice for the person who must repair the fault.
pub const fn hint(status: WcStatus) -> &'static str {
    match status {
        WcStatus::SUCCESS => "no error",
        WcStatus::LOC_LEN_ERR => {
            "a message was longer than the posted receive, or longer than the port allows"
        }
        WcStatus::LOC_QP_OP_ERR => "the queue pair cannot do this: a bug here, please report it",
        WcStatus::LOC_PROT_ERR => {
            "a local buffer is not covered by its registration: was it deregistered while in use?"
        }
        WcStatus::WR_FLUSH_ERR => {
            "the queue pair was in error already: the first error says why; look for it on this \
             and on the peer's side"
        }
        WcStatus::BAD_RESP_ERR => {
            "the peer answered something that its request does not allow: check that both NICs' \
             firmware and drivers are current"
        }
        WcStatus::LOC_ACCESS_ERR => {
            "the peer wrote where local registration forbids it: was the buffer deregistered?"
        }
        WcStatus::REM_INV_REQ_ERR => {
            "the peer's NIC refused the request as malformed: do both ends agree on MTU and mode?"
        }
        WcStatus::REM_ACCESS_ERR => {
            "the peer's NIC refused access: its buffer is no longer registered, or rkey, address \
             or length do not match; look at the peer for a buffer freed while receiving"
        }
        WcStatus::REM_OP_ERR => {
            "the peer's NIC could not carry the request out: look at the peer's log"
        }
        WcStatus::RETRY_EXC_ERR => {
            "the peer is gone, its QP is in error, or packets do not reach it: check the peer \
             process first, then GID and RoCE version of both ends (NCCL_IB_GID_INDEX), route and \
             firewall, MTU along the path, PFC/ECN if under load; a slower network may need a \
             larger NCCL_IB_TIMEOUT"
        }
        WcStatus::RNR_RETRY_EXC_ERR => {
            "the peer is there, but had no receive posted for too long: is it stuck, or out of \
             receives? Look at the peer's stack"
        }
        WcStatus::REM_ABORT_ERR => "the peer aborted the operation: look at the peer's log",
        WcStatus::FATAL_ERR => "the device failed: see the kernel's log (dmesg)",
        WcStatus::RESP_TIMEOUT_ERR => "the peer did not answer in time: as with RETRY_EXC_ERR",
        WcStatus::GENERAL_ERR => "the device reports a failure of its own: see the kernel's log",
        WcStatus::LOC_EEC_OP_ERR
        | WcStatus::LOC_RDD_VIOL_ERR
        | WcStatus::REM_INV_RD_REQ_ERR
        | WcStatus::INV_EECN_ERR
        | WcStatus::INV_EEC_STATE_ERR => {
            "only reliable datagrams end so, which are not used here: check that both NICs' \
             firmware and drivers are current"
        }
        WcStatus::MW_BIND_ERR => {
            "only memory windows end so, which are not used here: check that firmware and driver \
             of this NIC are current"
        }
        WcStatus::TM_ERR | WcStatus::TM_RNDV_INCOMPLETE => {
            "only tag matching ends so, which is not used here: check that firmware and driver of \
             this NIC are current"
        }
        _ => "verbs.h does not know this status: see the vendor's documentation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_verbs_h_has_a_name_and_a_hint_and_no_other_has() {
        for status in (0..=24).map(WcStatus) {
            let is_known = status.0 <= WcStatus::TM_RNDV_INCOMPLETE.0;
            assert_eq!(status_name(status) != "unknown status", is_known, "{status:?}");
            assert_eq!(!hint(status).starts_with("verbs.h does not know"), is_known, "{status:?}");
        }
    }
}
