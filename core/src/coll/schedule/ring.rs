//! Steps around the ring (`all_reduce.h`, `all_gather.h`, `reduce_scatter.h`, `broadcast.h`,
//! `reduce.h`).

use super::{Operation, Schedule, Step};

impl<R: AsRef<[u32]>> Schedule<R> {
    pub(super) fn ring_phases(&self) -> u32 {
        match self.task.operation {
            Operation::AllReduce => 2 * self.nranks() - 1,
            Operation::AllGather | Operation::ReduceScatter => self.nranks(),
            _ => 1,
        }
    }

    pub(super) fn ring(&self, window: usize, phase: u32) -> Option<Step> {
        let nranks = self.nranks();
        Some(match self.task.operation {
            Operation::AllGather => self.ring_gather(window, phase),
            Operation::AllReduce if phase >= nranks => self.ring_gather(window, phase + 1 - nranks),
            Operation::Broadcast { root } => self.ring_from(window, root),
            Operation::Reduce { root } => self.ring_to(window, root),
            _ => self.ring_scatter(window, phase),
        })
    }

    /// A rank receives a chunk from the previous rank, reduces its own input into it, and sends it to
    /// the next rank. In the last phase, after as many phases as ranks, the chunk is complete and
    /// belongs to this rank.
    fn ring_scatter(&self, window: usize, phase: u32) -> Step {
        let nranks = self.nranks();
        let ring = self.ring;
        let chunk = self.cut.chunk(window, self.order.rank(self.place + 2 * nranks - 1 - phase));
        let step = Step::new(chunk.count);
        let step = if phase > 0 { step.recv([ring.prev]) } else { step };
        let step = step.input(chunk.of_all);
        let complete = phase == nranks - 1;
        let step = if complete { step.output(chunk.of_one).finish() } else { step };
        let goes_on = !complete || self.task.operation == Operation::AllReduce && nranks > 1;
        if goes_on { step.send([ring.next]) } else { step }
    }

    /// Each rank's own chunk goes once around the ring.
    fn ring_gather(&self, window: usize, phase: u32) -> Step {
        let nranks = self.nranks();
        let ring = self.ring;
        let chunk = self.cut.chunk(window, self.order.rank(self.place + nranks - phase));
        let step = Step::new(chunk.count);
        let step = if phase > 0 { step.recv([ring.prev]) } else { step.input(chunk.of_one) };
        let step = step.output(chunk.of_all);
        if phase < nranks - 1 { step.send([ring.next]) } else { step }
    }

    fn ring_from(&self, window: usize, root: u32) -> Step {
        let ring = self.ring;
        let chunk = self.cut.chunk(window, 0);
        let step = Step::new(chunk.count);
        let step = match self.task.rank == root {
            true => step.input(chunk.of_one),
            false => step.recv([ring.prev]),
        };
        let step = step.output(chunk.of_one);
        if ring.next != root { step.send([ring.next]) } else { step }
    }

    fn ring_to(&self, window: usize, root: u32) -> Step {
        let ring = self.ring;
        let chunk = self.cut.chunk(window, 0);
        let step = Step::new(chunk.count);
        let step = if ring.prev != root { step.recv([ring.prev]) } else { step };
        let step = step.input(chunk.of_one);
        match self.task.rank == root {
            true => step.output(chunk.of_one).finish(),
            false => step.send([ring.next]),
        }
    }
}
