//! The passes of a run: a check, a trial, timed messages, and single messages, for each size.

use std::time::Duration;

use super::control::{ANSWER_WITHIN, Control};
use super::job::Job;
use super::latency::{Latency, Recorder};
use super::link::Link;
use super::message::{Kind, Pass, Reply, Request};
use super::op::{OpLink, Passed};
use super::operation::Op;
use super::pattern::Flow;
use super::report::{Report, Row};
use crate::failure::Failure;

/// Bytes of a pass that checks every byte.
const CHECK_BYTES: u64 = 64 << 20;
/// Times of a pass without a given number of messages: to find the number, and to measure.
const TRIAL: Duration = Duration::from_millis(15);
const TIMED: Duration = Duration::from_millis(200);
const PING_PONG: Duration = Duration::from_millis(80);

/// The connection of a run.
pub(super) enum AnyLink {
    Messages(Box<Link>),
    Pair(Box<OpLink>),
}

/// A measurement under way.
pub(super) struct Session<'a> {
    pub(super) job: &'a Job,
    pub(super) control: &'a mut Control,
    pub(super) link: AnyLink,
    pub(super) requests_max: u16,
    /// How many passes there were.
    pub(super) passes: u32,
}

impl Session<'_> {
    /// Measures one size.
    pub(super) fn row(&mut self, size: u32, report: &mut Report) -> Result<Row, Failure> {
        let mut wrong = 0;
        report.begin(size, "checking");
        if self.job.check {
            let slots = self.job.slots(size, self.requests_max);
            // A WRITE into a slot that was used hides the one before it.
            let rounds = if self.job.op == Op::Write { 1 } else { 2 };
            let messages = (CHECK_BYTES / u64::from(size.max(1))).max(2);
            let messages = messages.min(rounds * u64::from(slots));
            wrong = self.stream(Kind::Check, size, messages, 0)?.wrong;
        }
        report.begin(size, "timing");
        let (iters, trial_wrong) = match self.job.iters {
            Some(iters) => (u64::from(iters), 0),
            None => self.trial(size)?,
        };
        let iters = self.whole_groups(iters);
        let warmup = self.whole_groups(u64::from(self.job.warmup));
        let timed = self.stream(self.timed(), size, warmup + iters, warmup)?;
        report.begin(size, "latency");
        let message = timed.used.elapsed.div_f64(iters as f64);
        let (latency, latency_wrong) = self.latency(size, iters, message)?;
        // Nothing is known of a server's numbers.
        let wrong = [wrong, trial_wrong, timed.wrong, latency_wrong];
        let wrong = wrong.into_iter().fold(0, u64::saturating_add);
        let ways = if self.job.both_ways { 2 } else { 1 };
        Ok(Row::new(size, [iters, ways], timed.used, timed.peer_cpu_percent, wrong, latency))
    }

    /// The kind of a timed pass.
    fn timed(&self) -> Kind {
        if self.job.both_ways { Kind::Exchange } else { Kind::Stream }
    }

    /// Finds how many messages take long enough to be timed.
    fn trial(&mut self, size: u32) -> Result<(u64, u64), Failure> {
        let lead = u64::from(self.job.slots(size, self.requests_max));
        let (mut messages, mut wrong) = (self.whole_groups(4), 0);
        loop {
            let trial = self.stream(self.timed(), size, lead + messages, lead)?;
            let elapsed = trial.used.elapsed;
            wrong = trial.wrong.saturating_add(wrong);
            let fitting = |time: Duration| {
                let times = time.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
                (messages as f64 * times) as u64
            };
            if elapsed >= TRIAL / 2 {
                return Ok((fitting(self.job.duration.unwrap_or(TIMED)).max(4), wrong));
            }
            messages = self.whole_groups(fitting(TRIAL).clamp(2 * messages, 32 * messages));
        }
    }

    /// Measures half round trips of single messages, as many as fit into the time.
    fn latency(
        &mut self,
        size: u32,
        iters: u64,
        message: Duration,
    ) -> Result<(Latency, u64), Failure> {
        let round_trip = 2 * message + Duration::from_micros(20);
        let time = self.job.duration.unwrap_or(PING_PONG);
        let fitting = (time.as_nanos() / round_trip.as_nanos()) as u64;
        let messages = self.job.iters.map_or(fitting.max(4), |_| iters.min(fitting.max(4)));
        // The first messages meet cold caches and a sleeping server.
        let lead = messages.div_ceil(10);
        let slots = self.job.op.slots_each();
        let pass = self.next(Kind::PingPong, size, [lead + messages, lead], slots);
        let mut recorder = Recorder::new();
        let trips = if self.job.op == Op::Read { 1 } else { 2 };
        let took = |message, time: Duration| {
            if message >= lead {
                recorder.record(time / trips);
            }
        };
        let wrong = match &mut self.link {
            AnyLink::Pair(link) => link.ping(&pass, self.control, took)?,
            AnyLink::Messages(link) => {
                self.control.send(&Request::Pass(pass))?;
                let wrong = link.ping(&pass, took)?;
                answer(link, self.control)?.0.saturating_add(wrong)
            }
        };
        Ok((recorder.latency(), wrong))
    }

    /// Runs a pass to the server.
    fn stream(
        &mut self,
        kind: Kind,
        size: u32,
        messages: u64,
        lead: u64,
    ) -> Result<Passed, Failure> {
        let messages = self.whole_groups(messages);
        let slots = self.job.slots(size, self.requests_max);
        let pass = self.next(kind, size, [messages, lead], slots);
        let pace = if kind == Kind::Stream { self.job.pace(size) } else { None };
        let link = match &mut self.link {
            AnyLink::Pair(link) => return link.stream(&pass, pace, self.control),
            AnyLink::Messages(link) => link,
        };
        self.control.send(&Request::Pass(pass))?;
        let (wrong, used) = match kind {
            Kind::Exchange => link.exchange(&pass, Flow::ToServer)?,
            Kind::Stream | Kind::Check | Kind::PingPong => (0, link.transmit(&pass, pace)?),
        };
        let (theirs, peer_cpu_percent) = answer(link, self.control)?;
        link.end_last()?;
        Ok(Passed { used, wrong: theirs.saturating_add(wrong), peer_cpu_percent })
    }

    fn next(&mut self, kind: Kind, size: u32, [messages, lead]: [u64; 2], slots: u16) -> Pass {
        self.passes += 1;
        Pass { number: self.passes, kind, size, messages, lead, slots }
    }

    fn whole_groups(&self, messages: u64) -> u64 {
        messages.next_multiple_of(u64::from(self.job.recvs))
    }
}

/// Waits for the server's count of wrong bytes, and its processor time in percent.
fn answer(link: &Link, control: &mut Control) -> Result<(u64, Option<f64>), Failure> {
    let reply = control.recv(ANSWER_WITHIN);
    match reply.map_err(|failure| link.uncontrolled(failure))? {
        Reply::Done { wrong, cpu_percent } => Ok((wrong, cpu_percent)),
        reply => Err(reply.unexpected(control)),
    }
}
