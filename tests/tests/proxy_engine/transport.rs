//! A transport that is ready by chance, and checks that the engine keeps its promises.

use std::collections::{BTreeMap, HashMap, HashSet};

use invar_core::math::STEPS;
use invar_core::proxy::{ConnectionId, Op, OpStage, ProxySlice, Transport};
use invar_core::topology::Direction;
use invar_testkit::random::Random;

pub(crate) struct Chance {
    random: Random,
    /// The probability that the transport is ready, in a million.
    ready_ppm: u32,
    /// The transport stops at this stage after this number of slices has passed it.
    stop: Option<(OpStage, u64)>,
    connections: HashMap<ConnectionId, Line>,
    /// The slots in use, of shared or own buffers, by the connection to which they belong.
    slots: HashSet<(u32, u8)>,
    /// The unfinished slices, by chain and operation count.
    left: BTreeMap<(u32, u64), u64>,
    completed: u64,
}

/// The expected work of one connection.
struct Line {
    chain: u32,
    /// The first step of the next expected operation.
    next: u64,
    /// The expected slices of each stage, by their first step.
    slices: [std::collections::VecDeque<(u64, u64)>; 5],
    past: [u64; 5],
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance {
            random: Random::new(seed),
            ready_ppm: 330_000,
            stop: None,
            connections: HashMap::new(),
            slots: HashSet::new(),
            left: BTreeMap::new(),
            completed: 0,
        }
    }

    /// A transport that is always ready.
    pub(crate) fn always() -> Self {
        Chance { ready_ppm: 1_000_000, ..Chance::new(0) }
    }

    pub(crate) fn stop_at(&mut self, stage: OpStage, slices: u64) {
        self.stop = Some((stage, slices));
    }

    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Announces an operation. The caller announces operations in their order.
    pub(crate) fn expect(&mut self, op: &Op, chain: u32) {
        let line = self.connections.entry(op.connection).or_insert_with(|| Line {
            chain,
            next: 0,
            slices: Default::default(),
            past: [0; 5],
        });
        let first = line.next.next_multiple_of(op.chunk_steps.into());
        line.next = first + op.nsteps;
        for at in (first..line.next).step_by(op.slice_steps.into()) {
            line.slices.iter_mut().for_each(|slices| slices.push_back((at, op.op_count)));
        }
        *self.left.entry((chain, op.op_count)).or_default() +=
            op.nsteps / u64::from(op.slice_steps);
    }

    fn check(&mut self, stage: OpStage, step: &ProxySlice) {
        let line = &self.connections[&step.connection];
        let slice = (step.step, step.op_count);
        assert_eq!(line.slices[stage as usize].front(), Some(&slice), "{stage:?} {step:?}");
        let stages = OpStage::of(step.direction);
        let at = stages.iter().position(|other| *other == stage).expect("a stage of the direction");
        if at > 0 {
            let before = stages[at - 1];
            assert!(line.past[before as usize] > line.past[stage as usize], "{stage:?} {step:?}");
        }
        if line.chain < 2 {
            let next_transmitted = line.slices[OpStage::Transmit as usize].front();
            let all_before_are =
                next_transmitted.is_none_or(|(_, op_count)| *op_count >= step.op_count);
            assert!(all_before_are, "others of its chain are not on their way");
        } else {
            let first = *self.left.range((line.chain, 0)..).next().expect("an operation").0;
            assert_eq!(first, (line.chain, step.op_count), "others of its chain are not done");
        }
        assert_eq!(u64::from(step.slot), step.step % u64::from(STEPS));
    }

    fn pass(&mut self, stage: OpStage, step: &ProxySlice) {
        let line = self.connections.get_mut(&step.connection).expect("a connection");
        line.slices[stage as usize].pop_front();
        line.past[stage as usize] += 1;
        let chain = line.chain;
        // The slots of a connection's own buffer count steps, so that any slice covers whole slots.
        let slots = (0..step.steps).map(|i| {
            let alone = chain == step.connection.0 && chain < 2;
            (chain, if alone { (step.slot + i) % STEPS as u8 } else { step.buffer_slot })
        });
        match stage {
            OpStage::Post if step.steps == 1 || chain < 2 => {
                for slot in slots {
                    assert!(slot.1 < 16 && self.slots.insert(slot), "slot in use: {step:?}");
                }
            }
            OpStage::Complete => {
                slots.for_each(|slot| {
                    self.slots.remove(&slot);
                });
                self.completed += 1;
                let left = self.left.get_mut(&(chain, step.op_count)).expect("an operation");
                *left -= 1;
                if *left == 0 {
                    self.left.remove(&(chain, step.op_count));
                }
            }
            _ => {}
        }
    }
}

impl Transport for Chance {
    type Error = &'static str;

    fn advance(&mut self, stage: OpStage, steps: &[ProxySlice]) -> Result<bool, Self::Error> {
        let grouped = steps[0].direction == Direction::Recv && stage <= OpStage::Flush;
        assert!(steps.len() == 1 || grouped && steps.len() <= 2, "{stage:?} {steps:?}");
        steps.iter().for_each(|step| self.check(stage, step));
        let past = self.connections[&steps[0].connection].past[stage as usize];
        let stopped = self.stop.is_some_and(|(at, slices)| at == stage && past >= slices);
        if stopped || !self.random.chance(self.ready_ppm) {
            return Ok(false);
        }
        steps.iter().for_each(|step| self.pass(stage, step));
        Ok(true)
    }
}
