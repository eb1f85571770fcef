//! Transfers memory that the NIC cannot access, through slots that it can, over simulated networks.
//! Copies take time, packets are lost, and every byte arrives once.

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_core::nic::Mtu;
use invar_core::roce::qp::Tuning;
use invar_core::staging::{
    Chunk, ChunkStage, Done, Failure, Pipeline, Port, Started, TRAILER_BYTES, TRANSFERS_MAX,
    Trailer,
};
use invar_testkit::duo::{Buffer, Duo, connect};
use invar_testkit::pipe::Pipe;
use invar_testkit::random::Random;
use invar_testkit::sim::{Link, SimNic, World};

const CHUNK: usize = 4096;
const SLOT: usize = (CHUNK + TRAILER_BYTES).next_multiple_of(8);

/// The start of a transfer in the memory of its end, and its tag.
#[derive(Clone, Copy, Debug)]
struct TransferMemory {
    start: usize,
    tag: u32,
}

/// One end: memory that only copies access, and slots.
struct End<C> {
    comm: C,
    gpu: Vec<u8>,
    slots: Buffer<SimNic>,
    /// The message of each slot on the wire. `copied_ns` has the time at which each slot's copy is
    /// done.
    requests: Vec<Option<Request>>,
    copied_ns: Vec<u64>,
    world: World,
    copy_ns: u64,
}

impl<C> End<C> {
    fn new(world: &World, comm: C, slots: Buffer<SimNic>, count: usize, copy_ns: u64) -> Self {
        let requests = (0..count).map(|_| None).collect();
        let copied_ns = vec![0; count];
        End { comm, gpu: Vec::new(), slots, requests, copied_ns, world: world.clone(), copy_ns }
    }

    /// Starts a copy. Copies happen one after the other.
    fn start_copy(&mut self, slot: usize) -> Started {
        let free_ns = self.copied_ns.iter().copied().max().unwrap_or(0).max(self.world.now_ns());
        self.copied_ns[slot] = free_ns + self.copy_ns;
        Started::Whole
    }

    fn is_copied(&self, slot: usize) -> bool {
        self.copied_ns[slot] <= self.world.now_ns()
    }
}

/// The error of an end.
#[derive(Debug, PartialEq, Eq)]
enum Broken {
    Wire(Error),
    /// A chunk at this byte meets a receive of this many bytes.
    Misfit(u64, u32),
}

impl Port<TransferMemory> for End<invar_core::comm::SendComm<SimNic, Pipe>> {
    type Error = Broken;

    fn start(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, TransferMemory>,
    ) -> Result<Started, Broken> {
        if stage == ChunkStage::Fill {
            return Ok(self.start_copy(chunk.slot));
        }
        let (start, tag) = (chunk.slot * SLOT, chunk.data.tag);
        let Some(room) = self.comm.room(tag).map_err(Broken::Wire)? else {
            return Ok(Started::Pending);
        };
        let has_trailer = chunk.trailer_into(room).ok_or(Broken::Misfit(chunk.offset, room))?;
        let (addr, lkey, mut len) = (self.slots.addr(start), self.slots.lkey(), chunk.len);
        if has_trailer {
            self.slots.write(start + len as usize, &Trailer { of: chunk.of }.to_bytes());
            len += TRAILER_BYTES as u32;
        }
        let request = self.comm.isend(&SendBuf { addr, len, lkey }, tag).map_err(Broken::Wire)?;
        let started = request.is_some();
        self.requests[chunk.slot] = request;
        Ok(match has_trailer {
            _ if !started => Started::Pending,
            true => Started::AwaitsMore,
            false => Started::Whole,
        })
    }

    fn finished(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, TransferMemory>,
    ) -> Result<Option<Done>, Broken> {
        let Chunk { data, slot, offset, len, .. } = *chunk;
        if stage == ChunkStage::Drain {
            let sent = self.comm.test(self.requests[slot].as_ref().expect("started"));
            return Ok(sent.map_err(Broken::Wire)?.map(|_| chunk.own()));
        }
        let start = data.start + offset as usize;
        // Copy as late as possible: a caller that looks too early sees the old content.
        Ok(self.is_copied(slot).then(|| {
            self.slots.write(slot * SLOT, &self.gpu[start..start + len as usize]);
            chunk.own()
        }))
    }
}

impl Port<TransferMemory> for End<invar_core::comm::RecvComm<SimNic, Pipe>> {
    type Error = Broken;

    fn start(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, TransferMemory>,
    ) -> Result<Started, Broken> {
        if stage == ChunkStage::Drain {
            return Ok(self.start_copy(chunk.slot));
        }
        let (addr, rkey) = (self.slots.addr(chunk.slot * SLOT), self.slots.rkey());
        let buf = RecvBuf { addr, len: chunk.room(), tag: chunk.data.tag, rkey };
        let request = self.comm.irecv(&[buf]).map_err(Broken::Wire)?;
        let started = request.is_some();
        self.requests[chunk.slot] = request;
        Ok(if started { Started::Whole } else { Started::Pending })
    }

    fn finished(
        &mut self,
        stage: ChunkStage,
        chunk: &Chunk<'_, TransferMemory>,
    ) -> Result<Option<Done>, Broken> {
        let Chunk { data, slot, offset, len, .. } = *chunk;
        if stage == ChunkStage::Fill {
            let sizes = self.comm.test(self.requests[slot].as_ref().expect("started"));
            let Some([came]) = sizes.map_err(Broken::Wire)? else { return Ok(None) };
            let message = self.slots.read(slot * SLOT, *came as usize);
            return Ok(Some(chunk.received(*came, |at| message[at..].first_chunk().copied())));
        }
        let start = data.start + offset as usize;
        Ok(self.is_copied(slot).then(|| {
            let bytes = self.slots.read(slot * SLOT, len as usize);
            self.gpu[start..start + len as usize].copy_from_slice(&bytes);
            chunk.own()
        }))
    }
}

/// Both ends of a connection, with the given numbers of slots and duration of copies.
struct Rig {
    world: World,
    send: End<invar_core::comm::SendComm<SimNic, Pipe>>,
    recv: End<invar_core::comm::RecvComm<SimNic, Pipe>>,
    outgoing: Pipeline<TransferMemory>,
    incoming: Pipeline<TransferMemory>,
}

impl Rig {
    fn new(seed: u64, link: Link, slots: [usize; 2], copy_ns: u64) -> Self {
        let world = World::new(seed, true, Tuning::default());
        let nics = [Mtu::Mtu1024; 2].map(|mtu| world.add_host(mtu));
        for (from, to) in [(0, 1), (1, 0)] {
            world.set_link(from, to, link);
        }
        let settings = CommSettings { wire: Wire::Invar, timeout: 14, ..CommSettings::default() };
        let duo = connect([&nics[0], &nics[1]], [settings; 2], || world.advance(20_000));
        let Duo { send, recv, send_pd, recv_pd } = duo.expect("connected");
        let buffers =
            [(0, send_pd), (1, recv_pd)].map(|(i, pd)| Buffer::new(&nics[i], &pd, slots[i] * SLOT));
        let [from, to] = buffers;
        Rig {
            send: End::new(&world, send, from, slots[0], copy_ns),
            recv: End::new(&world, recv, to, slots[1], copy_ns),
            outgoing: Pipeline::new(CHUNK as u32, slots[0]),
            incoming: Pipeline::new(CHUNK as u32, slots[1]),
            world,
        }
    }

    /// Starts a transfer of `sent` bytes into room for `room` bytes. Each memory lies behind the end's
    /// earlier ones.
    fn push(&mut self, random: &mut Random, sent: usize, room: usize, tag: u32) {
        let start = self.send.gpu.len();
        self.send.gpu.extend((0..sent).map(|_| random.next() as u8));
        self.outgoing.push(TransferMemory { start, tag }, sent as u64).expect("room");
        let start = self.recv.gpu.len();
        self.recv.gpu.resize(start + room, 0);
        self.incoming.push(TransferMemory { start, tag }, room as u64).expect("room");
    }

    fn step(&mut self) -> Result<(), Failure<Broken>> {
        self.outgoing.advance(&mut self.send)?;
        self.incoming.advance(&mut self.recv)?;
        self.world.advance(1000);
        Ok(())
    }

    /// The simulated time until all transfers are done.
    fn finish(&mut self) -> u64 {
        let start_ns = self.world.now_ns();
        while !(self.outgoing.is_idle() && self.incoming.is_idle()) {
            self.step().expect("nothing goes wrong");
            assert!(self.world.now_ns() - start_ns < 20_000_000_000, "it takes without end");
        }
        self.world.now_ns() - start_ns
    }
}

#[test]
fn every_byte_arrives_whatever_the_network_and_the_copies_do() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let trouble = random.pick(&[0, 0, 5_000, 50_000]);
        let link = Link {
            delay_ns: random.below(20_000),
            jitter_ns: random.below(5_000),
            loss_ppm: trouble,
            duplicate_ppm: trouble,
            reorder_ppm: trouble,
            reorder_ns: 20_000,
            corrupt_ppm: trouble,
        };
        let slots = [(); 2].map(|()| random.below(6) as usize + 1);
        let copy_ns = random.pick(&[0, 500, 20_000]);
        let mut rig = Rig::new(random.next(), link, slots, copy_ns);
        eprintln!("seed {seed}: {link:?}, {slots:?} slots, copies of {copy_ns} ns");
        let count = random.below(TRANSFERS_MAX as u64) + 1;
        let mut lengths = Vec::new();
        for tag in 0..count as u32 {
            let chunks = random.below(6) as usize * CHUNK;
            let len = random.pick(&[0, 1, 100, chunks, chunks + 7]);
            let more = random.below(9) as usize * CHUNK;
            let room = len + random.pick(&[0, 0, 1, 100, more, more + 7]);
            lengths.push((len, room));
            rig.push(&mut random, len, room, tag % 3);
            if random.chance(300_000) {
                rig.step().unwrap();
            }
        }
        rig.finish();
        for (number, (len, room)) in (0..).zip(lengths) {
            let (from, sent) = rig.outgoing.take(number).expect("done");
            let (to, received) = rig.incoming.take(number).expect("done");
            assert_eq!((sent, received), (len as u64, len as u64));
            let bytes = &rig.send.gpu[from.start..from.start + len];
            assert_eq!(bytes, &rig.recv.gpu[to.start..to.start + len], "transfer {number}");
            let rest = &rig.recv.gpu[to.start + len..to.start + room];
            assert!(rest.iter().all(|byte| *byte == 0), "transfer {number} stays in its bounds");
        }
    }
}

#[test]
fn copies_and_the_wire_work_at_the_same_time() {
    // A copy takes as long as a round trip.
    let link = Link { delay_ns: 20_000, ..Link::default() };
    let took = |slots| {
        let mut rig = Rig::new(1, link, [slots; 2], 40_000);
        rig.push(&mut Random::new(1), 64 * CHUNK, 64 * CHUNK, 0);
        rig.finish()
    };
    let [one, two] = [took(1), took(2)];
    assert!(one > 64 * 2 * 40_000, "one slot: a copy, then the wire: {one} ns");
    assert!(two < 64 * 40_000 + 200_000, "two slots: at the speed of the copies: {two} ns");
}

#[test]
fn a_short_send_into_a_long_receive_takes_few_messages() {
    let mut rig = Rig::new(1, Link::default(), [3; 2], 0);
    rig.push(&mut Random::new(1), 2 * CHUNK, 1000 * CHUNK, 0);
    rig.finish();
    assert!(rig.recv.comm.rows_posted() <= 2 + 4, "{} messages", rig.recv.comm.rows_posted());
}

#[test]
fn a_send_that_is_longer_than_its_receive_is_refused_at_both_ends() {
    let [sent, room] = [3 * CHUNK, 2 * CHUNK];
    let mut rig = Rig::new(1, Link::default(), [2; 2], 0);
    rig.push(&mut Random::new(1), sent, room, 0);
    let (mut sender, mut receiver) = (None, None);
    for _ in 0..10_000 {
        if sender.is_none() {
            sender = rig.outgoing.advance(&mut rig.send).err();
        }
        if receiver.is_none() {
            receiver = rig.incoming.advance(&mut rig.recv).err();
        }
        rig.world.advance(1000);
    }
    let misfit = Broken::Misfit(CHUNK as u64, CHUNK as u32);
    assert_eq!(sender, Some(Failure::Port(misfit)));
    assert_eq!(receiver, Some(Failure::TooLong { of: sent as u64, len: room as u64 }));
}

#[test]
fn a_message_of_a_whole_chunk_from_a_peer_that_does_not_stage_is_found_out() {
    let mut rig = Rig::new(1, Link::default(), [2; 2], 0);
    rig.push(&mut Random::new(1), 0, 3 * CHUNK, 0);
    let (addr, lkey) = (rig.send.slots.addr(0), rig.send.slots.lkey());
    let mut request = None;
    let failure = (0..10_000).find_map(|_| {
        if request.is_none() {
            let buf = SendBuf { addr, len: CHUNK as u32, lkey };
            request = rig.send.comm.isend(&buf, 0).unwrap();
        }
        rig.world.advance(1000);
        rig.incoming.advance(&mut rig.recv).err()
    });
    let failure = failure.expect("a failure");
    let Failure::Unstaged { offset, came, .. } = failure else { panic!("{failure:?}") };
    assert_eq!((offset, came), (0, CHUNK as u32));
}

#[test]
fn a_transfer_of_one_chunk_is_an_ordinary_message() {
    let mut rig = Rig::new(1, Link::default(), [2; 2], 0);
    rig.push(&mut Random::new(7), 100, 0, 0);
    // The other end receives into memory that its NIC can access.
    let (addr, rkey) = (rig.recv.slots.addr(0), rig.recv.slots.rkey());
    let buf = RecvBuf { addr, len: 500, tag: 0, rkey };
    let request = rig.recv.comm.irecv(&[buf]).unwrap().expect("room");
    let sizes = (0..10_000).find_map(|_| {
        rig.outgoing.advance(&mut rig.send).unwrap();
        rig.world.advance(1000);
        rig.recv.comm.test(&request).unwrap().map(<[u32]>::to_vec)
    });
    assert_eq!(sizes, Some(vec![100]));
    assert_eq!(rig.recv.slots.read(0, 100), rig.send.gpu);
}
