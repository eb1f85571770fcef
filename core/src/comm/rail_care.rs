//! Looks after the rails of a connection: asks them, gives them up, and takes them in. [`super::rails`] has
//! the rules.

use super::base::{Base, Failed, Gate};
use super::control::{Control, RailEnd, RailsReport};
use super::rail_shares::{balance, weights};
use super::recovery::RecoveryStage;
use super::route::Route;
use crate::conn::wire::Preface;
use crate::conn::{PROBE, Peer, RAILS_MAX, RailSet, Stream, rail_of};
use crate::error::{Error, Suspicion};
use crate::mutant::{Mutant, is_planted};
use crate::nic::{Nic, NicError, SendFlags, SendOpcode, SendWr, Verb, Wc};

/// No rail has a port that is up at both ends.
const NO_COMMON_RAIL: NicError =
    NicError::new(Verb::QueryPort, 0, "no rail has a port that is up at both ends");

/// A start towards the peer would wait in vain.
const PORT_LOST: NicError =
    NicError::new(Verb::QueryPort, 0, "a rail's port went down before its queue pairs started");

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    /// Whether the connection has several rails.
    #[inline(always)]
    pub(super) fn has_rails(&self) -> bool {
        N::RAILS_MAX > 1 && self.rails.count > 1
    }

    /// Looks after the rails of a connection that works. Call this from time to time.
    pub(super) fn look_after_rails(&mut self, now_ns: u64) {
        if !self.has_rails() || !self.gate.is_open() {
            return;
        }
        self.tell_of_fallback();
        let Self { rails, route, verbs, .. } = self;
        let (changes, in_use) = (verbs.nic.port_changes(), rails.in_use);
        let up = rails.ports_up(changes, now_ns, || verbs.rails_up(in_use));
        rails.put_off(now_ns);
        let up = up.without(rails.put_off_at(now_ns));
        let up = rails.resolved(up, now_ns, |rail, gid| verbs.nic.resolve(rail, gid));
        rails.forgive(up.without(rails.told));
        let silent = rails.hear(route.rail_work(), now_ns);
        if up != rails.told && self.line.send(&Control::RailsUp { rails: up }) {
            rails.told = up;
        }
        let both = up.and(rails.peer_up);
        let gone = rails.in_use.without(both);
        if !gone.is_empty() && !both.is_empty() {
            rails.failed = gone;
            // The port may be up again before the attempt begins.
            rails.unresolved = rails.unresolved.or(gone);
            warn!("{}: the port of rail {gone} is down, or has another GID", self.ends);
            return self.suspect(Suspicion::RailFailed);
        }
        if !silent.is_empty() {
            rails.failed = silent;
            warn!("{}: rail {silent} does not answer", self.ends);
            return self.suspect(Suspicion::RailFailed);
        }
        self.ask_rails(now_ns);
        if !R::IS_SENDER || self.gate == Gate::Recovering {
            return;
        }
        let Self { rails, route, verbs, .. } = self;
        balance(&mut verbs.rails.weights, rails.in_use, &mut route.rail_work().last);
        let waiting = both.without(rails.in_use).without(rails.asked);
        let content = rails.reserve().and(rails.trusted);
        let due = waiting.without(content).without(rails.put_off_at(now_ns));
        if !due.is_empty() {
            debug!("{}: rail {due} is to join", self.ends);
            self.recovery.is_planned = true;
            self.suspect(Suspicion::RailJoins);
        }
    }

    /// Warns if data begins or ceases to go through software NICs alone on a connection that has other rails.
    fn tell_of_fallback(&mut self) {
        let Self { rails, verbs, ends, .. } = self;
        let all = RailSet::first(rails.count);
        let software = all.iter().filter(|rail| verbs.nic.is_software(*rail)).collect();
        let carrier = rails.in_use;
        match rails.fallback_news(software) {
            None => {}
            Some(true) => warn!(
                "{ends}: data goes through the operating system, over rail {carrier}, until another rail works: \
                 this is slower and takes processor time"
            ),
            Some(false) => warn!(
                "{ends}: data no longer goes through the operating system alone: rail {carrier} works"
            ),
        }
    }

    /// Takes a completion in error of a queue pair that carries no data. Returns whether it was one.
    pub(super) fn is_of_probe(&mut self, wc: &Wc) -> bool {
        let rail = RailSet::one(rail_of(wc.qp_num));
        let is_idle = rail.and(self.rails.in_use).is_empty();
        if is_idle {
            self.rails.failed = self.rails.failed.or(rail);
        }
        is_idle
    }

    /// Goes on after the NIC has refused a call, if other rails may be left: an attempt sends again what
    /// was not posted.
    #[cold]
    pub(super) fn rail_refused(&mut self, error: NicError) -> Result<(), Failed> {
        if !self.has_rails() {
            return Err(self.nic_failed(error));
        }
        if self.gate == Gate::Recovering {
            self.recovery.stage = RecoveryStage::Suspected;
        } else if self.gate.is_open() {
            warn!("{}: {error}; the other rails take over", self.ends);
            let broken = self.verbs.qps().filter(|qp| self.verbs.nic.check(qp).is_err());
            let broken: RailSet = broken.map(|qp| self.verbs.nic.rail_of(qp)).collect();
            self.rails.failed = self.rails.failed.or(broken);
            self.suspect(Suspicion::RailFailed);
        }
        Ok(())
    }

    /// Whether the attempt that begins is planned by one of the ends.
    pub(super) fn is_planned(&self) -> bool {
        let recovery = &self.recovery;
        let theirs = recovery.peer_rails.as_ref();
        let theirs = theirs.filter(|report| report.attempt > recovery.attempt);
        self.has_rails() && (recovery.is_planned || theirs.is_some_and(|report| report.planned))
    }

    /// Creates queue pairs on all rails whose ports are up.
    pub(super) fn renew_rails(&mut self) -> Result<(), NicError> {
        let Self { verbs, recovery, rails, ends, .. } = self;
        let attempt = recovery.attempt;
        let all = RailSet::first(rails.count);
        // Skip a rail that failed to start for one attempt, unless all rails did. Skip a rail whose way is not known,
        // unless no other is up.
        let shunned = core::mem::take(&mut rails.shunned);
        let wanted = if shunned == all { all } else { all.without(shunned) };
        let up = verbs.rails_up(RailSet::NONE);
        let known = wanted.without(rails.unresolved);
        let wanted = if known.and(up).is_empty() { wanted } else { known };
        let usable = verbs.renew_rails(attempt, wanted, recovery.is_drained());
        // The port of such a rail is up, but its device does not work.
        let refused = wanted.and(up).without(usable.unwrap_or(RailSet::NONE));
        rails.refused = rails.refused.or(refused);
        rails.usable = usable?;
        rails.failed = rails.failed.or(refused);
        rails.told = rails.usable;
        (ends.qpn, ends.gid) = (verbs.nic.qp_num(&verbs.qp), verbs.port.gid);
        // What failed since the last look counts too. The next look puts it off.
        let trusted = match R::IS_SENDER {
            true => rails.trusted,
            false => all,
        };
        rails.offered = trusted.and(rails.usable).without(rails.failed);
        Ok(())
    }

    /// Tells the peer of the new queue pairs on all rails, and of this end's rows.
    pub(super) fn report_rails(&mut self, rows: u64, depth: u64) {
        let Self { verbs, route, reqs, recovery, rails, line, .. } = self;
        let attempt = recovery.attempt;
        let end = |rail| {
            let info = verbs.rail_info(rail);
            RailEnd {
                preface: Preface {
                    sizes_rkey: verbs.control_rkey_on(rail),
                    renewal_port: line.answer_on(&info),
                    ..verbs.rail_preface(rail, depth as u16)
                },
                info,
                speed_mbps: verbs.rails.ports[rail].speed_mbps,
            }
        };
        let report = RailsReport {
            attempt,
            rows: route.rows_to_report(reqs, rows, depth),
            arrived: route.arrived(reqs, rows, depth),
            planned: recovery.is_planned,
            usable: rails.usable,
            trusted: rails.offered,
            ends: rails.usable.iter().map(end).collect(),
        };
        debug!("{}: attempt {attempt}, {} rows, rails {}", self.ends, report.rows, report.usable);
        self.line.send(&Control::RailsReport(report));
    }

    /// Starts the queue pairs of the rails that both ends have, and decides which of them carry data.
    pub(super) fn start_rails_anew(&mut self, now_ns: u64) -> Result<(), Error> {
        let Some(report) = self.recovery.rails_report().cloned() else {
            return Err(Error::Unexpected);
        };
        let Self { verbs, rails, ends, line, .. } = self;
        rails.peer_up = report.usable;
        for (rail, end) in report.usable.iter().zip(&report.ends) {
            line.call_on(&end.info, end.preface.renewal_port);
            rails.peer_gids[rail] = Some(end.info.gid);
        }
        let fits = |rail: &usize| {
            let theirs = report.end(*rail).map(|end| end.info.link_layer);
            theirs == Some(verbs.rails.ports[*rail].link_layer)
        };
        let both: RailSet = rails.usable.and(report.usable).iter().filter(fits).collect();
        if both.is_empty() {
            // One end may have skipped the rails that the other has.
            rails.put_off(now_ns);
            rails.unresolved = RailSet::NONE;
            return Err(Error::Nic(NO_COMMON_RAIL));
        }
        let trusted = match is_planted(Mutant::TrustAlone) {
            true => both.and(rails.offered),
            false => both.and(rails.offered).and(report.trusted),
        };
        let in_use = rails.preferred(if trusted.is_empty() { both } else { trusted });
        let up = verbs.rails_up(RailSet::NONE);
        for rail in both.iter() {
            if !up.has(rail) {
                rails.shun(rail);
                return Err(Error::Nic(PORT_LOST));
            }
            let Some(end) = report.end(rail) else { return Err(Error::Unexpected) };
            if end.info.qpns.len() != verbs.rails.qps {
                return Err(Error::Unexpected);
            }
            let mut info = end.info.clone();
            info.mtu = info.mtu.min(verbs.rails.ports[rail].active_mtu);
            let ours = verbs.rail_preface(rail, end.preface.fifo_depth);
            let peer = Peer::new(info, Some(end.preface.clone()), &ours);
            if let Err(error) = verbs.start_rail(rail, &peer) {
                rails.shun(rail);
                return Err(error);
            }
            rails.refused = rails.refused.without(RailSet::one(rail));
            if in_use.iter().next() == Some(rail) {
                peer.note(ends);
                rails.peer_rkey = end.preface.sizes_rkey;
            }
            if !rails.in_use.has(rail) {
                rails.retries[rail].joined_ns = now_ns;
            }
        }
        if in_use != rails.in_use {
            let speed = |rail: usize| {
                let theirs = report.end(rail).map_or(0, |end| end.speed_mbps);
                verbs.rails.ports[rail].speed_mbps.min(theirs).max(1)
            };
            let speeds =
                core::array::from_fn(|rail| if in_use.has(rail) { speed(rail) } else { 0 });
            verbs.rails.weights = weights(&speeds);
        }
        verbs.use_rails(in_use);
        ends.qpn = verbs.nic.qp_num(&verbs.qp);
        ends.gid = verbs.port.gid;
        // A rail that is trusted and no longer in use is a standby that gives back.
        rails.failed = rails.failed.or(rails.in_use.without(in_use).without(trusted));
        rails.put_off(now_ns);
        rails.unresolved = rails.unresolved.without(both);
        rails.started = both;
        rails.carry_over(in_use);
        (rails.asked, rails.heard) = (RailSet::NONE, RailSet::NONE);
        (rails.stale, rails.shunned) = (RailSet::NONE, RailSet::NONE);
        rails.trusted = in_use.or(trusted);
        // An answer to an earlier question says nothing about these queue pairs.
        self.route.rail_work().answered = RailSet::NONE;
        info!("{}: data goes over rail {in_use}", self.ends);
        Ok(())
    }

    /// Asks the rails that have answered the question before. Only the sender tries rails on probation.
    pub(super) fn ask_rails(&mut self, now_ns: u64) {
        let Self { verbs, rails, route, .. } = self;
        let probe = SendWr {
            wr_id: PROBE,
            opcode: SendOpcode::RdmaWrite,
            flags: SendFlags::SIGNALED,
            ..SendWr::default()
        };
        for qp in verbs.all_qps() {
            let rail = verbs.nic.rail_of(qp) % RAILS_MAX;
            let asks = if R::IS_SENDER { rails.started } else { rails.in_use.or(rails.reserve()) };
            if !asks.without(rails.asked).without(rails.failed).has(rail) {
                continue;
            }
            if rails.trusted.without(rails.in_use).without(rails.reserve()).has(rail) {
                // The rail has answered and joins soon.
                continue;
            }
            match verbs.nic.post_send(qp, &[probe]) {
                Ok(()) => rails.asked = rails.asked.or(RailSet::one(rail)),
                Err(_) => rails.failed = rails.failed.or(RailSet::one(rail)),
            }
            let retry = &mut rails.retries[rail];
            (retry.silent_ns, retry.done) = (now_ns, route.rail_work().done[rail]);
        }
        if !rails.failed.and(rails.in_use).is_empty() {
            self.suspect(Suspicion::RailFailed);
        }
    }
}
