//! What one rank does at once, on all its channels.

use std::collections::VecDeque;

use invar_core::coll::{Algorithm, Operation, Order, RedOp, Schedule, Task};

use super::job::{Buffers, Job, Progress};
use super::links::Links;
use super::reduce::Reducer;
use crate::Error;
use crate::error::Kind;

/// One rank's shares of operations: they are done at once, but for those of one operation on one
/// channel, which have links in common and are done one after the other.
///
/// Nothing here waits, nor knows of time or of threads.
#[derive(Default)]
pub struct Plan<'a>(Vec<((u32, Operation), VecDeque<Job<'a>>)>);

impl<'a> Plan<'a> {
    /// Adds a share: that of `task`, reduced by `redop` if at all.
    ///
    /// # Errors
    /// A task that there is no schedule for.
    ///
    /// # Safety
    ///
    /// As long as the plan is there, and until [`Links::progress`] then says that nothing has still
    /// to leave or the links are gone, `input` and `output` have as many elements as
    /// [`Operation::input_count`] and [`Operation::output_count`] say, which nobody else writes, or
    /// the output accesses. They are the same where NCCL has the operation in place, or do not
    /// overlap; memory of different operations does not overlap if any of them writes it.
    pub unsafe fn add(
        &mut self,
        order: Order<&'a [u32]>,
        task: &Task,
        redop: Option<RedOp>,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), Error> {
        let schedule = Schedule::new(order, task);
        let schedule = schedule.map_err(|error| Kind::Usage(error.to_string()))?;
        let reducer = match redop {
            Some(op) => Reducer::new(task.data_type, op, order.nranks()),
            None => Reducer::copy(task.data_type),
        };
        // What ranks do in one hop they may be done with while their input is still on its way; else
        // what comes to its place has the input of this rank in it, which so has arrived.
        let input_lasts = input != output.cast_const() || task.algorithm != Algorithm::OneShot;
        let buffers = Buffers { input, output, element_bytes: task.data_type.bytes(), input_lasts };
        // SAFETY: the caller's promise.
        let job = unsafe { Job::new(task.channel, schedule, reducer, buffers) };
        let lane = (task.channel, task.operation);
        match self.0.iter_mut().find(|(of, _)| *of == lane) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.0.push((lane, VecDeque::from([job]))),
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Shares by channel and operation.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (u32, Operation, &VecDeque<Job<'a>>)> {
        self.0.iter().map(|((channel, operation), jobs)| (*channel, *operation, jobs))
    }

    /// Does what can be done now, over links that are [prepared](Links::prepare) for it.
    ///
    /// # Errors
    /// What a link says, or a peer that does something else; it names the peer's rank.
    pub fn advance(&mut self, links: &mut Links) -> Result<Progress, Error> {
        let mut all = Progress::Done;
        for (_, jobs) in &mut self.0 {
            while let Some(job) = jobs.front_mut() {
                match (job.advance(links)?, all) {
                    (Progress::Done, _) => _ = jobs.pop_front(),
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
