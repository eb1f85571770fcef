//! A plan: all jobs that one rank runs at once, on all its channels.

use std::sync::Arc;

use invar_core::coll::{Operation, Order, RedOp, Schedule, Task};

use super::job::{Buffers, Job, Progress};
use super::links::{Links, Needs};
use super::reduce::Reducer;
use crate::Error;
use crate::error::Kind;

/// One rank's shares of operations: of collectives, or of sends and receives. The plan runs the shares at once.
/// Shares of collectives on the same channel use the same links, so the plan runs them one after the other. Sends to
/// one peer run one after the other too, and so do receives from one peer.
///
/// No function of the plan waits or knows of time or of threads.
#[derive(Default)]
pub struct Plan(Vec<Lane>);

/// The shares of one operation on one channel.
struct Lane {
    channel: u32,
    operation: Operation,
    jobs: Vec<Job>,
    /// Number of jobs that are done.
    done: usize,
}

impl Plan {
    /// Adds the share of `task`. If `redop` is given, the ranks reduce by it.
    ///
    /// # Errors
    /// Fails if there is no schedule for the task. Fails if the plan has collectives and the task is a send or a
    /// receive, or the other way around: both would take each other's messages from the links.
    ///
    /// # Safety
    ///
    /// The following must hold until the plan is done or dropped. After that it must hold until
    /// [`Links::progress`] says that all data has left, or the links are dropped:
    /// - `input` and `output` have as many elements as [`Operation::input_count`] and
    ///   [`Operation::output_count`] say. Nobody else writes `input` or accesses `output`.
    /// - `input` and `output` are the same if NCCL has the operation in place; otherwise they do not
    ///   overlap.
    /// - Memory of different operations does not overlap if any of them writes it.
    pub unsafe fn add(
        &mut self,
        order: Order<Arc<[u32]>>,
        task: &Task,
        redop: Option<RedOp>,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), Error> {
        let Task { channel, operation, .. } = *task;
        let is_transfer = operation.is_transfer();
        if self.0.first().is_some_and(|lane| lane.operation.is_transfer() != is_transfer) {
            let text = format!(
                "{operation:?} in a plan of other operations: a plan has collectives, or sends and receives, so \
                 add it to another plan"
            );
            return Err(Kind::Usage(text).into());
        }
        let reducer = match redop {
            Some(op) => Reducer::new(task.data_type, op, order.nranks()),
            None => Reducer::copy(task.data_type),
        };
        let schedule = Schedule::new(order, task);
        let schedule = schedule.map_err(|error| Kind::Usage(error.to_string()))?;
        // SAFETY: the caller has promised what `Job::new` demands.
        let job = unsafe { Job::new(task, schedule, reducer, Buffers { input, output }) };
        let is_its = |lane: &&mut Lane| {
            lane.channel == channel && (lane.operation == operation || !is_transfer)
        };
        match self.0.iter_mut().find(is_its) {
            Some(lane) => lane.jobs.push(job),
            None => self.0.push(Lane { channel, operation, jobs: vec![job], done: 0 }),
        }
        Ok(())
    }

    /// Restarts the plan with other memory. All shares of the plan must belong to one operation.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`add`](Self::add).
    pub unsafe fn restart(&mut self, input: *const u8, output: *mut u8) {
        for lane in &mut self.0 {
            lane.done = 0;
            for job in &mut lane.jobs {
                // SAFETY: the caller has promised what `Job::restart` demands.
                unsafe { job.restart(Buffers { input, output }) };
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts to make the links that the plan needs and that do not exist. [`Links::progress`]
    /// completes each link when the peer needs it too.
    ///
    /// # Errors
    /// Fails if the rendezvous or the device of a link fails.
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

    /// Runs all steps that need not wait, over the links that [`prepare`](Self::prepare) has started to
    /// make.
    ///
    /// # Errors
    /// Fails if a link fails or if a peer does something else. The error is about the peer's rank, unless this
    /// rank has caused it.
    pub fn advance(&mut self, links: &mut Links) -> Result<Progress, Error> {
        let (mut all, mut finished) = (Progress::Done, false);
        for lane in &mut self.0 {
            while let Some(job) = lane.jobs.get_mut(lane.done) {
                match (job.advance(links)?, all) {
                    (Progress::Done, _) => {
                        lane.done += 1;
                        finished = true;
                    }
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
        // A job that is done has moved data, even if all others wait.
        Ok(if finished && all != Progress::Done { Progress::Moved } else { all })
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use invar_core::coll::{Algorithm, DataType};

    use super::*;
    use crate::ErrorKind;

    /// Adds the share of rank 0 of two ranks. The plan does not run, so the share needs no memory.
    fn add(plan: &mut Plan, operation: Operation) -> Result<(), Error> {
        let task = Task {
            operation,
            algorithm: Algorithm::Ring,
            count: 4,
            data_type: DataType::U8,
            rank: 0,
            channel: 0,
            nchannels: 1,
            slot_bytes: 64,
        };
        let order: Order<Arc<[u32]>> = Order::new(Arc::from([0, 1])).unwrap();
        // SAFETY: nobody advances the plan, so it touches no memory.
        unsafe { plan.add(order, &task, None, ptr::null(), ptr::null_mut()) }
    }

    #[test]
    fn a_plan_of_collectives_takes_no_transfer_and_the_other_way_around() {
        let (collective, transfer) = (Operation::AllGather, Operation::Send { peer: 1 });
        for (first, other) in [(collective, transfer), (transfer, collective)] {
            let mut plan = Plan::default();
            add(&mut plan, first).unwrap();
            let error = add(&mut plan, other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            add(&mut plan, first).unwrap();
        }
    }
}
