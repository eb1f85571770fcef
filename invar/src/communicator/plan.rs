//! What one rank does at once, on all its channels.

use std::sync::Arc;

use invar_core::coll::{Operation, Order, RedOp, Schedule, Task};

use super::job::{Buffers, Job, Progress};
use super::links::{Links, Needs};
use super::reduce::Reducer;
use crate::Error;
use crate::error::Kind;

/// One rank's shares of operations: they are done at once, but for those of one operation on one
/// channel, which have links in common and are done one after the other.
///
/// Nothing here waits, nor knows of time or of threads.
#[derive(Default)]
pub struct Plan(Vec<Lane>);

/// Those of one operation on one channel.
struct Lane {
    channel: u32,
    operation: Operation,
    jobs: Vec<Job>,
    /// How many of the jobs are done.
    done: usize,
}

impl Plan {
    /// Adds a share: that of `task`, reduced by `redop` if at all.
    ///
    /// # Errors
    /// A task that there is no schedule for.
    ///
    /// # Safety
    ///
    /// Until the plan is done or gone, and then [`Links::progress`] says that nothing has still to
    /// leave or the links are gone, `input` and `output` have as many elements as
    /// [`Operation::input_count`] and [`Operation::output_count`] say, which nobody else writes, or
    /// the output accesses. They are the same where NCCL has the operation in place, or do not
    /// overlap; memory of different operations does not overlap if any of them writes it.
    pub unsafe fn add(
        &mut self,
        order: Order<Arc<[u32]>>,
        task: &Task,
        redop: Option<RedOp>,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), Error> {
        let reducer = match redop {
            Some(op) => Reducer::new(task.data_type, op, order.nranks()),
            None => Reducer::copy(task.data_type),
        };
        let schedule = Schedule::new(order, task);
        let schedule = schedule.map_err(|error| Kind::Usage(error.to_string()))?;
        // SAFETY: the caller's promise.
        let job = unsafe { Job::new(task, schedule, reducer, Buffers { input, output }) };
        let Task { channel, operation, .. } = *task;
        match self.0.iter_mut().find(|lane| (lane.channel, lane.operation) == (channel, operation))
        {
            Some(lane) => lane.jobs.push(job),
            None => self.0.push(Lane { channel, operation, jobs: vec![job], done: 0 }),
        }
        Ok(())
    }

    /// Starts over, with the same of other memory. All of it is of one operation.
    ///
    /// # Safety
    ///
    /// As of [`add`](Self::add).
    pub unsafe fn restart(&mut self, input: *const u8, output: *mut u8) {
        for lane in &mut self.0 {
            lane.done = 0;
            for job in &mut lane.jobs {
                // SAFETY: the caller's promise.
                unsafe { job.restart(Buffers { input, output }) };
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins to make the links that it needs and that are not there. They come by
    /// [`Links::progress`], each when its peer needs it too.
    ///
    /// # Errors
    /// What the rendezvous says, or the device of a link.
    pub fn prepare(&self, links: &mut Links) -> Result<(), Error> {
        if self.0.iter().all(|lane| links.is_ready(lane.channel)) {
            return Ok(());
        }
        let mut needs = Needs::default();
        for Lane { channel, jobs, done, .. } in &self.0 {
            for step in jobs[*done..].iter().flat_map(Job::steps) {
                step.send.iter().for_each(|peer| needs.send(*channel, *peer));
                step.recv.iter().for_each(|peer| needs.recv(*channel, *peer));
            }
        }
        links.make(&needs)
    }

    /// Does what can be done now, over links that it has [prepared](Self::prepare).
    ///
    /// # Errors
    /// What a link says, or a peer that does something else; it names the peer's rank.
    pub fn advance(&mut self, links: &mut Links) -> Result<Progress, Error> {
        let mut all = Progress::Done;
        for lane in &mut self.0 {
            while let Some(job) = lane.jobs.get_mut(lane.done) {
                match (job.advance(links)?, all) {
                    (Progress::Done, _) => lane.done += 1,
                    (Progress::Moved, _) => {
                        all = Progress::Moved;
                        break;
                    }
                    (waiting, Progress::Done) => {
                        all = waiting;
                        break;
                    }
                    _ => break,
                }
            }
        }
        Ok(all)
    }
}
