//! Looks at what the program's calls do not show: the path of rows that stand still, ports, and the peer.

use super::base::{Base, Failed, Gate};
use super::control::Control;
use super::route::Route;
use crate::conn::{CommSettings, Stream};
use crate::error::{Error, Suspicion, give_up_ns};
use crate::nic::{Nic, Verb};
use crate::stall::{self, PathRows, PathVerdict};

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    /// Asks the peer about rows that make no progress, or suspects the queue pairs. `seen_counts` says whether
    /// rows that the peer has seen await nothing more.
    pub(super) fn look_at_path(&mut self, now_ns: u64, rows: PathRows, seen_counts: bool) {
        let CommSettings { suspect_after_ns, .. } = self.verbs.settings;
        if !self.gate.is_open() || !self.recovery.is_agreed() || suspect_after_ns == 0 {
            return;
        }
        let speed_mbps = self.verbs.port.speed_mbps;
        let after_ns = stall::suspect_after_ns(suspect_after_ns, rows.bytes, speed_mbps);
        match self.path.look(now_ns, rows, seen_counts, after_ns) {
            PathVerdict::Fine => {}
            PathVerdict::Ask => _ = self.line.send(&Control::Ask { rows: rows.said }),
            PathVerdict::Suspect => self.suspect(Suspicion::Silence),
        }
    }

    /// Fails a connection without recovery if the port has a fault and a row waits for longer than queue pairs
    /// try. A NIC without a link may complete nothing at all, not even with an error: `rdma_rxe` does so now and
    /// then.
    pub(super) fn look_at_port(&mut self, now_ns: u64, rows: PathRows) {
        let changes = self.verbs.nic.port_changes();
        if !self.gate.is_open() || self.recovery.is_agreed() || changes == self.port_changes {
            return;
        }
        if rows.over >= rows.said {
            self.port_lost = None;
            return;
        }
        let Some(trouble) = self.verbs.port_trouble(self.verbs.lead()) else {
            (self.port_changes, self.port_lost) = (changes, None);
            return;
        };
        let lost = self.port_lost.filter(|(over, _)| *over == rows.over);
        let (_, lost_ns) = *self.port_lost.insert(lost.unwrap_or((rows.over, now_ns)));
        let CommSettings { timeout, retry_cnt, .. } = self.verbs.settings;
        let waited_ns = now_ns.saturating_sub(lost_ns);
        // A NIC may take four times the time that it is told (IBTA §9.7.6.1.3).
        if timeout > 0 && waited_ns > 4 * give_up_ns(timeout, retry_cnt) {
            self.fail(Error::Port { trouble, waited_ms: waited_ns / 1_000_000 });
        }
    }

    /// Whether calls go on now. Fails if the comm has ended.
    fn goes_on(&mut self) -> Result<bool, Failed> {
        match self.gate {
            Gate::Pending | Gate::Recovering => Ok(false),
            Gate::Closed | Gate::Failed => Err(self.refuse()),
            Gate::Open | Gate::Group => Ok(true),
        }
    }

    /// Takes the completions that have arrived. Checks that the peer is still there, and whether it makes
    /// new queue pairs.
    pub(super) fn check_peer(&mut self, now_ns: u64) -> Result<(), Failed> {
        // The program may never test the request whose queue pair has failed. Its completion says why it failed, and
        // comes first: bnxt_re also raises an event of a refused access when retries are exhausted.
        while self.goes_on()? && self.poll() {}
        if !self.goes_on()? {
            return Ok(());
        }
        let checked = self.verbs.qps().try_for_each(|qp| self.verbs.nic.check(qp));
        match checked {
            // Others are left.
            Err(error) if self.has_rails() => self.rail_refused(error)?,
            Err(error) if error.verb == Verb::QpEvent && self.recovery.may_help_after_refusal() => {
                self.suspect(Suspicion::Event(error.cause));
            }
            checked => checked.map_err(|error| self.nic_failed(error))?,
        }
        if !self.goes_on()? {
            return Ok(());
        }
        // The ports of several rails are looked at one by one.
        let is_heeded = self.recovery.is_agreed() && !self.has_rails();
        if is_heeded && self.port_changes != self.verbs.nic.port_changes() {
            self.port_changes = self.verbs.nic.port_changes();
            if let Some(trouble) = self.verbs.port_trouble(self.verbs.lead()) {
                self.suspect(Suspicion::Port(trouble));
                return Ok(());
            }
        }
        let heard = self.mend_line(now_ns, false).and_then(|()| self.hear());
        match heard {
            Ok(()) if self.recovery.is_behind() => {
                self.suspect(Suspicion::Peer);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(error) if error.is_peer_gone() => Err(self.peer_is_gone(error)),
            Err(error) => Err(self.fail(error)),
        }
    }
}
