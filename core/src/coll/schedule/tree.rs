//! Steps up a tree and down again (`all_reduce.h` runTreeUpDown), or in one direction only.

use super::{Operation, Schedule, Step};

impl<R: AsRef<[u32]>> Schedule<R> {
    pub(super) fn tree(&self, window: usize, phase: u32) -> Option<Step> {
        let tree = &self.tree;
        let (up, down) = match self.task.operation {
            Operation::Reduce { .. } => (true, false),
            Operation::Broadcast { .. } => (false, true),
            _ if tree.up.is_none() => (true, true),
            _ => (phase == 0, phase == 1),
        };
        // The root does everything in one step, so it uses only one phase.
        if up && down && phase == 1 {
            return None;
        }
        let behind = if down && !up { self.behind } else { 0 };
        let chunk = self.cut.chunk(window.checked_sub(behind)?, 0);
        let mut step = Step::new(chunk.count);
        if up {
            step = step.recv(tree.down.into_iter().flatten()).input(chunk.of_one);
        }
        step = match tree.up {
            Some(parent) if up => return Some(step.send([parent])),
            Some(parent) => step.recv([parent]),
            None if up => step.finish(),
            None => step.input(chunk.of_one),
        };
        step = step.output(chunk.of_one);
        if down {
            step = step.send(tree.down.into_iter().flatten());
        }
        Some(step)
    }
}
