//! Each rank sends its data directly to each rank that needs it. The receiver reduces in the order of
//! ranks.

use super::cut::ScheduleChunk;
use super::{Algorithm, Operation, Schedule, Step};

impl<R: AsRef<[u32]>> Schedule<R> {
    pub(super) fn one_shot_phases(&self) -> u32 {
        match (self.task.operation, self.task.algorithm) {
            (Operation::AllReduce, Algorithm::TwoShot) => 2 * self.nranks() - 1,
            (Operation::AllReduce, _) => 2,
            (Operation::AllGather | Operation::ReduceScatter, _) => self.nranks(),
            _ => 1,
        }
    }

    pub(super) fn one_shot(&self, window: usize, phase: u32) -> Option<Step> {
        let nranks = self.nranks();
        let whole = self.cut.chunk(window, 0);
        match (self.task.operation, self.task.algorithm) {
            (Operation::AllReduce, Algorithm::TwoShot) if phase < nranks => {
                let behind = if phase + 1 < nranks { 0 } else { self.behind };
                Some(self.scatter_straight(window.checked_sub(behind)?, phase))
            }
            (Operation::AllReduce, Algorithm::TwoShot) => {
                let window = window.checked_sub(2 * self.behind)?;
                Some(self.gather_straight(window, phase + 1 - nranks))
            }
            (Operation::AllReduce, _) if phase == 0 => {
                (nranks > 1).then(|| Step::new(whole.count).input(whole.of_one).send(self.others()))
            }
            (Operation::AllReduce, _) => {
                Some(self.reduce_straight(self.cut.chunk(window.checked_sub(self.behind)?, 0)))
            }
            (Operation::ReduceScatter, _) => Some(self.scatter_straight(window, phase)),
            (Operation::AllGather, _) => Some(self.gather_straight(window, phase)),
            (Operation::Reduce { root }, _) if root == self.task.rank => {
                Some(self.reduce_straight(whole))
            }
            (Operation::Reduce { root }, _) => {
                Some(Step::new(whole.count).input(whole.of_one).send([root]))
            }
            (Operation::Broadcast { root }, _) if root == self.task.rank => {
                let step = Step::new(whole.count).input(whole.of_one).output(whole.of_one);
                Some(step.send(self.others()))
            }
            (Operation::Broadcast { root }, _) => {
                Some(Step::new(whole.count).recv([root]).output(whole.of_one))
            }
            (Operation::AllToAll | Operation::Send { .. } | Operation::Recv { .. }, _) => None,
        }
    }

    /// In the first phases this rank sends each peer its part. In the last phase it reduces its own
    /// part from all ranks.
    fn scatter_straight(&self, window: usize, phase: u32) -> Step {
        let nranks = self.nranks();
        let peer = (self.task.rank + 1 + phase) % nranks;
        let chunk = self.cut.chunk(window, peer);
        if phase < nranks - 1 {
            return Step::new(chunk.count).input(chunk.of_all).send([peer]);
        }
        let step = self.reduce_straight(chunk);
        match self.task.operation {
            Operation::AllReduce => step.send(self.others()),
            _ => step,
        }
    }

    /// In the first phase this rank sends its own part to all ranks. In each later phase it receives
    /// one peer's part from that peer.
    fn gather_straight(&self, window: usize, phase: u32) -> Step {
        let peer = (self.task.rank + self.nranks() - phase) % self.nranks();
        let chunk = self.cut.chunk(window, peer);
        let step = Step::new(chunk.count).output(chunk.of_all);
        match phase {
            0 => step.input(chunk.of_one).send(self.others()),
            _ => step.recv([peer]),
        }
    }

    fn reduce_straight(&self, chunk: ScheduleChunk) -> Step {
        let (rank, nranks) = (self.task.rank, self.nranks());
        let step = Step::new(chunk.count).recv(0..rank).input(chunk.of_all);
        step.recv(rank + 1..nranks).output(chunk.of_one).finish()
    }
}
