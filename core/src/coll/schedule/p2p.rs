//! Steps from peer to peer (`sendrecv.h`).

use super::{Schedule, Step};
use crate::topology::Direction;

impl<R: AsRef<[u32]>> Schedule<R> {
    pub(super) fn all_to_all_phases(&self) -> u32 {
        2 * self.nranks().next_power_of_two()
    }

    /// In each round every rank sends to the peer at some distance ahead and receives from the peer at
    /// the same distance behind. The distances are triangular numbers modulo a power of two, which are
    /// all different. If a distance is not below the number of ranks, its round is empty (`init.cc`,
    /// p2pSchedule). So no rank is the peer of all others at once, and no rank talks to its neighbours
    /// only.
    pub(super) fn all_to_all(&self, window: usize, phase: u32) -> Option<Step> {
        let (rank, nranks) = (self.task.rank, self.nranks());
        let round = u64::from(phase / 2);
        let distance = (round * (round + 1) / 2) as u32 & (nranks.next_power_of_two() - 1);
        if distance >= nranks {
            return None;
        }
        let peer = match phase % 2 {
            0 => (rank + distance) % nranks,
            _ => (rank + nranks - distance) % nranks,
        };
        let chunk = self.cut.chunk(window, peer);
        let step = Step::new(chunk.count);
        match (phase % 2, distance) {
            (0, 0) => Some(step.input(chunk.of_all).output(chunk.of_all)),
            (0, _) => Some(step.input(chunk.of_all).send([peer])),
            (_, 0) => None,
            _ => Some(step.recv([peer]).output(chunk.of_all)),
        }
    }

    pub(super) fn transfer(&self, window: usize, direction: Direction, peer: u32) -> Step {
        let chunk = self.cut.chunk(window, 0);
        let step = Step::new(chunk.count);
        match direction {
            Direction::Send => step.input(chunk.of_one).send([peer]),
            Direction::Recv => step.recv([peer]).output(chunk.of_one),
        }
    }
}
