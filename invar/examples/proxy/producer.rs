//! The producer's process: ranks that post operations, and their kernels.

use std::collections::HashMap;
use std::error::Error;
use std::num::NonZeroU32;
use std::thread;

use invar::HANDLE_BYTES;
use invar_core::math::{P2pTransfer, Protocol, STEPS};
use invar_core::proxy::{
    Algorithm, CallId, Channel, CollTransfer, Collective, ConnectionId, Init, Kind, Leg, Op,
    Pattern,
};
use invar_core::topology::{Direction, Ring as Neighbours};
use invar_linux::abort::Abort;
use invar_linux::proxy::{ProxyClient, RankOps, SharedOps};

use crate::kernel::Slices;
use crate::ring::{STEP_BYTES, SharedRing};
use crate::{ELEMENTS, LIMIT, NRANKS};

/// Connections are for collectives (0), or for sends and receives (1).
const INDICES: [u8; 2] = [0, 1];

/// Does all that there is to do, and looks at the results.
pub(crate) fn run(service: &str) -> Result<(), Box<dyn Error>> {
    let ranks = connect(service)?;
    thread::scope(|scope| {
        let work = |mut rank: Rank| -> Result<(), String> {
            let number = rank.channel.rank;
            rank.work().map_err(|error| format!("rank {number}: {error}"))?;
            rank.client.stop().map_err(|error| error.to_string())
        };
        let ranks = ranks.into_iter().map(|rank| scope.spawn(move || work(rank)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
    })?;
    println!("{NRANKS} ranks of {ELEMENTS} elements: a shift and an all-reduce are right");
    Ok(())
}

/// One rank: its session with the proxy, and its connections.
struct Rank {
    client: ProxyClient,
    ops: RankOps,
    channel: Channel,
    connections: HashMap<Leg, Connection>,
    /// Operations so far.
    op_count: u64,
}

struct Connection {
    id: ConnectionId,
    ring: SharedRing,
    /// Steps so far.
    step: u64,
}

/// How an operation is cut.
#[derive(Clone, Copy)]
struct Cut {
    pattern: Pattern,
    nsteps: u64,
    slice_bytes: u64,
    chunk_bytes: u32,
    slice_steps: u32,
    chunk_steps: u32,
}

/// A connection that the proxy is setting up.
struct Opened {
    leg: Leg,
    id: ConnectionId,
    /// Where it listens, if it receives.
    handle: Vec<u8>,
}

/// A session for each rank, and connections around the ring.
fn connect(service: &str) -> Result<Vec<Rank>, Box<dyn Error>> {
    let abort = Abort::default();
    let mut ranks = Vec::new();
    let mut opened: Vec<Vec<Opened>> = Vec::new();
    for rank in 0..NRANKS {
        let mut client = ProxyClient::connect(service, abort.clone(), LIMIT)?;
        let ring = Neighbours { prev: (rank + NRANKS - 1) % NRANKS, next: (rank + 1) % NRANKS };
        let channel = Channel { rank, ring, ..Channel::default() };
        let (mut ours, mut pool) = (Vec::new(), None);
        for index in INDICES {
            for (direction, peer) in [(Direction::Recv, ring.prev), (Direction::Send, ring.next)] {
                let init = Init { transport: 0, direction, local_rank: rank };
                let (id, fd) = client.open(init)?;
                pool = pool.or(fd);
                let handle_bytes = if direction == Direction::Recv { HANDLE_BYTES } else { 0 };
                let mut handle = vec![0; handle_bytes];
                client.call_blocking(Kind::Setup, id, &[], &mut handle)?;
                ours.push(Opened { leg: Leg { direction, peer, index }, id, handle });
            }
        }
        let pool = SharedOps::from_fd(pool.ok_or("the proxy gave no pool of operations")?)?;
        let ops = RankOps::new(pool, rank, abort.clone(), LIMIT);
        ranks.push(Rank { client, ops, channel, connections: HashMap::new(), op_count: 0 });
        opened.push(ours);
    }
    // All ends at once: each waits for its peer.
    let mut calls: Vec<Vec<CallId>> = Vec::new();
    for (rank, ours) in ranks.iter_mut().zip(&opened) {
        let number = rank.channel.rank;
        let call = |Opened { leg, id, .. }: &Opened| {
            let theirs = Leg { direction: Direction::Recv, peer: number, ..*leg };
            let listens = opened[leg.peer as usize].iter().find(|opened| opened.leg == theirs);
            let handle = match (leg.direction, listens) {
                (Direction::Send, Some(opened)) => opened.handle.as_slice(),
                _ => &[],
            };
            rank.client.call(Kind::Connect, *id, handle, 0)
        };
        calls.push(ours.iter().map(call).collect::<Result<_, _>>()?);
    }
    for ((rank, ours), calls) in ranks.iter_mut().zip(opened).zip(calls) {
        for (Opened { leg, id, .. }, call) in ours.into_iter().zip(calls) {
            rank.client.wait(call, &mut [])?;
            let none = 0_u32.to_le_bytes();
            let fd = rank.client.call_blocking(Kind::ConvertFd, id, &none, &mut [])?;
            let ring = SharedRing::from_fd(fd.ok_or("the proxy gave no ring")?)?;
            rank.connections.insert(leg, Connection { id, ring, step: 0 });
        }
    }
    Ok(ranks)
}

impl Rank {
    fn work(&mut self) -> Result<(), Box<dyn Error>> {
        let Channel { rank, ring, .. } = self.channel;
        let element = |rank: u32, at: usize| rank.wrapping_mul(7919) ^ at as u32;
        let ours: Vec<u32> = (0..ELEMENTS).map(|at| element(rank, at)).collect();
        let shifted = self.shift(&ours)?;
        if !shifted.iter().enumerate().all(|(at, found)| *found == element(ring.prev, at)) {
            return Err("what came from the rank before is not what it sent".into());
        }
        let mut sums = ours;
        self.all_reduce(&mut sums)?;
        let sum = |at| (0..NRANKS).fold(0, |sum: u32, rank| sum.wrapping_add(element(rank, at)));
        if !sums.iter().enumerate().all(|(at, found)| *found == sum(at)) {
            return Err("the sums are wrong".into());
        }
        Ok(())
    }

    /// Sends to the next rank, and receives as much from the one before.
    fn shift(&mut self, data: &[u32]) -> Result<Vec<u32>, Box<dyn Error>> {
        let transfer = P2pTransfer {
            bytes: size_of_val(data) as u64,
            protocol: Protocol::Simple,
            step_bytes: step_bytes(),
            network: true,
            chunk_bytes: None,
        };
        let steps = transfer.steps();
        let cut = |pattern| Cut {
            pattern,
            nsteps: steps.nsteps,
            slice_bytes: steps.step_bytes.into(),
            chunk_bytes: steps.chunk_bytes,
            slice_steps: steps.slice_steps,
            chunk_steps: steps.chunk_steps,
        };
        let Neighbours { prev, next } = self.channel.ring;
        let legs = [self.append(cut(Pattern::Send), next)?, self.append(cut(Pattern::Recv), prev)?];
        self.ops.post()?;
        let [mut send, mut recv] = self.slices(legs.concat(), cut(Pattern::Send))?;
        let mut received = vec![0; data.len()];
        let chunk = steps.payload_bytes as usize / size_of::<u32>();
        for (sent, came) in data.chunks(chunk).zip(received.chunks_mut(chunk)) {
            send.send(sent)?;
            recv.recv(came)?;
        }
        Ok(received)
    }

    /// The sums of all ranks' data, in its place: around the ring once to add, and once to copy.
    fn all_reduce(&mut self, data: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let nranks = NonZeroU32::new(NRANKS).expect("there are some");
        let transfer = CollTransfer {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            protocol: Protocol::Simple,
            bytes: size_of_val(data) as u64,
            step_bytes: step_bytes(),
            nchannels: NonZeroU32::MIN,
            nranks,
            nnodes: nranks,
            depth: NRANKS,
            nheads: NonZeroU32::MIN,
        };
        let steps = transfer.steps().ok_or("no such collective")?;
        let cut = Cut {
            pattern: steps.pattern,
            nsteps: steps.nsteps,
            slice_bytes: steps.slice_bytes,
            chunk_bytes: steps.chunk_bytes,
            slice_steps: steps.slice_steps,
            chunk_steps: steps.chunk_steps,
        };
        let (rank, n) = (self.channel.rank as usize, NRANKS as usize);
        let legs = self.append(cut, 0)?;
        self.ops.post()?;
        let [mut send, mut recv] = self.slices(legs, cut)?;
        let chunk = steps.chunk_bytes as usize / size_of::<u32>();
        let mut came = vec![0; send.room()];
        // One turn of the ring is over as many chunks as there are ranks; of the last some are short.
        for turn in (0..data.len()).step_by(n * chunk) {
            for step in 0..2 * (n - 1) {
                let range = |chunks_back: usize| {
                    let which = (rank + 2 * n - chunks_back) % n;
                    let start = (turn + which * chunk).min(data.len());
                    start..(start + chunk).min(data.len())
                };
                // The rank sends on the part to which it added last.
                let (sent, received) = (range(step), range(step + 1));
                let slices = (steps.chunk_steps / steps.slice_steps) as usize;
                for slice in 0..slices {
                    send.send(&data[part(&sent, slice, send.room())])?;
                }
                for slice in 0..slices {
                    let at = part(&received, slice, recv.room());
                    let came = &mut came[..at.len()];
                    recv.recv(came)?;
                    match step < n - 1 {
                        true => data[at].iter_mut().zip(came).for_each(|(sum, other)| {
                            *sum = sum.wrapping_add(*other);
                        }),
                        false => data[at].copy_from_slice(came),
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the proxy move an operation over the legs that it has for this rank.
    fn append(&mut self, cut: Cut, root: u32) -> Result<Vec<Leg>, Box<dyn Error>> {
        self.op_count += 1;
        let legs = self.channel.legs(cut.pattern, root);
        for leg in &legs {
            let connection = self.connections.get(leg).ok_or("no connection for an operation")?;
            self.ops.append(&Op {
                op_count: self.op_count,
                nsteps: cut.nsteps,
                slice_bytes: cut.slice_bytes,
                connection: connection.id,
                peer: leg.peer,
                chunk_bytes: cut.chunk_bytes,
                channel: 0,
                slice_steps: cut.slice_steps as u8,
                chunk_steps: cut.chunk_steps as u8,
                pattern: cut.pattern,
                protocol: Protocol::Simple,
                dtype: 0,
                red_op: 0,
            })?;
        }
        Ok(legs.to_vec())
    }

    /// The slices of an operation, to send and to receive.
    fn slices(&mut self, legs: Vec<Leg>, cut: Cut) -> Result<[Slices<'_>; 2], Box<dyn Error>> {
        let mut begin = |direction| {
            let leg = legs.iter().find(|leg| leg.direction == direction)?;
            let connection = self.connections.get_mut(leg)?;
            // Operations begin on a chunk.
            let first = connection.step.next_multiple_of(cut.chunk_steps.into());
            connection.step = first + cut.nsteps;
            Some((*leg, first))
        };
        let begun = [begin(Direction::Send), begin(Direction::Recv)];
        let slices = begun.map(|begun| {
            let (leg, step) = begun?;
            let ring = &self.connections.get(&leg)?.ring;
            Some(Slices { ring, step, steps: cut.slice_steps.into() })
        });
        match slices {
            [Some(send), Some(recv)] => Ok([send, recv]),
            _ => Err("an operation that does not go both ways".into()),
        }
    }
}

/// Bytes of a step, of a ring of one slot for each.
fn step_bytes() -> NonZeroU32 {
    let bytes = Protocol::Simple.step_bytes(STEPS * STEP_BYTES as u32, STEP_BYTES as u32);
    NonZeroU32::new(bytes).expect("a slot has bytes")
}

/// The part of a chunk that is in one of its slices.
fn part(chunk: &std::ops::Range<usize>, slice: usize, room: usize) -> std::ops::Range<usize> {
    let start = (chunk.start + slice * room).min(chunk.end);
    start..(start + room).min(chunk.end)
}
