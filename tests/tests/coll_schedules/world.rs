//! Runs model ranks over links of eight slots. Chance decides which rank goes next.

use std::collections::{BTreeMap, VecDeque};

use invar_core::coll::{Algorithm, DataType, Operation, Order, Schedule, Step, Task};
use invar_core::math::STEPS;
use invar_core::topology::Direction;
use invar_testkit::model::coll::Layout;
use invar_testkit::random::Random;

/// An element that records what was done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// The sum of all inputs reduced into this element, modulo 2^64. It reveals an input that is
    /// missing or there twice.
    pub(crate) sum: u64,
    /// A value that depends on the order of reductions.
    pub(crate) trace: u64,
    /// The number of times that a step declared this element a result.
    pub(crate) finished: u32,
}

impl Symbol {
    /// An input element.
    pub(crate) fn new(value: u64) -> Self {
        Symbol { sum: value, trace: value, finished: 0 }
    }

    fn reduce(self, other: Symbol) -> Symbol {
        assert_eq!(self.finished + other.finished, 0, "a result is reduced further");
        Symbol {
            sum: self.sum.wrapping_add(other.sum),
            trace: self.trace.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other.trace,
            finished: 0,
        }
    }
}

/// The operation that all ranks perform.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) operation: Operation,
    pub(crate) algorithm: Algorithm,
    pub(crate) order: Vec<u32>,
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    pub(crate) nchannels: u32,
    pub(crate) slot_bytes: usize,
    pub(crate) in_place: bool,
}

/// The memory of a rank, in which its input and its output lie. They may overlap.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    memory: Vec<Symbol>,
    layout: Layout,
}

impl Buffers {
    fn new(work: &Work, rank: u32, random: &mut Random) -> Self {
        let ranks = (rank, work.order.len() as u32);
        let layout = Layout::new(work.operation, work.count, ranks, work.in_place);
        let memory = (0..layout.len).map(|_| Symbol::new(random.next())).collect();
        Buffers { memory, layout }
    }

    /// The elements that the rank gets as output.
    pub(crate) fn output(&self) -> &[Symbol] {
        &self.memory[self.layout.output..][..self.layout.output_len]
    }

    /// The elements from the beginning of the rank's input.
    pub(crate) fn input(&self) -> &[Symbol] {
        &self.memory[self.layout.input..]
    }
}

impl Work {
    fn schedule<'a>(
        &self,
        order: Order<&'a [u32]>,
        rank: u32,
        channel: u32,
    ) -> Schedule<&'a [u32]> {
        let Work { operation, algorithm, count, data_type, nchannels, slot_bytes, .. } = *self;
        let task =
            Task { operation, algorithm, count, data_type, rank, channel, nchannels, slot_bytes };
        Schedule::new(order, &task).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// Runs the work. Returns the buffers of each rank before and after it.
    pub(crate) fn run(&self, seed: u64) -> (Vec<Buffers>, Vec<Buffers>) {
        let mut random = Random::new(seed);
        let nranks = self.order.len() as u32;
        let before: Vec<Buffers> =
            (0..nranks).map(|rank| Buffers::new(self, rank, &mut random)).collect();
        let mut buffers = before.clone();
        let order = Order::new(&self.order[..]).unwrap();
        let mut ranks: Vec<Rank> = (0..nranks)
            .flat_map(|rank| (0..self.nchannels).map(move |channel| (rank, channel)))
            .map(|(rank, channel)| Rank::new(rank, channel, self.schedule(order, rank, channel)))
            .collect();
        let mut links = Links::default();
        // Either some ranks always go first when they can, or all have equal chances.
        let favour = random.chance(500_000);
        let mut waiting: Vec<usize> = (0..ranks.len()).collect();
        for at in (1..waiting.len()).rev() {
            waiting.swap(at, random.below(at as u64 + 1) as usize);
        }
        while !waiting.is_empty() {
            let first = if favour { 0 } else { random.below(waiting.len() as u64) as usize };
            let able = (0..waiting.len())
                .map(|at| (first + at) % waiting.len())
                .find(|at| ranks[waiting[*at]].is_able(&links));
            let Some(able) = able else {
                let stuck: Vec<&Rank> = waiting.iter().map(|at| &ranks[*at]).collect();
                panic!("seed {seed}, {self:?}: nobody can go on: {stuck:?}");
            };
            let rank = &mut ranks[waiting[able]];
            if !rank.go(self, &mut buffers[rank.rank as usize], &mut links) {
                waiting.remove(able);
            }
        }
        let left = links.0.values().map(VecDeque::len).sum::<usize>();
        assert_eq!(left, 0, "seed {seed}, {self:?}: slots that nobody received");
        for rank in &ranks {
            assert_eq!(rank.announced, rank.moved, "seed {seed}, {self:?}: {rank:?}");
        }
        (before, buffers)
    }
}

/// The slots in flight, by sender, receiver and channel.
#[derive(Default)]
struct Links(BTreeMap<(u32, u32, u32), VecDeque<Vec<Symbol>>>);

impl Links {
    fn len(&self, link: (u32, u32, u32)) -> usize {
        self.0.get(&link).map_or(0, VecDeque::len)
    }
}

/// The number of slots in each direction with each peer.
type Slots = BTreeMap<(bool, u32), u64>;

#[derive(Debug)]
struct Rank<'a> {
    rank: u32,
    channel: u32,
    next: Option<Step>,
    rest: Schedule<&'a [u32]>,
    announced: Slots,
    moved: Slots,
}

impl<'a> Rank<'a> {
    fn new(rank: u32, channel: u32, mut schedule: Schedule<&'a [u32]>) -> Self {
        // Ask for each peer's number of slots once, since each answer takes a walk through all steps.
        let mut announced = Slots::new();
        for step in schedule.clone() {
            announced.extend(step.recv.iter().map(|peer| ((false, *peer), 0)));
            announced.extend(step.send.iter().map(|peer| ((true, *peer), 0)));
        }
        for ((sends, peer), slots) in &mut announced {
            let direction = if *sends { Direction::Send } else { Direction::Recv };
            *slots = schedule.slots(direction, *peer);
        }
        let next = schedule.next();
        Rank { rank, channel, next, rest: schedule, announced, moved: Slots::new() }
    }

    fn is_able(&self, links: &Links) -> bool {
        self.next.as_ref().is_none_or(|step| {
            step.recv.iter().all(|peer| links.len((*peer, self.rank, self.channel)) > 0)
                && step
                    .send
                    .iter()
                    .all(|peer| links.len((self.rank, *peer, self.channel)) < STEPS as usize)
        })
    }

    /// Takes the rank's next step. Returns `false` if there was none.
    fn go(&mut self, work: &Work, buffers: &mut Buffers, links: &mut Links) -> bool {
        let Some(step) = std::mem::replace(&mut self.next, self.rest.next()) else {
            return false;
        };
        assert!((1..=work.slot_bytes / work.data_type.bytes()).contains(&step.count), "{step:?}");
        let mut operands: Vec<Vec<Symbol>> = Vec::new();
        for peer in &step.recv {
            let slot = links.0.get_mut(&(*peer, self.rank, self.channel)).unwrap().pop_front();
            operands.push(slot.unwrap());
            *self.moved.entry((false, *peer)).or_default() += 1;
        }
        if let Some(first) = step.input {
            let input = buffers.memory[buffers.layout.input + first..][..step.count].to_vec();
            operands.insert(step.input_at, input);
        }
        let mut value = operands.remove(0);
        assert_eq!(value.len(), step.count, "{step:?}");
        for operand in operands {
            assert_eq!(operand.len(), step.count, "{step:?}");
            value = value.iter().zip(operand).map(|(a, b)| a.reduce(b)).collect();
        }
        value.iter_mut().for_each(|symbol| symbol.finished += u32::from(step.finish));
        if let Some(first) = step.output {
            assert!(first + step.count <= buffers.layout.output_len, "{step:?}");
            buffers.memory[buffers.layout.output + first..][..step.count].copy_from_slice(&value);
        }
        for peer in &step.send {
            let link = links.0.entry((self.rank, *peer, self.channel)).or_default();
            link.push_back(value.clone());
            *self.moved.entry((true, *peer)).or_default() += 1;
        }
        true
    }
}
