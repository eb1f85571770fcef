//! Single requests: WRITEs and SENDs that go to and fro, and READs one after another.

use std::time::{Duration, Instant};

use super::super::control::Control;
use super::super::message::{Pass, Reply};
use super::super::operation::Op;
use super::super::pattern::{Flow, Pattern};
use super::super::usage::{Stretch, Used};
use super::flow::{Active, Passive};
use super::stream::{begin, ends};
use super::{AT_ONCE, OpLink};
use crate::failure::Failure;

impl OpLink {
    /// Starts single requests. Calls `took` with the time of each round trip, or of each READ. Returns how
    /// many bytes were wrong, at either end.
    pub(in super::super) fn ping(
        &mut self,
        pass: &Pass,
        control: &mut Control,
        mut took: impl FnMut(u64, Duration),
    ) -> Result<u64, Failure> {
        let (mut active, mut passive) = self.parts(pass);
        let mut turns = Turns::new(self, pass)?;
        if self.op == Op::Send {
            passive.prepare(&*self.pair)?;
        }
        begin(pass, control)?;
        for number in 0..pass.messages {
            turns.lay_out(self, number)?;
            let start = Instant::now();
            if self.op == Op::Read {
                active.start(&*self.pair, number + 1)?;
                self.complete(&mut active, &mut passive, number)?;
                took(number, start.elapsed());
            } else {
                active.post(&*self.pair, 0)?;
                self.arrive(&mut active, &mut passive, &mut turns, number)?;
                took(number, start.elapsed());
                self.complete(&mut active, &mut passive, number)?;
            }
            // Polls do not count here: 256 long READs take longer than a server waits.
            self.sign_now(control)?;
        }
        let (wrong, _) = self.end_pass(&mut active, &mut passive, control)?;
        let ours = active.wrong.saturating_add(passive.wrong).saturating_add(turns.wrong);
        Ok(wrong.saturating_add(ours))
    }

    /// Answers the requests of [`OpLink::ping`].
    pub(super) fn pong(
        &mut self,
        pass: &Pass,
        control: &mut Control,
    ) -> Result<(u64, Used), Failure> {
        let (mut active, mut passive) = self.parts(pass);
        let mut turns = Turns::new(self, pass)?;
        passive.prepare(&*self.pair)?;
        control.send(&Reply::Begun)?;
        let stretch = Stretch::begin();
        for number in 0..pass.messages {
            turns.lay_out(self, number)?;
            self.arrive(&mut active, &mut passive, &mut turns, number)?;
            active.post(&*self.pair, 0)?;
            self.complete(&mut active, &mut passive, number)?;
        }
        let used = stretch.end();
        loop {
            let mut moved = self.poll(&mut active, &mut passive)?;
            if self.must_look()? && control.has_line(AT_ONCE)? {
                if ends(control)? {
                    return Ok((passive.wrong.saturating_add(turns.wrong), used));
                }
                moved = true;
            }
            self.moved(moved)?;
        }
    }

    /// Waits until the peer's request of this number is there.
    #[inline]
    fn arrive(
        &mut self,
        active: &mut Active,
        passive: &mut Passive,
        turns: &mut Turns,
        number: u64,
    ) -> Result<(), Failure> {
        loop {
            let moved = self.poll(active, passive)?;
            let is_there = match self.op {
                Op::Send => passive.done > number,
                _ => turns.has_come(self, number)?,
            };
            if is_there {
                self.moved(true)?;
                return Ok(());
            }
            self.moved(moved)?;
        }
    }

    /// Waits until this end's request of this number is done.
    #[inline]
    fn complete(
        &mut self,
        active: &mut Active,
        passive: &mut Passive,
        number: u64,
    ) -> Result<(), Failure> {
        while active.done <= number {
            let moved = self.poll(active, passive)?;
            self.moved(moved)?;
        }
        Ok(())
    }
}

/// The bytes of single requests. The last byte of a WRITE counts, and the peer waits for its number. The
/// pattern covers the bytes before it.
struct Turns {
    op: Op,
    outward: Pattern,
    inward: Pattern,
    /// The offset of the count in a WRITE.
    last: usize,
    incoming: usize,
    wrong: u64,
}

impl Turns {
    fn new(link: &OpLink, pass: &Pass) -> Result<Self, Failure> {
        let is_write = link.op == Op::Write;
        let size = if is_write { pass.size.saturating_sub(1) } else { pass.size };
        let pattern = |flow| Pattern::new(link.seed, pass.number, flow, size);
        let (there, back) = (pattern(Flow::ToServer), pattern(Flow::ToClient));
        let (outward, inward) = match link.ours {
            Flow::ToServer => (there, back),
            Flow::ToClient => (back, there),
        };
        let (last, incoming) = (size as usize, link.half_bytes);
        if is_write {
            link.pair.write_at(incoming + last, &[0])?;
        }
        Ok(Turns { op: link.op, outward, inward, last, incoming, wrong: 0 })
    }

    /// Counts from 1, so that no count is that of untouched memory.
    #[inline]
    fn count(number: u64) -> u8 {
        (number % 255 + 1) as u8
    }

    /// Writes the bytes of this end's next request.
    #[inline]
    fn lay_out(&self, link: &OpLink, number: u64) -> Result<(), Failure> {
        if self.op == Op::Read {
            return Ok(());
        }
        self.outward.stamp(&*link.pair, 0, number)?;
        if self.op == Op::Write {
            link.pair.write_at(self.last, &[Self::count(number)])?;
        }
        Ok(())
    }

    /// Whether the peer's WRITE of this number is there. Then checks the bytes before its count.
    #[inline]
    fn has_come(&mut self, link: &OpLink, number: u64) -> Result<bool, Failure> {
        let mut count = [0];
        link.pair.read_at(self.incoming + self.last, &mut count)?;
        if count != [Self::count(number)] {
            return Ok(false);
        }
        self.wrong += self.inward.stamp_wrong(&*link.pair, self.incoming, number)?;
        Ok(true)
    }
}
