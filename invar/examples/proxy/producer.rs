//! The producer's process: ranks that post operations, and their kernels.

use std::collections::HashMap;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use invar::HANDLE_BYTES;
use invar_core::proxy::{CallId, Channel, ConnectionId, Init, Kind, Leg, Op};
use invar_core::topology::Direction;
use invar_linux::abort::Abort;
use invar_linux::proxy::{ProxyClient, RankOps, SharedOps};

use crate::kernel::{Rings, Slices};
use crate::ring::SharedRing;
use crate::task::{self, Cut, TASKS, Task};
use crate::{LIMIT, NRANKS, Work};

/// Does all tasks, checks their results, and prints how fast they were.
pub(crate) fn run(service: &str, work: Work) -> Result<(), Box<dyn Error>> {
    let ranks = connect(service)?;
    let times = thread::scope(|scope| {
        let run = |mut rank: Rank| -> Result<Vec<Duration>, String> {
            let number = rank.channel.rank;
            let run = TASKS.iter().map(|task| {
                let time = rank.run(*task, work);
                time.map_err(|error| format!("rank {number}, {task}: {error}"))
            });
            let times = run.collect::<Result<_, _>>()?;
            rank.client.stop().map_err(|error| error.to_string())?;
            Ok(times)
        };
        let ranks = ranks.into_iter().map(|rank| scope.spawn(move || run(rank)));
        let ranks: Vec<_> = ranks.collect();
        let ranks = ranks.into_iter().map(|rank| rank.join().expect("no rank panics"));
        ranks.collect::<Result<Vec<_>, _>>()
    })?;
    work.print_head();
    for (at, task) in TASKS.iter().enumerate() {
        let slowest = times.iter().map(|times| times[at]).max().expect("there are ranks");
        work.print_row(task, task.bytes(work.elements), slowest);
    }
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

/// A connection that the proxy is setting up.
struct Opened {
    leg: Leg,
    id: ConnectionId,
    /// Where it listens, if it receives.
    handle: Vec<u8>,
}

/// A session for each rank, and a connection for each leg of the tasks.
fn connect(service: &str) -> Result<Vec<Rank>, Box<dyn Error>> {
    let abort = Abort::default();
    let mut ranks = Vec::new();
    let mut opened: Vec<Vec<Opened>> = Vec::new();
    for rank in 0..NRANKS {
        let mut client = ProxyClient::connect(service, abort.clone(), LIMIT)?;
        let channel = task::channel(rank);
        let (mut ours, mut pool) = (Vec::<Opened>::new(), None);
        let patterns = TASKS.iter().flat_map(|task| task.patterns(&channel));
        for leg in patterns.flat_map(|(pattern, root)| channel.legs(pattern, root)) {
            if ours.iter().any(|opened| opened.leg == leg) {
                continue;
            }
            let Leg { direction, .. } = leg;
            let (id, fd) = client.open(Init { transport: 0, direction, local_rank: rank })?;
            pool = pool.or(fd);
            let handle_bytes = if direction == Direction::Recv { HANDLE_BYTES } else { 0 };
            let mut handle = vec![0; handle_bytes];
            client.call_blocking(Kind::Setup, id, &[], &mut handle)?;
            ours.push(Opened { leg, id, handle });
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
    /// Does a task once and checks the result. Then does it in as many rounds as asked for, and returns
    /// their time.
    fn run(&mut self, task: Task, work: Work) -> Result<Duration, Box<dyn Error>> {
        let mut data = task.begin(self.channel.rank, work.elements);
        self.round(task, &mut data)?;
        if !task.is_right(&self.channel, work.elements, &data) {
            return Err("the result is wrong".into());
        }
        let start = Instant::now();
        (0..work.rounds).try_for_each(|_| self.round(task, &mut data))?;
        Ok(start.elapsed())
    }

    /// Has the proxy move the operations of a task, and runs their kernel.
    fn round(&mut self, task: Task, data: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let bytes = size_of_val(data) as u64;
        let (mut begun, mut chunk) = (Vec::new(), 0);
        self.op_count += 1;
        for (pattern, root) in task.patterns(&self.channel) {
            let cut = task.cut(pattern, bytes)?;
            chunk = cut.chunk();
            for leg in self.channel.legs(pattern, root) {
                begun.push((leg, self.append(&cut, leg)?, cut));
            }
        }
        self.ops.post()?;
        let slices = begun.iter().map(|(leg, step, cut)| {
            let count = (cut.steps.chunk_steps / cut.steps.slice_steps) as usize;
            let slices = Slices {
                ring: &self.connections[leg].ring,
                protocol: cut.protocol,
                step: *step,
                steps: cut.steps.slice_steps.into(),
                count,
                room: chunk / count,
            };
            ((leg.direction, leg.peer), slices)
        });
        task.run(&self.channel, &mut Rings(slices.collect()), chunk, data)
    }

    /// Adds an operation over one leg, and returns its first step.
    fn append(&mut self, cut: &Cut, leg: Leg) -> Result<u64, Box<dyn Error>> {
        let Cut { protocol, steps } = *cut;
        let connection = self.connections.get_mut(&leg).ok_or("no connection for an operation")?;
        self.ops.append(&Op {
            op_count: self.op_count,
            nsteps: steps.nsteps,
            slice_bytes: steps.slice_bytes,
            connection: connection.id,
            peer: leg.peer,
            chunk_bytes: steps.chunk_bytes,
            channel: 0,
            slice_steps: steps.slice_steps as u8,
            chunk_steps: steps.chunk_steps as u8,
            pattern: steps.pattern,
            protocol,
            dtype: 0,
            red_op: 0,
        })?;
        // Operations begin on a chunk.
        let first = connection.step.next_multiple_of(steps.chunk_steps.into());
        connection.step = first + steps.nsteps;
        Ok(first)
    }
}
