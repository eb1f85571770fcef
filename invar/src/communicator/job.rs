//! A job runs a schedule: the steps of one rank on one channel, over links and memory.
//!
//! Each step goes through four functions. [`gather`](Job::gather) collects the operands, and
//! [`reserve`](Job::reserve) takes slots to send. [`reduce`](Job::reduce) writes the value, and
//! [`publish`](Job::publish) sends it. Over links that take memory (TCP) a step avoids copies:
//!
//! | the step | avoided copy |
//! |---|---|
//! | receives one message and stores it unchanged | the message comes right to the output |
//! | ... and no link needs it in a slot | nothing is left to write |
//! | sends its own input unchanged | the link sends from the input |
//! | stores what it sends | the link sends from the output |
//! | sends its own input in one hop, in place | none: the result may overwrite the input too early |
//! | sends a value that it does not store | none: the value is written to a slot |

use std::ptr::NonNull;
use std::sync::Arc;

use invar_core::coll::{Algorithm, ONE_SHOT_RANKS_MAX, Schedule, Step, Task};

use super::links::Links;
use super::reduce::Reducer;
use crate::Error;
use crate::error::Kind;

/// Most operands of a step: the slot of every other rank, and the input. A step has at most as many
/// destinations.
const PLACES_MAX: usize = ONE_SHOT_RANKS_MAX as usize;

/// The memory of an operation: this rank's input and output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) input: *const u8,
    pub(super) output: *mut u8,
}

// SAFETY: by the promise of `Job::new` only the job uses the memory until it is done, whichever thread
// runs it.
unsafe impl Send for Buffers {}

/// One rank's share of an operation on one channel.
pub(super) struct Job {
    channel: u32,
    element_bytes: usize,
    /// Whether a rank may be done while its input is still on its way.
    is_one_hop: bool,
    schedule: Schedule<Arc<[u32]>>,
    /// The next step, which waits for slots.
    step: Option<Step>,
    reducer: Reducer,
    buffers: Buffers,
}

/// The result of advancing a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All steps are done.
    Done,
    /// At least one step was done, and the next one waits.
    Moved,
    /// The next step waits for this rank.
    Waiting(u32),
}

impl Job {
    /// # Safety
    ///
    /// The buffers have the elements that the schedule's task says, and the caller makes the promises
    /// of [`Reducer::run`] for each step. This holds as long as the job is advanced. Afterwards it
    /// holds until [`Links::progress`] says that all data has left, or the links are dropped.
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

    /// Restarts all steps with other memory.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`new`](Self::new).
    pub(super) unsafe fn restart(&mut self, buffers: Buffers) {
        self.schedule.rewind();
        (self.step, self.buffers) = (self.schedule.next(), buffers);
    }

    /// Returns the steps that are not done.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        self.step.iter().cloned().chain(self.schedule.clone())
    }

    /// Runs steps until one of them has to wait.
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

    /// Runs one step, or returns the rank that the step waits for.
    fn run(&self, step: &Step, links: &mut Links) -> Result<Option<u32>, Error> {
        let memory = self.memory(step);
        let (mut operands, mut destinations) = (Places::default(), Places::default());
        if let Some(peer) = self.gather(step, &memory, links, &mut operands)? {
            return Ok(Some(peer));
        }
        let is_there =
            |output: &*mut u8| memory.input.is_none() && operands.all() == [output.cast_const()];
        if let Some(output) = memory.output.filter(|output| !is_there(output)) {
            destinations.push(output);
        }
        if let Some(peer) = self.reserve(step, &memory, links, &mut destinations)? {
            return Ok(Some(peer));
        }
        self.reduce(step, operands.all(), destinations.all());
        self.publish(step, &memory, links)?;
        Ok(None)
    }

    /// Returns the parts of this rank's memory that a step reads and writes.
    fn memory(&self, step: &Step) -> StepMemory {
        let (Buffers { input, output }, element_bytes) = (self.buffers, self.element_bytes);
        // In place, a one-hop operation may overwrite input that is still on its way. In the other
        // algorithms, data that replaces the input contains this input, so the input has arrived by
        // then.
        let input_lasts = input != output.cast_const() || !self.is_one_hop;
        let own = step.input.map(|first| {
            // SAFETY: by the promise of `new` the input has these elements.
            unsafe { input.add(first * element_bytes) }
        });
        let output = step.output.map(|first| {
            // SAFETY: by the promise of `new` the output has these elements.
            unsafe { output.add(first * element_bytes) }
        });
        let is_stored_as_it_is = step.recv.len() == 1 && own.is_none() && !step.finish;
        let own_as_it_is = own.filter(|_| step.recv.is_empty() && !self.reducer.divides_inputs());
        let lasting = own_as_it_is.filter(|_| input_lasts).or(output.map(<*mut u8>::cast_const));
        StepMemory {
            len: step.count * element_bytes,
            input: own,
            output,
            receive_to: output.filter(|_| is_stored_as_it_is).and_then(NonNull::new),
            send_from: lasting.and_then(|start| NonNull::new(start.cast_mut())),
        }
    }

    /// Collects the received messages and the input, in the order of the reduction. Returns a rank
    /// whose message has not arrived yet.
    fn gather(
        &self,
        step: &Step,
        memory: &StepMemory,
        links: &mut Links,
        operands: &mut Places<*const u8>,
    ) -> Result<Option<u32>, Error> {
        let len = memory.len;
        for (i, peer) in step.recv.iter().enumerate() {
            if let Some(own) = memory.input.filter(|_| i == step.input_at) {
                operands.push(own);
            }
            let Some(link) = links.recv(self.channel, *peer) else { return Ok(Some(*peer)) };
            let full = match memory.receive_to {
                // SAFETY: the promise of `new` covers `to` and `len`. A step that waits is retried with
                // the same memory.
                Some(to) => unsafe { link.full_at(to, len) }?,
                None => link.full()?,
            };
            let Some((slot, filled)) = full else { return Ok(Some(*peer)) };
            if filled != len {
                return Err(unequal(*peer, filled, len));
            }
            operands.push(slot.as_ptr());
        }
        if let Some(own) = memory.input.filter(|_| step.input_at == step.recv.len()) {
            operands.push(own);
        }
        Ok(None)
    }

    /// Reserves a slot for each rank that the step sends to. Returns a rank whose link has no free
    /// slot.
    fn reserve(
        &self,
        step: &Step,
        memory: &StepMemory,
        links: &mut Links,
        destinations: &mut Places<*mut u8>,
    ) -> Result<Option<u32>, Error> {
        for peer in &step.send {
            let Some(link) = links.send(self.channel, *peer) else { return Ok(Some(*peer)) };
            let Some(slot) = link.free(memory.len)? else { return Ok(Some(*peer)) };
            if memory.send_from.is_none() || !link.takes_memory() {
                destinations.push(slot.as_ptr());
            }
        }
        Ok(None)
    }

    /// Writes the reduced operands to all destinations.
    fn reduce(&self, step: &Step, operands: &[*const u8], destinations: &[*mut u8]) {
        if destinations.is_empty() {
            return;
        }
        let own_at = step.input.map(|_| step.input_at);
        // SAFETY: this rank owns the slots until it releases or publishes them, and they have the
        // step's bytes. The promise of `new` covers the other memory.
        unsafe { self.reducer.run(operands, own_at, destinations, step.count, step.finish) };
    }

    /// Releases the received slots, and sends.
    fn publish(&self, step: &Step, memory: &StepMemory, links: &mut Links) -> Result<(), Error> {
        for peer in &step.recv {
            if let Some(link) = links.recv(self.channel, *peer) {
                link.release();
            }
        }
        for peer in &step.send {
            let Some(link) = links.send(self.channel, *peer) else { continue };
            match memory.send_from.filter(|_| link.takes_memory()) {
                // SAFETY: by the promise of `new` the memory is valid, and this job does not write it
                // again before the peer has received the data.
                Some(start) => unsafe { link.publish_from(start, memory.len) }?,
                None => link.publish(memory.len)?,
            }
        }
        Ok(())
    }
}

/// The parts of this rank's memory that a step uses.
struct StepMemory {
    /// Number of bytes of each operand and each message.
    len: usize,
    input: Option<*const u8>,
    output: Option<*mut u8>,
    /// The memory that the message goes to, if the link can receive it there directly.
    receive_to: Option<NonNull<u8>>,
    /// The memory that the sent value stays in. A link that takes memory sends from there.
    send_from: Option<NonNull<u8>>,
}

/// The addresses of operands or of destinations.
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
        "rank {rank} sent {got} bytes where {want} were expected; do all ranks make the same \
         calls, with the same count and type?"
    );
    Kind::Mismatch { rank, text }.into()
}
