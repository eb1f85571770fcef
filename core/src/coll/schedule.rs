//! Computes the steps of one rank on one channel.

mod cut;
mod one_shot;
mod p2p;
mod ring;
mod tree;

use self::cut::Cut;
use super::{Algorithm, ONE_SHOT_RANKS_MAX, Operation, Order, Task, TaskError};
use crate::math::STEPS;
use crate::topology::{Direction, Ring, Tree};

/// Number of chunks by which a rank sends ahead of the chunks that come back. The number is large
/// enough to keep both directions busy, and smaller than the number of a link's slots.
const AHEAD: usize = STEPS as usize / 2;
/// Number of chunks by which each of the two hops through memory runs ahead. Ranks that work side by
/// side need no more to avoid waiting for each other. More chunks would not fit in the caches.
const AHEAD_TWO_SHOT: usize = 1;

/// The peer ranks of a step: none, one, or all others.
pub type Peers = heapless::Vec<u32, { ONE_SHOT_RANKS_MAX as usize - 1 }>;

/// One step: the operands become one value, which goes to each destination.
///
/// A step moves one slot of `count` elements from each peer in `recv` and one to each peer in `send`.
/// Both ends of a link have the same steps over it in the same order, so a slot needs no name.
///
/// In an in-place operation, an operand and a destination may be the same memory. The step then reads
/// an element before it writes it. There is no other overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of elements, at most as many as a slot holds. Only the last step of a transfer may have
    /// 0.
    pub count: usize,
    /// The peers whose slots are operands, in the order of the reduction.
    pub recv: Peers,
    /// The first element of the rank's input, if the input is an operand too.
    pub input: Option<usize>,
    /// Number of slots that are reduced before the input.
    pub input_at: usize,
    /// The first element of the rank's output that stores the value, if the output is a destination.
    pub output: Option<usize>,
    /// The peers whose slots receive the value.
    pub send: Peers,
    /// Whether the value contains the inputs of all ranks and so is the result. At this step an average
    /// of integers is divided.
    pub finish: bool,
}

impl Step {
    fn new(count: usize) -> Self {
        Step {
            count,
            recv: Peers::new(),
            input: None,
            input_at: 0,
            output: None,
            send: Peers::new(),
            finish: false,
        }
    }

    fn recv(mut self, peers: impl IntoIterator<Item = u32>) -> Self {
        for peer in peers {
            // `Task::check` allows no step with more peers than the vector has room for.
            let _ = self.recv.push(peer);
        }
        self
    }

    fn send(mut self, peers: impl IntoIterator<Item = u32>) -> Self {
        for peer in peers {
            let _ = self.send.push(peer);
        }
        self
    }

    /// Adds the input as an operand behind the slots that are operands so far.
    fn input(mut self, first: usize) -> Self {
        (self.input, self.input_at) = (Some(first), self.recv.len());
        self
    }

    fn output(mut self, first: usize) -> Self {
        self.output = Some(first);
        self
    }

    fn finish(mut self) -> Self {
        self.finish = true;
        self
    }
}

/// An iterator over the steps of a task, in order. The schedule owns only its order, which may be a
/// borrowed row.
///
/// Channels and tasks are independent of each other. A caller that runs several schedules takes the
/// next step of each one as soon as the slots for that step are there.
#[derive(Clone, Debug)]
pub struct Schedule<R> {
    order: Order<R>,
    task: Task,
    cut: Cut,
    /// The place of this rank in the order; the next fields are the rank's neighbours.
    place: u32,
    ring: Ring,
    tree: Tree,
    /// The windows that remain are `window..windows`. The phases that remain of the current window are
    /// `phase..phases`.
    window: usize,
    windows: usize,
    phase: u32,
    phases: u32,
    /// Number of windows after which a chunk comes back by each hop, for algorithms in which another
    /// step receives the chunk.
    behind: usize,
}

impl<R: AsRef<[u32]>> Schedule<R> {
    /// Creates the schedule of `task` among the ranks of `order`. All ranks must give the same order,
    /// operation, algorithm, count, type, number of channels and slot size.
    pub fn new(order: Order<R>, task: &Task) -> Result<Self, TaskError> {
        task.check(order.nranks())?;
        let cut = Cut::new(task, order.nranks());
        let place = order.place(task.rank).unwrap_or_default();
        let tree = match (task.operation, task.algorithm) {
            (Operation::Broadcast { root } | Operation::Reduce { root }, Algorithm::Tree) => {
                order.tree(place, order.place(root).unwrap_or_default())
            }
            (_, Algorithm::Tree) => order.double_tree(place, task.channel % 2 == 1),
            _ => Tree::default(),
        };
        let mut schedule = Schedule {
            ring: order.ring(place),
            order,
            task: *task,
            cut,
            place,
            tree,
            window: 0,
            windows: cut.windows(),
            phase: 0,
            phases: 0,
            behind: 0,
        };
        let (ahead, hops) = match (task.operation, task.algorithm) {
            (Operation::AllReduce, Algorithm::Tree | Algorithm::OneShot) => (AHEAD, 1),
            (Operation::AllReduce, Algorithm::TwoShot) => (AHEAD_TWO_SHOT, 2),
            _ => (0, 0),
        };
        schedule.behind = ahead.min(schedule.windows.saturating_sub(1));
        schedule.windows += hops * schedule.behind;
        schedule.phases = match (task.operation, task.algorithm) {
            (Operation::AllToAll, _) => schedule.all_to_all_phases(),
            (Operation::Send { .. } | Operation::Recv { .. }, _) => 1,
            (_, Algorithm::Ring) => schedule.ring_phases(),
            (_, Algorithm::OneShot | Algorithm::TwoShot) => schedule.one_shot_phases(),
            (Operation::AllReduce, Algorithm::Tree) => 2,
            (_, Algorithm::Tree) => 1,
        };
        Ok(schedule)
    }

    /// Rewinds the schedule to the first step.
    pub fn rewind(&mut self) {
        (self.window, self.phase) = (0, 0);
    }

    /// Returns the number of slots that the remaining steps send to `peer` or receive from `peer`.
    pub fn slots(&self, direction: Direction, peer: u32) -> u64
    where
        R: Clone,
    {
        let peers = |step: &Step| match direction {
            Direction::Send => step.send.contains(&peer),
            Direction::Recv => step.recv.contains(&peer),
        };
        self.clone().filter(peers).count() as u64
    }

    /// Returns the step, or `None` if the rank has nothing to do in a phase.
    fn step(&self, window: usize, phase: u32) -> Option<Step> {
        let step = match (self.task.operation, self.task.algorithm) {
            (Operation::Send { peer }, _) => {
                return Some(self.transfer(window, Direction::Send, peer));
            }
            (Operation::Recv { peer }, _) => {
                return Some(self.transfer(window, Direction::Recv, peer));
            }
            (Operation::AllToAll, _) => self.all_to_all(window, phase),
            (_, Algorithm::Ring) => self.ring(window, phase),
            (_, Algorithm::Tree) => self.tree(window, phase),
            (_, Algorithm::OneShot | Algorithm::TwoShot) => self.one_shot(window, phase),
        };
        step.filter(|step| step.count > 0)
    }

    fn nranks(&self) -> u32 {
        self.order.nranks()
    }

    /// Returns all other ranks, in ascending order.
    fn others(&self) -> impl Iterator<Item = u32> + use<R> {
        let rank = self.task.rank;
        (0..self.order.nranks()).filter(move |other| *other != rank)
    }
}

impl<R: AsRef<[u32]>> Iterator for Schedule<R> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        while self.window < self.windows {
            let (window, phase) = (self.window, self.phase);
            self.phase += 1;
            if self.phase == self.phases {
                (self.window, self.phase) = (window + 1, 0);
            }
            let step = self.step(window, phase);
            if step.is_some() {
                return step;
            }
        }
        None
    }
}
