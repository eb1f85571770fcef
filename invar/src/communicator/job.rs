//! A schedule at work: the steps of one rank on one channel, over links and memory.

use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::coll::{Algorithm, ONE_SHOT_RANKS_MAX, Schedule, Step, Task};

use super::links::Links;
use super::reduce::Reducer;
use crate::Error;
use crate::error::Kind;

/// Operands of a step: every other rank's slot, and the input. Destinations are as many.
const PLACES_MAX: usize = ONE_SHOT_RANKS_MAX as usize;

/// The memory of an operation: this rank's input and output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) input: *const u8,
    pub(super) output: *mut u8,
}

// SAFETY: by the promise of `Job::new` they are the job's until it is done, whichever thread does it.
unsafe impl Send for Buffers {}

/// One rank's share of an operation on one channel.
pub(super) struct Job {
    channel: u32,
    element_bytes: usize,
    /// Whether a rank may be done while its input is still on its way.
    is_one_hop: bool,
    schedule: Schedule<Arc<[u32]>>,
    /// The next step; it waits for slots.
    step: Option<Step>,
    reducer: Reducer,
    buffers: Buffers,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All steps are done.
    Done,
    /// Some were.
    Moved,
    /// The next waits for this rank.
    Waiting(u32),
}

impl Job {
    /// # Safety
    ///
    /// As of [`Reducer::run`] for each of the schedule's steps, as long as the job is advanced, and
    /// until [`Links::progress`] says that nothing has still to leave or the links are gone: the
    /// buffers have the elements that the schedule's task says.
    pub(super) unsafe fn new(
        task: &Task,
        mut schedule: Schedule<Arc<[u32]>>,
        reducer: Reducer,
        buffers: Buffers,
    ) -> Self {
        Job {
            channel: task.channel,
            element_bytes: task.data_type.bytes(),
            is_one_hop: task.algorithm == Algorithm::OneShot,
            step: schedule.next(),
            schedule,
            reducer,
            buffers,
        }
    }

    /// All steps once more, in other memory.
    ///
    /// # Safety
    ///
    /// As of [`new`](Self::new).
    pub(super) unsafe fn restart(&mut self, buffers: Buffers) {
        self.schedule.rewind();
        (self.step, self.buffers) = (self.schedule.next(), buffers);
    }

    /// The steps that are to come.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        self.step.iter().cloned().chain(self.schedule.clone())
    }

    /// Does steps until one has to wait.
    pub(super) fn advance(&mut self, links: &mut Links) -> Result<Progress, Error> {
        let mut moved = false;
        while let Some(step) = &self.step {
            if let Some(peer) = self.run(step, links)? {
                return Ok(if moved { Progress::Moved } else { Progress::Waiting(peer) });
            }
            self.step = self.schedule.next();
            moved = true;
        }
        Ok(Progress::Done)
    }

    /// Does one step, or gives the rank that it waits for.
    fn run(&self, step: &Step, links: &mut Links) -> Result<Option<u32>, Error> {
        let (Buffers { input, output }, element_bytes) = (self.buffers, self.element_bytes);
        // In place, what ranks do in one hop may write input that is still on its way; else what comes
        // to its place has the input of this rank in it, which so has arrived.
        let input_lasts = input != output.cast_const() || !self.is_one_hop;
        let len = step.count * element_bytes;
        let output = step.output.map(|first| {
            // SAFETY: by the promise of `new` the output has these elements.
            unsafe { output.add(first * element_bytes) }
        });
        let mut operands = Places::<*const u8>::default();
        let mut destinations = Places::<*mut u8>::default();
        let own = step.input.map(|first| {
            // SAFETY: by the promise of `new` the input has these elements.
            unsafe { input.add(first * element_bytes) }
        });
        // What comes and is stored as it is comes right to its place, where it can.
        let to = output.filter(|_| step.recv.len() == 1 && own.is_none() && !step.finish);
        for (i, peer) in step.recv.iter().enumerate() {
            if let Some(own) = own.filter(|_| i == step.input_at) {
                operands.push(own);
            }
            let Some(link) = links.recv(self.channel, *peer) else { return Ok(Some(*peer)) };
            let full = match to.and_then(NonNull::new) {
                // SAFETY: the promise of `new`. A step that waits is tried again as it is.
                Some(to) => unsafe { link.full_at(to, len) }?,
                None => link.full()?,
            };
            let Some((slot, filled)) = full else { return Ok(Some(*peer)) };
            if filled != len {
                return Err(unequal(*peer, filled, len));
            }
            operands.push(slot.as_ptr());
        }
        if let Some(own) = own.filter(|_| step.input_at == step.recv.len()) {
            operands.push(own);
        }
        let is_there = |output: &*mut u8| own.is_none() && operands.all() == [output.cast_const()];
        if let Some(output) = output.filter(|output| !is_there(output)) {
            destinations.push(output);
        }
        // Where the value is that is sent, if it stays there: the output is written once.
        let own_as_it_is = own.filter(|_| step.recv.is_empty() && !self.reducer.divides_inputs());
        let lasting = own_as_it_is.filter(|_| input_lasts).or(output.map(<*mut u8>::cast_const));
        let lasting = lasting.and_then(|start| NonNull::new(start.cast_mut()));
        for peer in &step.send {
            let Some(link) = links.send(self.channel, *peer) else { return Ok(Some(*peer)) };
            let Some(slot) = link.free(len)? else { return Ok(Some(*peer)) };
            if lasting.is_none() || !link.takes_memory() {
                destinations.push(slot.as_ptr());
            }
        }
        let at = own.map(|_| step.input_at);
        if !destinations.all().is_empty() {
            // SAFETY: slots are ours until they are released or published, and have `len` bytes;
            // the rest is the promise of `new`.
            unsafe {
                self.reducer.run(operands.all(), at, destinations.all(), step.count, step.finish);
            }
        }
        for peer in &step.recv {
            if let Some(link) = links.recv(self.channel, *peer) {
                link.release();
            }
        }
        for peer in &step.send {
            let Some(link) = links.send(self.channel, *peer) else { continue };
            match lasting.filter(|_| link.takes_memory()) {
                // SAFETY: by the promise of `new`, and nothing here writes there again before the
                // peer has it.
                Some(start) => unsafe { link.publish_from(start, len) }?,
                None => link.publish(len)?,
            }
        }
        Ok(None)
    }
}

/// Where operands are, or destinations.
struct Places<P> {
    places: [P; PLACES_MAX],
    len: usize,
}

impl Default for Places<*const u8> {
    fn default() -> Self {
        Places { places: [std::ptr::null(); PLACES_MAX], len: 0 }
    }
}

impl Default for Places<*mut u8> {
    fn default() -> Self {
        Places { places: [std::ptr::null_mut(); PLACES_MAX], len: 0 }
    }
}

impl<P> Places<P> {
    fn push(&mut self, place: P) {
        self.places[self.len] = place;
        self.len += 1;
    }

    fn all(&self) -> &[P] {
        &self.places[..self.len]
    }
}

#[cold]
fn unequal(rank: u32, got: usize, want: usize) -> Error {
    let text = format!(
        "it sent {got} bytes where {want} were expected; do all ranks make the same calls, with \
         the same count and type?"
    );
    Kind::Mismatch { rank, text }.into()
}
