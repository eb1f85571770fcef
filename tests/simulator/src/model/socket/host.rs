//! Drives each end of the model's connection: its buffers, its requests, and the moves that the
//! protocol asks for.

use std::collections::{HashMap, HashSet, VecDeque};

use invar_core::comm::Request;
use invar_core::error::Error;
use invar_core::socket::{FRAME_BYTES, LANES_MAX, Posted, Receiver, RecvStep, Sender, Target};

use super::wires::Wires;
use crate::pattern::pattern_byte;

#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) len: u32,
    pub(super) tag: u32,
}

pub(super) struct SendHost {
    pub(super) sender: Sender,
    /// All messages that the sender accepted.
    pub(super) messages: Vec<Message>,
    under_way: Vec<(Request, usize)>,
    /// The messages that were copied.
    kept: HashSet<usize>,
}

impl SendHost {
    pub(super) fn new(lanes: u16, resumes: bool) -> Self {
        let sender = Sender::new(lanes).resuming(resumes);
        SendHost { sender, messages: Vec::new(), under_way: Vec::new(), kept: HashSet::new() }
    }

    pub(super) fn isend(&mut self, len: u32, tag: u32, wires: &mut Wires) -> Result<(), Error> {
        if let Some((request, chunks)) = self.sender.isend(len, tag)? {
            let seq = self.messages.len();
            self.messages.push(Message { len, tag });
            if self.sender.kept(&request).1 {
                self.kept.insert(seq);
            }
            chunks.for_each(|chunk| wires.queue(seq, request.index(), chunk));
            self.under_way.push((request, seq));
        }
        Ok(())
    }

    pub(super) fn test(&mut self, which: u8) -> Result<(), Error> {
        let Some(at) = usize::from(which).checked_rem(self.under_way.len()) else { return Ok(()) };
        if let Some(sent) = self.sender.test(&self.under_way[at].0)? {
            let (request, seq) = self.under_way.swap_remove(at);
            assert_eq!(sent, self.messages[seq].len);
            let again = self.sender.test(&request);
            assert_eq!(again, Err(Error::UnknownRequest(request.raw())));
        }
        Ok(())
    }

    /// Writes at most `bytes` bytes to the main socket.
    pub(super) fn write_main(&mut self, wires: &mut Wires, bytes: usize) {
        let first = self.messages.len();
        let mut out = Vec::new();
        for outgoing in self.sender.outgoing() {
            // The index of a request is the low byte of its message's number.
            let seq = (0..first).rev().find(|seq| seq % 256 == outgoing.index).expect("a message");
            out.extend_from_slice(&outgoing.frame[outgoing.frame_written..]);
            let is_live = self.under_way.iter().any(|(_, live)| *live == seq);
            let is_kept = self.kept.contains(&seq);
            assert!(is_live || is_kept, "message {seq} is over, and its buffer is the program's");
            out.extend(outgoing.payload.map(|at| pattern_byte(seq, at as usize)));
            if out.len() >= bytes {
                break;
            }
        }
        out.truncate(bytes);
        self.sender.wrote(out.len());
        wires.main.extend(out);
    }

    /// Copies the messages that main has taken.
    pub(super) fn keep(&mut self) {
        while let Some((index, _)) = self.sender.keep_written() {
            let mut live = self.under_way.iter().map(|(_, seq)| *seq);
            self.kept.insert(live.find(|seq| seq % 256 == index).expect("a send that is not done"));
        }
    }

    /// The messages whose sends are not done.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> {
        self.under_way.iter().map(|(_, seq)| *seq)
    }

    pub(super) fn read_control(&mut self, wires: &mut Wires, bytes: usize) -> Result<(), Error> {
        let bytes: Vec<u8> = wires.control.drain(..bytes.min(wires.control.len())).collect();
        self.sender.take_control(&bytes)
    }
}

pub(super) struct RecvHost {
    pub(super) receiver: Receiver,
    staged: Vec<u8>,
    posts: Vec<Post>,
    /// Maps the index of a receive to its post. `parked` has the bytes of parked messages by index.
    by_index: HashMap<u8, usize>,
    parked: HashMap<u8, Vec<u8>>,
    /// The parts of messages that each lane brings: the target, the first byte and the length.
    chunks: Vec<VecDeque<(Target, usize, usize)>>,
    /// The number of bytes that were read from each lane.
    pub(super) lanes_read: Vec<u64>,
}

struct Post {
    bufs: Vec<Posted>,
    /// The content of each buffer, up to the last byte written.
    memory: Vec<Vec<u8>>,
    /// The request, or `None` once it is done.
    request: Option<Request>,
    sizes: Vec<u32>,
}

impl RecvHost {
    pub(super) fn new(lanes: u16, resumes: bool) -> Self {
        RecvHost {
            receiver: Receiver::new(lanes).resuming(resumes),
            staged: Vec::new(),
            posts: Vec::new(),
            by_index: HashMap::new(),
            parked: HashMap::new(),
            chunks: (0..lanes).map(|_| VecDeque::new()).collect(),
            lanes_read: vec![0; lanes.into()],
        }
    }

    pub(super) fn irecv(&mut self, bufs: &[Posted]) -> Result<(), Error> {
        let posted = self.receiver.irecv(bufs);
        let error = posted.as_ref().err().copied();
        let (memory, sizes) = (vec![Vec::new(); bufs.len()], Vec::new());
        match posted {
            Ok(None) => assert_eq!(self.receiver.outstanding(), 256, "no request is free"),
            // One of the buffers is too short for a message that has arrived.
            Err(_) => self.posts.push(Post { bufs: bufs.to_vec(), memory, request: None, sizes }),
            Ok(Some(request)) => {
                self.by_index.insert(request.index() as u8, self.posts.len());
                let request = Some(request);
                self.posts.push(Post { bufs: bufs.to_vec(), memory, request, sizes });
            }
        }
        if let Some(error) = error {
            return Err(error);
        }
        self.settle()
    }

    pub(super) fn test(&mut self, which: u8) -> Result<(), Error> {
        let mut live = self.posts.iter_mut().filter(|post| post.request.is_some());
        let count = live.by_ref().count();
        let Some(at) = usize::from(which).checked_rem(count) else { return Ok(()) };
        let post = self.posts.iter_mut().filter(|post| post.request.is_some()).nth(at);
        let post = post.expect("counted");
        let request = post.request.take().expect("live");
        match self.receiver.test(&request)? {
            Some(sizes) => post.sizes = sizes.to_vec(),
            None => post.request = Some(request),
        }
        Ok(())
    }

    /// Reads bytes from the main socket as a host does. Payload goes to its place, other bytes go into
    /// `staged`.
    pub(super) fn read_main(&mut self, wires: &mut Wires, bytes: usize) -> Result<(), Error> {
        self.settle()?;
        if !self.receiver.is_starved(self.staged.len()) {
            return Ok(());
        }
        let mut read: Vec<u8> = wires.main.drain(..bytes.min(wires.main.len())).collect();
        if read.is_empty() {
            self.receiver.idle();
            return Ok(());
        }
        self.receiver.has_read(read.len());
        if let Some((to, range)) = self.receiver.awaited() {
            let now = read.len().min(range.len());
            let later = read.split_off(now);
            self.write(to, range.start as usize, &read);
            self.receiver.placed(now as u32);
            read = later;
        }
        self.staged.extend(read);
        self.settle()
    }

    pub(super) fn write_control(&mut self, wires: &mut Wires) {
        let mut frames = [0; 50];
        let filled = self.receiver.take_news(&mut frames);
        wires.control.extend(&frames[..filled]);
        let mut frames = [0; (LANES_MAX + 1) * FRAME_BYTES];
        let filled = self.receiver.take_acks(self.lanes_read.iter().copied(), &mut frames);
        wires.control.extend(&frames[..filled]);
    }

    pub(super) fn read_lane(&mut self, wires: &mut Wires, lane: u8, mut bytes: usize) {
        let Some(lane) = usize::from(lane).checked_rem(self.chunks.len()) else { return };
        while let Some(&(to, offset, left)) = self.chunks[lane].front() {
            let now = left.min(bytes).min(wires.lanes[lane].len());
            if now == 0 {
                break;
            }
            let read: Vec<u8> = wires.lanes[lane].drain(..now).collect();
            self.write(to, offset, &read);
            bytes -= now;
            self.lanes_read[lane] += now as u64;
            if now == left {
                self.chunks[lane].pop_front();
                self.receiver.chunk_done(to);
            } else {
                self.chunks[lane][0] = (to, offset + now, left - now);
            }
        }
    }

    /// Carries out the steps that the receiver asks for, with the staged bytes.
    fn settle(&mut self) -> Result<(), Error> {
        while let Some(step) = self.receiver.next(&self.staged)? {
            match step {
                RecvStep::Skip(bytes) => drop(self.staged.drain(..bytes)),
                RecvStep::Place { to, offset, len } => {
                    let now = self.staged.len().min(len as usize);
                    let bytes: Vec<u8> = self.staged.drain(..now).collect();
                    self.write(to, offset as usize, &bytes);
                    self.receiver.placed(now as u32);
                }
                RecvStep::Spread { to, chunks } => {
                    for chunk in chunks {
                        let part = (to, chunk.offset as usize, chunk.len as usize);
                        self.chunks[usize::from(chunk.lane)].push_back(part);
                    }
                }
                RecvStep::Park { place, len } => {
                    let old = self.parked.insert(place, vec![0; len as usize]);
                    assert_eq!(old, None, "a place that is taken");
                }
                RecvStep::Unpark { place, to, len } => {
                    let bytes = self.parked.remove(&place).expect("a place");
                    assert_eq!(bytes.len(), len as usize);
                    self.write(to, 0, &bytes);
                }
            }
        }
        let parked: usize = self.parked.values().map(Vec::len).sum();
        let most = invar_core::socket::AHEAD_BYTES as usize;
        assert!(parked <= most || !self.chunks.is_empty(), "{parked} bytes are parked");
        Ok(())
    }

    fn write(&mut self, to: Target, offset: usize, bytes: &[u8]) {
        let memory = match to {
            Target::Parked(place) => self.parked.get_mut(&place).expect("a place"),
            Target::Buffer { index, member } => {
                let post = &mut self.posts[self.by_index[&index]];
                assert!(post.request.is_some(), "a receive that is over");
                &mut post.memory[usize::from(member)]
            }
        };
        memory.resize(memory.len().max(offset + bytes.len()), 0);
        memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The length of buffer number `k` of a tag.
    pub(super) fn buffer(&self, tag: u32, k: usize) -> Option<u32> {
        let bufs = self.posts.iter().flat_map(|post| &post.bufs);
        bufs.filter(|buf| buf.tag == tag).nth(k).map(|buf| buf.len)
    }

    /// Checks that every buffer holds its message and no other bytes. A receive must be done if all its
    /// messages were sent, and must not be done otherwise.
    pub(super) fn judge(&self, messages: &[Message]) {
        let mut counts = HashMap::<u32, usize>::new();
        for post in &self.posts {
            let mut sizes = Vec::new();
            for (buf, memory) in post.bufs.iter().zip(&post.memory) {
                let k = counts.entry(buf.tag).or_default();
                let mut of_tag = messages.iter().enumerate().filter(|(_, m)| m.tag == buf.tag);
                let met = of_tag.nth(*k);
                *k += 1;
                let len = met.map_or(0, |(_, message)| message.len as usize);
                assert_eq!(memory.len(), len, "nothing is missing, nor written beyond the message");
                let is_right = |(at, byte): (usize, &u8)| {
                    met.is_some_and(|(seq, _)| *byte == pattern_byte(seq, at))
                };
                let wrong = memory.iter().enumerate().position(|at| !is_right(at));
                assert_eq!(wrong, None, "first wrong byte of {len}, tag {}", buf.tag);
                sizes.extend(met.map(|(_, message)| message.len));
            }
            let is_done = sizes.len() == post.bufs.len();
            assert_eq!(post.request.is_none(), is_done, "{:?}", post.bufs);
            if is_done {
                assert_eq!(post.sizes, sizes);
            }
        }
    }
}
