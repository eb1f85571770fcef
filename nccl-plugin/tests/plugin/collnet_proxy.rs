//! Tests collNet below the proxy, as NCCL has it: the engine of the core moves an all-reduce by the
//! patterns `CollnetChain` and `CollnetDirect`, and its transport gives each slice to collNet
//! (`coll_net.cc sendProxyProgress`, `recvProxyProgress`).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::slice;
use std::thread;

use invar_core::math::{Protocol, STEPS};
use invar_core::proxy::{
    Args, BankSlot, Channel, CollSteps, CollTransfer, Collective, Connection, ConnectionId,
    ConnectionSpec, Engine, Leg, Op, OpStage, ProxyAlgorithm, ProxySlice, Sharing, Transport,
};
use invar_core::topology::Direction;
use invar_linux::proxy::HeapBanks;
use nccl_net_invar::tables::ncclCollNetPlugin_v12 as collnet;

use super::rig::*;

const NRANKS: u32 = 3;
const NCHANNELS: u32 = 2;
/// `ncclFloat32` and `ncclSum`.
const FLOAT: c_int = 7;
const SUM: c_int = 0;
/// NCCL's buffer of 4 MiB in [`STEPS`] steps.
const STEP_BYTES: u32 = (4 << 20) / STEPS;

type HeapEngine = Engine<HeapBanks<BankSlot<Args>>, HeapBanks<Option<Connection>>>;

/// The rank of a host that reaches the switch, here collNet. It has both ends of each channel.
struct Head {
    rank: u32,
    comm: *mut c_void,
    input: Vec<f32>,
    output: Vec<f32>,
    /// The slots of all channels, first those to send and then those to receive.
    slots: Vec<u8>,
    slots_mr: *mut c_void,
    /// The steps of the operation, and their number before it.
    steps: CollSteps,
    before: u64,
    requests: HashMap<(u16, u64), *mut c_void>,
    /// Number of steps of each channel whose receiving slot is free, that are on their way, and that
    /// collNet has reduced.
    free: [u64; NCHANNELS as usize],
    under_way: [u64; NCHANNELS as usize],
    reduced: [u64; NCHANNELS as usize],
}

// SAFETY: Each head is used by one thread, and collNet takes calls from any thread.
unsafe impl Send for Head {}

/// Memory of one step: the elements of the data, and the slots to send from and to receive to.
struct StepMemory {
    first: usize,
    count: usize,
    send: *mut u8,
    recv: *mut u8,
}

impl Head {
    fn place(&mut self, slice: &ProxySlice) -> StepMemory {
        let chunk = self.steps.chunk_bytes as usize / 4;
        let step = (slice.step - self.before) as usize;
        let first = (step * NCHANNELS as usize + slice.channel as usize) * chunk;
        let first = first.min(self.input.len());
        let count = chunk.min(self.input.len() - first);
        let slot = usize::from(slice.channel) * STEPS as usize + usize::from(slice.slot);
        let half = (NCHANNELS * STEPS) as usize;
        let at = |slot: usize| slot * STEP_BYTES as usize;
        let start = self.slots.as_mut_ptr();
        let (send, recv) = (start.wrapping_add(at(slot)), start.wrapping_add(at(half + slot)));
        StepMemory { first, count, send, recv }
    }

    /// Whether it is this channel's turn: all ranks start their collectives in one order.
    fn has_turn(&self, channel: usize) -> bool {
        match channel {
            0 => self.under_way[NCHANNELS as usize - 1] == self.under_way[0],
            _ => self.under_way[channel] < self.under_way[channel - 1],
        }
    }

    fn advance_send(&mut self, stage: OpStage, slice: &ProxySlice) -> Result<bool, Code> {
        let (channel, key) = (usize::from(slice.channel), (slice.channel, slice.step));
        match stage {
            OpStage::Transmit => {
                if self.free[channel] <= slice.step || !self.has_turn(channel) {
                    return Ok(false);
                }
                let StepMemory { first, count, send, recv } = self.place(slice);
                let mut request = ptr::null_mut();
                // SAFETY: The slots have the step's elements, the input has them too, and collNet uses
                // the slots until the request is done.
                let code = unsafe {
                    let data = self.input[first..].as_ptr();
                    ptr::copy_nonoverlapping(data.cast(), send, count * 4);
                    let mr = self.slots_mr;
                    let (send, recv) = (send.cast(), recv.cast());
                    (collnet.iallreduce)(
                        self.comm,
                        send,
                        recv,
                        count,
                        FLOAT,
                        SUM,
                        mr,
                        mr,
                        &mut request,
                    )
                };
                success(code)?;
                if request.is_null() {
                    return Ok(false);
                }
                self.requests.insert(key, request);
                self.under_way[channel] += 1;
                Ok(true)
            }
            OpStage::Complete => {
                let (mut done, mut size) = (0, 0);
                // SAFETY: The request is in progress, and the call gives room for the answers.
                success(unsafe { (collnet.test)(self.requests[&key], &mut done, &mut size) })?;
                if done == 1 {
                    assert_eq!(size as usize, self.place(slice).count * 4);
                    self.requests.remove(&key);
                    self.reduced[channel] = slice.step + 1;
                }
                Ok(done == 1)
            }
            _ => Ok(true),
        }
    }

    fn advance_recv(&mut self, stage: OpStage, slice: &ProxySlice) -> Result<bool, Code> {
        let channel = usize::from(slice.channel);
        match stage {
            OpStage::Post => self.free[channel] = slice.step + 1,
            OpStage::Receive => return Ok(self.reduced[channel] > slice.step),
            OpStage::Flush => {
                let (recv, mut request) = (self.place(slice).recv.cast(), ptr::dangling_mut());
                // SAFETY: `request` has room for a request.
                success(unsafe {
                    (collnet.iflush)(self.comm, recv, 4, self.slots_mr, &mut request)
                })?;
                assert!(request.is_null(), "host memory needs no flush");
            }
            OpStage::Transmit => {
                let StepMemory { first, count, recv, .. } = self.place(slice);
                // SAFETY: The slot has the step's elements, and collNet is done with it.
                let got = unsafe { slice::from_raw_parts(recv.cast::<f32>(), count) };
                self.output[first..first + count].copy_from_slice(got);
            }
            OpStage::Complete => {}
        }
        Ok(true)
    }
}

impl Transport for &mut Head {
    type Error = String;

    fn advance(&mut self, stage: OpStage, steps: &[ProxySlice]) -> Result<bool, String> {
        let [step] = steps else { return Err("a request serves one slice".to_owned()) };
        let advanced = match step.direction {
            Direction::Send => self.advance_send(stage, step),
            Direction::Recv => self.advance_recv(stage, step),
        };
        advanced.map_err(|code| format!("{code:?}"))
    }
}

fn success(code: Code) -> Result<(), Code> {
    if code == Code::SUCCESS { Ok(()) } else { Err(code) }
}

/// Makes a comm of collNet as each rank.
fn meet() -> Vec<*mut c_void> {
    let mut context = ptr::null_mut();
    // SAFETY: The calls give room for each result.
    let listening: Vec<_> = unsafe {
        assert_eq!((collnet.init)(&mut context, 0, None), Code::SUCCESS);
        let listen = |_| {
            let (mut handle, mut comm) = ([0_u8; HANDLE_BYTES], ptr::null_mut());
            let at = handle.as_mut_ptr().cast();
            assert_eq!((collnet.listen)(context, 0, at, &mut comm), Code::SUCCESS);
            (handle, comm.addr())
        };
        (0..NRANKS).map(listen).collect()
    };
    let connect = |rank: usize| {
        let mut handles: Vec<[u8; HANDLE_BYTES]> =
            listening.iter().map(|(handle, _)| *handle).collect();
        let mut handles: Vec<*mut c_void> =
            handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
        let (listener, mut comm) =
            (ptr::without_provenance_mut(listening[rank].1), ptr::null_mut());
        // SAFETY: There are as many handles as ranks, and the call gives room for a comm.
        unsafe {
            let (nranks, rank) = (NRANKS as c_int, rank as c_int);
            let code = (collnet.connect)(handles.as_mut_ptr(), nranks, rank, listener, &mut comm);
            assert_eq!((code, comm.is_null()), (Code::SUCCESS, false));
            assert_eq!((collnet.close_listen)(listener), Code::SUCCESS);
        }
        comm.addr()
    };
    let comms: Vec<usize> = thread::scope(|scope| {
        let ranks = (0..NRANKS as usize).map(|rank| scope.spawn(move || connect(rank)));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    comms.into_iter().map(ptr::without_provenance_mut).collect()
}

/// An all-reduce of `count` floats among hosts with one rank each.
fn transfer(algorithm: ProxyAlgorithm, count: usize) -> CollTransfer {
    let number = |n| NonZeroU32::new(n).unwrap();
    CollTransfer {
        collective: Collective::AllReduce,
        algorithm,
        protocol: Protocol::Simple,
        bytes: count as u64 * 4,
        step_bytes: number(STEP_BYTES),
        nchannels: number(NCHANNELS),
        nranks: number(NRANKS),
        nnodes: number(NRANKS),
        depth: 1,
        nheads: number(1),
    }
}

/// Runs all-reduces of these lengths as one rank.
fn run(mut head: Head, algorithm: ProxyAlgorithm, counts: &[usize]) {
    let mut engine: HeapEngine = Engine::new(HeapBanks::default(), HeapBanks::default());
    let slots = head.slots.as_mut_ptr().cast();
    // SAFETY: The memory lives until the comm is closed.
    let code = unsafe {
        (collnet.reg_mr)(head.comm, slots, head.slots.len(), PTR_HOST, &mut head.slots_mr)
    };
    assert_eq!(code, Code::SUCCESS);
    // The switch counts as the rank behind the last one.
    let switch = Some(NRANKS);
    let channel = match algorithm {
        ProxyAlgorithm::CollnetChain => Channel { collnet_chain_up: switch, ..Channel::default() },
        _ => Channel { collnet_direct_out: switch, ..Channel::default() },
    };
    for (op_count, &count) in (1..).zip(counts) {
        head.input = (0..count).map(|i| (i % 100) as f32 + head.rank as f32).collect();
        head.output = vec![-1.0; count];
        head.before += if op_count == 1 { 0 } else { head.steps.nsteps };
        head.steps = transfer(algorithm, count).steps().unwrap();
        let pattern = head.steps.pattern;
        for number in 0..NCHANNELS {
            let legs = channel.legs(pattern, 0);
            assert_eq!(legs.len(), 2, "up to the switch, and down from it");
            for Leg { direction, peer, index } in legs {
                let connection = ConnectionId(2 * number + u32::from(index));
                if op_count == 1 {
                    let spec = ConnectionSpec {
                        direction,
                        local_rank: 0,
                        sharing: Sharing::Own,
                        recv_group: None,
                    };
                    engine.open(connection, spec).unwrap();
                }
                let op = Op {
                    op_count,
                    nsteps: head.steps.nsteps,
                    slice_bytes: head.steps.slice_bytes,
                    connection,
                    peer,
                    chunk_bytes: head.steps.chunk_bytes,
                    channel: number as u16,
                    slice_steps: head.steps.slice_steps as u8,
                    chunk_steps: head.steps.chunk_steps as u8,
                    pattern,
                    protocol: Protocol::Simple,
                    dtype: FLOAT as u8,
                    red_op: SUM as u8,
                };
                engine.append(0, &op).unwrap();
            }
        }
        until("the proxy's operations", || {
            engine.progress(&mut &mut head, &mut ()).unwrap();
            engine.is_idle().then_some(())
        });
        let ranks = NRANKS as f32;
        let sum = |i: usize| ranks * (i % 100) as f32 + ranks * (ranks - 1.0) / 2.0;
        let wrong = head.output.iter().enumerate().find(|(i, got)| **got != sum(*i));
        assert_eq!(wrong, None, "{count} elements by {algorithm:?}");
    }
    // SAFETY: Nothing uses the comm any more.
    unsafe {
        assert_eq!((collnet.dereg_mr)(head.comm, head.slots_mr), Code::SUCCESS);
        assert_eq!((collnet.close_coll)(head.comm), Code::SUCCESS);
    }
}

#[test]
fn the_proxy_moves_an_all_reduce_through_collnet_by_both_patterns() {
    init();
    for algorithm in [ProxyAlgorithm::CollnetChain, ProxyAlgorithm::CollnetDirect] {
        let heads = (0..).zip(meet()).map(|(rank, comm)| Head {
            rank,
            comm,
            input: Vec::new(),
            output: Vec::new(),
            slots: vec![0; 2 * (NCHANNELS * STEPS * STEP_BYTES) as usize],
            slots_mr: ptr::null_mut(),
            steps: transfer(algorithm, 0).steps().unwrap(),
            before: 0,
            requests: HashMap::new(),
            free: [0; NCHANNELS as usize],
            under_way: [0; NCHANNELS as usize],
            reduced: [0; NCHANNELS as usize],
        });
        let heads: Vec<Head> = heads.collect();
        // The last is longer than all slots together.
        let counts = [1, 1000, 100_000, 3_000_001];
        thread::scope(|scope| {
            for head in heads {
                scope.spawn(move || run(head, algorithm, &counts));
            }
        });
    }
}
