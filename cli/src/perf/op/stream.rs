//! A pass with several requests under way.

use std::time::Duration;

use super::super::control::Control;
use super::super::message::{Kind, Pass, Reply, Request};
use super::super::operation::Op;
use super::super::pass::Pace;
use super::super::usage::{Stretch, Used};
use super::{AT_ONCE, OpLink};
use crate::failure::Failure;

/// The results of a pass at the client.
pub(in super::super) struct Passed {
    /// How many bytes were wrong, at either end.
    pub(in super::super) wrong: u64,
    pub(in super::super) used: Used,
    pub(in super::super) peer_cpu_percent: Option<f64>,
}

/// Time in which the server gets ready for a pass.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);

impl OpLink {
    /// Starts the requests of a pass, each at least `pace` after the one before. The clock starts when
    /// those of the lead are done.
    pub(in super::super) fn stream(
        &mut self,
        pass: &Pass,
        pace: Option<Duration>,
        control: &mut Control,
    ) -> Result<Passed, Failure> {
        let (mut active, mut passive) = self.parts(pass);
        let is_exchange = pass.kind == Kind::Exchange;
        if is_exchange {
            passive.prepare(&*self.pair)?;
        }
        begin(pass, control)?;
        let pace = pace.map(|each| Pace { each, lead: pass.lead });
        let mut stretch = Stretch::begin();
        let mut is_timed = pass.lead == 0;
        while !active.is_done() || is_exchange && !passive.is_done() {
            let started_max = match &pace {
                Some(pace) if active.done >= pass.lead => pace.started_max(stretch.elapsed()),
                _ => u64::MAX,
            };
            active.start(&*self.pair, started_max)?;
            let moved = self.poll(&mut active, &mut passive)?;
            if !is_timed && active.done >= pass.lead {
                is_timed = true;
                stretch = Stretch::begin();
            }
            let waits_for_pace = active.started == active.done && active.started >= started_max;
            self.moved(moved || waits_for_pace)?;
            self.sign(control)?;
        }
        let used = stretch.end();
        let (wrong, peer_cpu_percent) = self.end_pass(&mut active, &mut passive, control)?;
        if is_exchange {
            passive.finish(&*self.pair)?;
        }
        let wrong = wrong.saturating_add(active.wrong).saturating_add(passive.wrong);
        Ok(Passed { wrong, used, peer_cpu_percent })
    }

    /// Takes part in a pass that a client asks for. Returns how many bytes were wrong, and the time from
    /// the first request to the last.
    pub(in super::super) fn serve(
        &mut self,
        pass: &Pass,
        control: &mut Control,
    ) -> Result<(u64, Used), Failure> {
        if pass.kind == Kind::PingPong && self.op != Op::Read {
            return self.pong(pass, control);
        }
        let (mut active, mut passive) = self.parts(pass);
        let is_exchange = pass.kind == Kind::Exchange;
        passive.prepare(&*self.pair)?;
        control.send(&Reply::Begun)?;
        let stretch = Stretch::begin();
        let mut has_ended = false;
        while !has_ended || !passive.is_done() || is_exchange && !active.is_done() {
            if is_exchange {
                active.start(&*self.pair, u64::MAX)?;
            }
            let mut moved = self.poll(&mut active, &mut passive)?;
            if !has_ended && self.must_look()? && control.has_line(AT_ONCE)? {
                moved = true;
                has_ended = ends(control)?;
            }
            self.moved(moved)?;
        }
        let used = stretch.end();
        passive.finish(&*self.pair)?;
        Ok((passive.wrong.saturating_add(active.wrong), used))
    }

    /// Ends a pass of this client, and polls until the server has answered. Returns the server's count of
    /// wrong bytes and its processor time.
    pub(super) fn end_pass(
        &mut self,
        active: &mut super::Active,
        passive: &mut super::Passive,
        control: &mut Control,
    ) -> Result<(u64, Option<f64>), Failure> {
        control.send(&Request::End)?;
        loop {
            let moved = self.poll(active, passive)?;
            self.moved(moved)?;
            if self.must_look()? && control.has_line(AT_ONCE)? {
                break;
            }
        }
        match control.recv(AT_ONCE)? {
            Reply::Done { wrong, cpu_percent } => Ok((wrong, cpu_percent)),
            reply => Err(reply.unexpected(control)),
        }
    }
}

/// Asks the server for a pass, and waits until it is ready.
pub(super) fn begin(pass: &Pass, control: &mut Control) -> Result<(), Failure> {
    control.send(&Request::Pass(*pass))?;
    match control.recv(BEGIN_WITHIN)? {
        Reply::Begun => Ok(()),
        reply => Err(reply.unexpected(control)),
    }
}

/// Whether the client's line ends the pass.
pub(super) fn ends(control: &mut Control) -> Result<bool, Failure> {
    match control.recv(AT_ONCE)? {
        Request::End => Ok(true),
        Request::Going => Ok(false),
        _ => Err(Failure::new("the client asks for something else in the middle of a pass")),
    }
}
