//! The steps of one rank on one channel.

mod cut;
mod one_shot;
mod p2p;
mod ring;
mod tree;

use self::cut::Cut;
use super::{Algorithm, ONE_SHOT_RANKS_MAX, Operation, Order, Task, TaskError};
use crate::math::STEPS;
use crate::proxy::{Direction, Ring, Tree};

/// By how many chunks a rank sends ahead of what comes back: enough to keep both directions busy, and
/// less than a link has slots.
const AHEAD: usize = STEPS as usize / 2;
/// The same of each of two hops through memory: ranks that work side by side need no more not to wait
/// for each other, and more of it would leave the caches.
const AHEAD_TWO_SHOT: usize = 1;

/// Ranks of a step: none, one, or all others.
pub type Peers = heapless::Vec<u32, { ONE_SHOT_RANKS_MAX as usize - 1 }>;

/// One step: the operands become one value, which goes to each destination.
///
/// It moves one slot from each peer in `recv` and one to each in `send`, of `count` elements. Both
/// ends of a link have the same steps over it in the same order, so that a slot needs no name.
///
/// Where operand and destination are the same memory, an operation being in place, the step reads an
/// element before it writes it; there is no other overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Elements, no more than a slot holds; none only where a transfer ends so.
    pub count: usize,
    /// Whose slots are operands, in the order in which they are reduced.
    pub recv: Peers,
    /// The first element of the rank's input that is an operand too.
    pub input: Option<usize>,
    /// How many of the slots are reduced before the input.
    pub input_at: usize,
    /// Where in the rank's output the value is stored.
    pub output: Option<usize>,
    /// Whose slots the value goes into.
    pub send: Peers,
    /// Whether the value is the result, all ranks' inputs being in it: now an average of integers
    /// is divided.
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
            // No step has more peers than `Task::check` lets through.
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

    /// Reduces the input after the slots that are operands so far.
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

/// The steps of a task, one after the other: an iterator that owns nothing but its order, if that.
///
/// Channels and tasks are independent of each other, so whoever runs several takes of each its next
/// step as soon as the slots for that one are there.
#[derive(Clone, Debug)]
pub struct Schedule<R> {
    order: Order<R>,
    task: Task,
    cut: Cut,
    /// The place of this rank in the order, and its neighbours.
    place: u32,
    ring: Ring,
    tree: Tree,
    /// Windows still to come are `window..windows`; of each, `phase..phases`.
    window: usize,
    windows: usize,
    phase: u32,
    phases: u32,
    /// How many windows after its own a chunk comes back, by each hop, where that is another step.
    behind: usize,
}

impl<R: AsRef<[u32]>> Schedule<R> {
    /// The steps of `task` among the ranks of `order`. All ranks give the same order, operation,
    /// algorithm, count, type, channels and slots.
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

    /// Goes back to the first step.
    pub fn rewind(&mut self) {
        (self.window, self.phase) = (0, 0);
    }

    /// How many slots still go to `peer`, or come from it.
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

    /// `None` where the rank has nothing to do in a phase.
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

    /// All other ranks, by their numbers.
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
