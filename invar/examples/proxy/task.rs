//! The tasks of the ranks: how an operation is cut, which data it moves, and what must come out.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;

use invar_core::math::{P2pSteps, P2pTransfer, Protocol, STEPS};
use invar_core::proxy::{Channel, CollSteps, CollTransfer, Collective, Pattern, ProxyAlgorithm};
use invar_core::topology::Direction::{Recv, Send};
use invar_core::topology::{Ring, Tree};

use crate::NRANKS;
use crate::kernel::Rings;
use crate::ring::STEP_BYTES;

/// The root of rooted collectives and of the tree.
const ROOT: u32 = 0;

#[derive(Clone, Copy)]
pub(crate) enum Task {
    /// Each rank sends to the next one and receives from the one before.
    Shift(Protocol),
    Collective(Collective, ProxyAlgorithm, Protocol),
}

/// Every pattern but those of collNet, and every protocol.
pub(crate) const TASKS: [Task; 10] = {
    use Protocol::{Ll, Ll128, Simple};
    use ProxyAlgorithm::{Ring, Tree};
    use Task::Shift;
    use invar_core::proxy::Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    [
        Shift(Simple),
        Shift(Ll),
        Task::Collective(Broadcast, Ring, Simple),
        Task::Collective(Reduce, Ring, Simple),
        Task::Collective(AllGather, Ring, Simple),
        Task::Collective(ReduceScatter, Ring, Ll),
        Task::Collective(AllReduce, Ring, Simple),
        Task::Collective(AllReduce, Tree, Ll128),
        Task::Collective(Broadcast, Tree, Simple),
        Task::Collective(Reduce, Tree, Simple),
    ]
};

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Task::Shift(protocol) => format!("Shift {protocol:?}"),
            Task::Collective(collective, algorithm, protocol) => {
                format!("{collective:?} {algorithm:?} {protocol:?}")
            }
        };
        f.pad(&text)
    }
}

/// How an operation is cut.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) protocol: Protocol,
    pub(crate) steps: CollSteps,
}

impl Cut {
    /// Elements of a chunk.
    pub(crate) fn chunk(&self) -> usize {
        self.steps.payload_bytes as usize / size_of::<u32>()
    }
}

/// The neighbours of a rank, on the ring 0 → 1 → 2 … and in the tree that has all others below the root.
pub(crate) fn channel(rank: u32) -> Channel {
    let ring = Ring { prev: (rank + NRANKS - 1) % NRANKS, next: (rank + 1) % NRANKS };
    let tree = match rank {
        ROOT => {
            let mut children = (0..NRANKS).filter(|child| *child != ROOT);
            Tree { up: None, down: [(); 3].map(|()| children.next()) }
        }
        _ => Tree { up: Some(ROOT), ..Tree::default() },
    };
    Channel { rank, ring, tree, ..Channel::default() }
}

/// An element that a rank begins with.
fn element(rank: u32, at: usize) -> u32 {
    rank.wrapping_mul(7919) ^ at as u32
}

/// The sum of all ranks' elements.
fn sum(at: usize) -> u32 {
    (0..NRANKS).fold(0, |sum, rank| sum.wrapping_add(element(rank, at)))
}

/// Bytes of a step, of a ring of one slot for each.
pub(crate) fn step_bytes() -> NonZeroU32 {
    let bytes = Protocol::Simple.step_bytes(STEPS * STEP_BYTES as u32, STEP_BYTES as u32);
    NonZeroU32::new(bytes).expect("a slot has bytes")
}

impl Task {
    /// The operations of a rank: a pattern with its root or peer.
    pub(crate) fn patterns(self, channel: &Channel) -> Vec<(Pattern, u32)> {
        match self {
            Task::Shift(_) => {
                vec![(Pattern::Send, channel.ring.next), (Pattern::Recv, channel.ring.prev)]
            }
            Task::Collective(collective, algorithm, _) => {
                collective.pattern(algorithm).map(|pattern| (pattern, ROOT)).into_iter().collect()
            }
        }
    }

    /// Elements of the data of each rank, if each has `elements` of its own.
    fn len(self, elements: usize) -> usize {
        match self {
            Task::Collective(Collective::AllGather | Collective::ReduceScatter, ..) => {
                elements * NRANKS as usize
            }
            _ => elements,
        }
    }

    /// Bytes of the data of each rank.
    pub(crate) fn bytes(self, elements: usize) -> usize {
        self.len(elements) * size_of::<u32>()
    }

    /// The data with which a rank begins.
    pub(crate) fn begin(self, rank: u32, elements: usize) -> Vec<u32> {
        let begin = |at| match self {
            Task::Collective(Collective::Broadcast, ..) if rank != ROOT => 0,
            Task::Collective(Collective::AllGather, ..) if rank as usize != at / elements => 0,
            _ => element(rank, at),
        };
        (0..self.len(elements)).map(begin).collect()
    }

    /// Whether the result of a rank is right.
    pub(crate) fn is_right(self, channel: &Channel, elements: usize, result: &[u32]) -> bool {
        let rank = channel.rank;
        let wanted = |at| match self {
            Task::Shift(_) => Some(element(channel.ring.prev, at)),
            Task::Collective(collective, ..) => match collective {
                Collective::Broadcast => Some(element(ROOT, at)),
                Collective::Reduce => (rank == ROOT).then(|| sum(at)),
                Collective::AllGather => Some(element((at / elements) as u32, at)),
                Collective::ReduceScatter => (at / elements == rank as usize).then(|| sum(at)),
                Collective::AllReduce => Some(sum(at)),
            },
        };
        let mut results = result.iter().enumerate();
        results.all(|(at, found)| wanted(at).is_none_or(|wanted| *found == wanted))
    }

    /// Cuts the operation, for data of `bytes`.
    pub(crate) fn cut(self, pattern: Pattern, bytes: u64) -> Result<Cut, Box<dyn Error>> {
        let step_bytes = step_bytes();
        Ok(match self {
            Task::Shift(protocol) => {
                let transfer =
                    P2pTransfer { bytes, protocol, step_bytes, network: true, chunk_bytes: None };
                let P2pSteps { chunk_bytes, payload_bytes, nsteps } = transfer.steps();
                let steps = CollSteps {
                    pattern,
                    slice_steps: 1,
                    chunk_steps: 1,
                    chunk_bytes,
                    payload_bytes,
                    slice_bytes: step_bytes.get().into(),
                    nsteps,
                };
                Cut { protocol, steps }
            }
            Task::Collective(collective, algorithm, protocol) => {
                let nranks = NonZeroU32::new(NRANKS).expect("there are some");
                let transfer = CollTransfer {
                    collective,
                    algorithm,
                    protocol,
                    bytes,
                    step_bytes,
                    nchannels: NonZeroU32::MIN,
                    nranks,
                    nnodes: nranks,
                    depth: NRANKS,
                    nheads: NonZeroU32::MIN,
                };
                let steps = transfer.steps().ok_or("NCCL has no such collective")?;
                Cut { protocol, steps }
            }
        })
    }

    /// The kernel of a rank: replaces its data by the result.
    pub(crate) fn run(
        self,
        channel: &Channel,
        rings: &mut Rings<'_>,
        chunk: usize,
        data: &mut [u32],
    ) -> Result<(), Box<dyn Error>> {
        let Ring { prev, next } = channel.ring;
        match self {
            Task::Shift(_) => {
                let mut came = vec![0; data.len()];
                for (sent, came) in data.chunks(chunk).zip(came.chunks_mut(chunk)) {
                    rings.send(next, sent)?;
                    rings.recv(prev, came)?;
                }
                data.copy_from_slice(&came);
                Ok(())
            }
            Task::Collective(_, ProxyAlgorithm::Tree, _) => {
                data.chunks_mut(chunk).try_for_each(|chunk| tree(&channel.tree, rings, chunk))
            }
            Task::Collective(Collective::Broadcast | Collective::Reduce, ..) => {
                let adds = matches!(self, Task::Collective(Collective::Reduce, ..));
                for chunk in data.chunks_mut(chunk) {
                    match rings.has(Recv, prev) {
                        true if adds => rings.add(prev, chunk)?,
                        true => rings.recv(prev, chunk)?,
                        false => {}
                    }
                    if rings.has(Send, next) {
                        rings.send(next, chunk)?;
                    }
                }
                Ok(())
            }
            Task::Collective(collective, ..) => ring(channel, rings, collective, chunk, data),
        }
    }
}

/// Adds a chunk up the tree and copies it down, or does the one that the operation has rings for.
fn tree(tree: &Tree, rings: &mut Rings<'_>, chunk: &mut [u32]) -> Result<(), Box<dyn Error>> {
    for child in tree.down.into_iter().flatten() {
        if rings.has(Recv, child) {
            rings.add(child, chunk)?;
        }
    }
    if let Some(up) = tree.up {
        if rings.has(Send, up) {
            rings.send(up, chunk)?;
        }
        if rings.has(Recv, up) {
            rings.recv(up, chunk)?;
        }
    }
    for child in tree.down.into_iter().flatten() {
        if rings.has(Send, child) {
            rings.send(child, chunk)?;
        }
    }
    Ok(())
}

/// Goes around the ring: to add, to copy, or once for each.
fn ring(
    channel: &Channel,
    rings: &mut Rings<'_>,
    collective: Collective,
    chunk: usize,
    data: &mut [u32],
) -> Result<(), Box<dyn Error>> {
    let (rank, n, len) = (channel.rank as usize, NRANKS as usize, data.len());
    let Ring { prev, next } = channel.ring;
    // Each turn is over a chunk of each block. An all-reduce has no blocks: its chunks follow each other.
    let (block, stride) = match collective {
        Collective::AllReduce => (len, n * chunk),
        _ => (len / n, chunk),
    };
    // A reduce-scatter ends one hop earlier at each block, so that it ends at the rank's own.
    let (hops, adding, first) = match collective {
        Collective::AllGather => (n - 1, 0, 0),
        Collective::ReduceScatter => (n - 1, n - 1, 1),
        _ => (2 * (n - 1), n - 1, 0),
    };
    for turn in (0..block).step_by(stride) {
        let range = |back: usize| {
            let which = (rank + 2 * n - back) % n;
            let (start, at) = match collective {
                Collective::AllReduce => (0, turn + which * chunk),
                _ => (which * block, turn),
            };
            start + at.min(block)..start + (at + chunk).min(block)
        };
        for hop in first..first + hops {
            // The rank sends on the part that it received last.
            rings.send(next, &data[range(hop)])?;
            let received = &mut data[range(hop + 1)];
            match hop < first + adding {
                true => rings.add(prev, received)?,
                false => rings.recv(prev, received)?,
            }
        }
    }
    Ok(())
}
