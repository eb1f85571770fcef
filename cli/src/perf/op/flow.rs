//! The two parts of a pass over a queue pair: requests that this end starts, and those that reach it.

use invar::nic::SendOpcode;
use invar::raw::QueuePair;

use super::super::message::{Kind, Pass, slot_bytes};
use super::super::operation::Op;
use super::super::pattern::Pattern;

use crate::failure::Failure;

/// The bit of a `wr_id` that marks a receive.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The requests that this end starts in a pass.
pub(super) struct Active {
    op: Op,
    pass: Pass,
    pattern: Pattern,
    half_bytes: usize,
    /// Requests under way at most.
    window: u64,
    pub(super) started: u64,
    pub(super) done: u64,
    /// How many bytes of READs were wrong.
    pub(super) wrong: u64,
}

impl Active {
    pub(super) fn new(op: Op, pass: &Pass, pattern: Pattern, half_bytes: usize) -> Self {
        let window = u64::from(pass.slots / op.slots_each()).max(1);
        Active { op, pass: *pass, pattern, half_bytes, window, started: 0, done: 0, wrong: 0 }
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.done >= self.pass.messages
    }

    /// Starts the requests for which there is room, up to `started_max`. Those of the lead are done
    /// before others start.
    #[inline]
    pub(super) fn start(&mut self, pair: &dyn QueuePair, started_max: u64) -> Result<(), Failure> {
        let Pass { messages, lead, .. } = self.pass;
        let last = if self.done < lead { lead.min(messages) } else { messages }.min(started_max);
        while self.started < last && self.started - self.done < self.window {
            let at = self.offset(self.started);
            match (self.op, self.pass.kind) {
                // A READ that brings nothing leaves the wrong bytes here.
                (Op::Read, _) => {
                    self.pattern.stamp(pair, self.half_bytes + at, !self.started)?;
                }
                (_, Kind::Check) => self.pattern.fill(pair, at, self.started)?,
                (_, Kind::Stream | Kind::Exchange | Kind::PingPong) => {
                    self.pattern.stamp(pair, at, self.started)?;
                }
            }
            self.post(pair, at)?;
        }
        Ok(())
    }

    /// Starts one request with the bytes that are at an offset of this end's half.
    #[inline]
    pub(super) fn post(&mut self, pair: &dyn QueuePair, at: usize) -> Result<(), Failure> {
        let there = self.half_bytes + at;
        let (opcode, from, peer_at) = match self.op {
            Op::Write => (SendOpcode::RdmaWrite, at, there),
            Op::Read => (SendOpcode::RdmaRead, there, at),
            Op::Send | Op::Message => (SendOpcode::Send, at, 0),
        };
        pair.post(opcode, self.started, from..from + self.pass.size as usize, peer_at)?;
        self.started += 1;
        Ok(())
    }

    /// Notes that the oldest request is done. The requests of a queue pair complete in order.
    #[inline]
    pub(super) fn completed(&mut self, pair: &dyn QueuePair) -> Result<(), Failure> {
        if self.op == Op::Read {
            let at = self.offset(self.done);
            let slot = self.done % u64::from(self.pass.slots);
            self.wrong += wrong(&self.pattern, &self.pass, pair, self.half_bytes + at, slot)?;
        }
        self.done += 1;
        Ok(())
    }

    #[inline]
    fn offset(&self, number: u64) -> usize {
        offset(&self.pass, number)
    }
}

/// The requests that reach this end in a pass.
pub(super) struct Passive {
    op: Op,
    pass: Pass,
    pattern: Pattern,
    half_bytes: usize,
    posted: u64,
    /// How many SENDs have arrived.
    pub(super) done: u64,
    /// How many bytes of WRITEs and SENDs were wrong.
    pub(super) wrong: u64,
}

impl Passive {
    pub(super) fn new(op: Op, pass: &Pass, pattern: Pattern, half_bytes: usize) -> Self {
        Passive { op, pass: *pass, pattern, half_bytes, posted: 0, done: 0, wrong: 0 }
    }

    /// Whether everything has arrived that this end can count.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.op != Op::Send || self.done == self.pass.messages
    }

    /// Does what must be done before the peer's first request: posts receives of SENDs, or writes what
    /// READs find. Each slot keeps one content while READs take it again and again.
    pub(super) fn prepare(&mut self, pair: &dyn QueuePair) -> Result<(), Failure> {
        match self.op {
            Op::Read => {
                for slot in 0..u64::from(self.pass.slots).min(self.pass.messages) {
                    let at = offset(&self.pass, slot);
                    match self.pass.kind {
                        Kind::Check => self.pattern.fill(pair, at, slot)?,
                        _ => self.pattern.stamp(pair, at, slot)?,
                    }
                }
            }
            Op::Send => {
                while self.posted < u64::from(self.pass.slots).min(self.pass.messages) {
                    self.post(pair)?;
                }
            }
            Op::Write | Op::Message => {}
        }
        Ok(())
    }

    fn post(&mut self, pair: &dyn QueuePair) -> Result<(), Failure> {
        let at = self.half_bytes + offset(&self.pass, self.posted);
        pair.post_recv(RECEIVE | self.posted, at..at + self.pass.size as usize)?;
        self.posted += 1;
        Ok(())
    }

    /// Checks the SEND that has arrived, and posts its receive again.
    #[inline]
    pub(super) fn received(&mut self, pair: &dyn QueuePair, len: u32) -> Result<(), Failure> {
        let at = self.half_bytes + offset(&self.pass, self.done);
        self.wrong += u64::from(len.abs_diff(self.pass.size));
        self.wrong += wrong(&self.pattern, &self.pass, pair, at, self.done)?;
        self.done += 1;
        if self.posted < self.pass.messages {
            self.post(pair)?;
        }
        Ok(())
    }

    /// Checks WRITEs, of which each slot shows the last one.
    pub(super) fn finish(&mut self, pair: &dyn QueuePair) -> Result<(), Failure> {
        if self.op != Op::Write || self.pass.kind == Kind::PingPong {
            return Ok(());
        }
        let first = self.pass.messages.saturating_sub(u64::from(self.pass.slots));
        for number in first..self.pass.messages {
            let at = self.half_bytes + offset(&self.pass, number);
            self.wrong += wrong(&self.pattern, &self.pass, pair, at, number)?;
        }
        Ok(())
    }
}

/// The offset of a message in its half of the memory.
#[inline]
fn offset(pass: &Pass, number: u64) -> usize {
    (number % u64::from(pass.slots)) as usize * slot_bytes(pass.size)
}

/// Counts the wrong bytes of a message, as far as the pass looks at them.
#[inline]
fn wrong(
    pattern: &Pattern,
    pass: &Pass,
    pair: &dyn QueuePair,
    at: usize,
    number: u64,
) -> Result<u64, Failure> {
    Ok(match pass.kind {
        Kind::Check => pattern.wrong(pair, at, number)?,
        Kind::Stream | Kind::Exchange | Kind::PingPong => pattern.stamp_wrong(pair, at, number)?,
    })
}
