//! Makes calls on the two ends of a socket connection and checks their results.
//!
//! [`Op`] is one call, or the move of a few bytes. On each socket, every write and every read may be
//! short. [`World`] carries out the operations and compares the answers with the rule: message number k
//! of a tag meets buffer number k of that tag, and nothing else happens.

mod host;
mod wires;

use invar_core::error::Error;
use invar_core::fifo::RECVS_MAX;
use invar_core::socket::{AHEAD_BYTES, CHUNK_BYTES_MIN, KEPT_BYTES, Posted};

use host::{Message, RecvHost, SendHost};
use wires::Wires;

/// One call, or one move of bytes.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// `isend` of a message, with its tag and its approximate length.
    Send(u8, u16),
    /// `irecv` of 1 to 8 buffers: their number less one, four bits of tag for each, and an approximate
    /// length.
    Recv(u8, u32, u16),
    /// `test` of a send in flight.
    TestSend(u8),
    /// `test` of a receive in flight.
    TestRecv(u8),
    /// The sender writes at most four times this number of bytes to the main socket.
    WriteMain(u16),
    /// The receiver reads at most four times this number of bytes from the main socket.
    ReadMain(u16),
    /// The receiver writes its due frames to the control socket. Then the sender reads this number of
    /// bytes from it.
    Control(u8),
    /// A lane, by its number, takes in and gives out at most this number of bytes.
    Lane(u8, u32),
    /// A socket loses its connection, and the bytes that are under way. It goes on over a new one. Control has number
    /// 0, main has 1, and then come the lanes.
    Lose(u8),
    /// The sender copies the messages that main has taken.
    Keep,
}

/// How a connection is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Number of lanes.
    pub lanes: u16,
    /// Whether a buffer may be too short for its message.
    pub mismatches: bool,
    /// Whether lost sockets go on over new connections. If not, no socket is lost.
    pub resumes: bool,
}

impl Op {
    /// The bytes of an encoded operation.
    pub const BYTES: usize = 8;

    /// Decodes any bytes as an operation, for a fuzzer or a random generator.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Op {
        let [kind, a, b, c, d, e, f, g] = bytes;
        let short = u16::from_le_bytes([f, g]);
        match kind % 16 {
            0..=2 => Op::Send(a % 4, short),
            3 => Op::Recv(0, 0, short),
            4 => Op::Recv(0, u32::from(a % 4), short),
            5 => Op::Recv(e % 8, u32::from_le_bytes([a, b, c, d]) & 0x3333_3333, short),
            6 => Op::TestSend(a),
            7 => Op::TestRecv(a),
            8 | 9 => Op::WriteMain(short),
            10 | 11 => Op::ReadMain(short),
            12 | 13 => Op::Control(a),
            14 => Op::Lose(a),
            15 if a % 4 == 0 => Op::Keep,
            _ => Op::Lane(a, u32::from_le_bytes([d, e, f, g]) >> 12),
        }
    }
}

/// Derives a length from 16 bits. Most lengths are short. Some messages go over lanes, and a few are
/// longer than a sender may send ahead.
fn length(short: u16) -> u32 {
    let low = u32::from(short >> 4);
    match short % 16 {
        0 => 0,
        1 => CHUNK_BYTES_MIN + low * 64,
        2 if low < 16 => AHEAD_BYTES + low,
        _ => low,
    }
}

/// Both ends of a connection, the bytes between them, and all requests that were made of them.
pub struct World {
    send: SendHost,
    recv: RecvHost,
    wires: Wires,
    plan: Plan,
}

impl World {
    /// Runs operations, then moves all bytes, and judges the result.
    ///
    /// # Panics
    /// Panics if an answer is wrong.
    pub fn run(plan: Plan, ops: impl IntoIterator<Item = Op>) {
        let Plan { lanes, resumes, .. } = plan;
        let mut world = World {
            send: SendHost::new(lanes, resumes),
            recv: RecvHost::new(lanes, resumes),
            wires: Wires::new(lanes, resumes),
            plan,
        };
        for op in ops {
            if let Err(error) = world.apply(op) {
                world.judge_end(error);
                return;
            }
        }
        match world.finish() {
            Ok(()) => world.judge(),
            Err(error) => world.judge_end(error),
        }
    }

    fn apply(&mut self, op: Op) -> Result<(), Error> {
        let World { send, recv, wires, .. } = self;
        match op {
            Op::Send(tag, short) => {
                let len = length(short);
                match send.isend(len, tag.into(), wires) {
                    // The sender refuses a message for a known buffer that is too short. The buffer
                    // waits for another message.
                    Err(Error::SizeMismatch { local, remote, .. }) if self.plan.mismatches => {
                        assert_eq!(local, len);
                        assert!(remote < len);
                        Ok(())
                    }
                    result => result,
                }
            }
            Op::Recv(nreqs, tags, short) => {
                let room = if self.plan.mismatches { length(short) } else { 2 * AHEAD_BYTES };
                let posted = |i: usize| Posted { len: room, tag: tags >> (4 * i) & 15 };
                let bufs: Vec<Posted> =
                    (0..=usize::from(nreqs).min(RECVS_MAX - 1)).map(posted).collect();
                recv.irecv(&bufs)
            }
            Op::TestSend(which) => send.test(which),
            Op::TestRecv(which) => recv.test(which),
            Op::WriteMain(bytes) => {
                send.write_main(wires, usize::from(bytes) * 4);
                Ok(())
            }
            Op::ReadMain(bytes) => recv.read_main(wires, usize::from(bytes) * 4),
            Op::Control(bytes) => {
                recv.write_control(wires);
                send.read_control(wires, bytes.into())
            }
            Op::Lane(lane, bytes) => {
                wires.write_lane(lane, bytes as usize, &mut send.sender);
                recv.read_lane(wires, lane, bytes as usize);
                Ok(())
            }
            Op::Lose(socket) => self.lose(socket),
            Op::Keep => {
                send.keep();
                Ok(())
            }
        }
    }

    /// Loses the connection of a socket.
    fn lose(&mut self, socket: u8) -> Result<(), Error> {
        let World { send, recv, wires, plan } = self;
        if !plan.resumes {
            return Ok(());
        }
        match usize::from(socket) % (usize::from(plan.lanes) + 2) {
            0 => {
                wires.control.clear();
                send.sender.control_renewed();
                recv.receiver.control_resumed(send.sender.buffers_known())
            }
            1 => {
                wires.main.clear();
                send.sender.main_resumed(recv.receiver.main_position())
            }
            lane => {
                let lane = lane - 2;
                wires.lose_lane(lane, recv.lanes_read[lane], &mut send.sender);
                Ok(())
            }
        }
    }

    /// Moves bytes until none can move any more.
    fn finish(&mut self) -> Result<(), Error> {
        // A waiting sender hears of buffers after the receiver has looked often enough.
        for _ in 0..256 {
            self.send.write_main(&mut self.wires, usize::MAX);
            self.apply(Op::Control(u8::MAX))?;
            self.recv.read_main(&mut self.wires, 1 << 20)?;
            for lane in 0..=u8::MAX {
                self.apply(Op::Lane(lane, u32::MAX >> 1))?;
            }
            for which in 0..=u8::MAX {
                self.send.test(which)?;
                self.recv.test(which)?;
            }
        }
        while self.wires.has_control() {
            self.apply(Op::Control(u8::MAX))?;
        }
        Ok(())
    }

    /// Checks the state after all bytes have moved.
    fn judge(&mut self) {
        let messages = self.send.messages.clone();
        for seq in self.send.pending() {
            let Message { len, tag } = messages[seq];
            let k = messages[..seq].iter().filter(|message| message.tag == tag).count();
            let needs_buffer = self.plan.resumes && len > KEPT_BYTES;
            assert!(needs_buffer, "a send of {len} bytes needs no buffer to be done");
            assert_eq!(self.recv.buffer(tag, k), None, "message {seq} has arrived");
        }
        self.recv.judge(&messages);
        if !self.wires.main.is_empty() && self.plan.resumes {
            // The messages that nobody reads may be all that the sender keeps.
            return;
        }
        // The sender has heard of every buffer that still waits, so a send to it starts.
        let mut counts = std::collections::HashMap::<u32, usize>::new();
        messages.iter().for_each(|message| *counts.entry(message.tag).or_default() += 1);
        for tag in 0..16 {
            let met = counts.get(&tag).copied().unwrap_or(0);
            if let Some(room) = self.recv.buffer(tag, met) {
                let sent = self.send.sender.isend(room, tag);
                assert!(matches!(sent, Ok(Some(_))), "{room} bytes, tag {tag}: {sent:?}");
            }
        }
    }

    /// Checks the error of a failed end. It must name a message that was too long for the buffer that
    /// it met.
    fn judge_end(&mut self, error: Error) {
        let Error::SizeMismatch { local, remote, tag } = error else { panic!("{error}") };
        assert!(self.plan.mismatches && local > remote, "{error}");
        let messages: Vec<_> =
            self.send.messages.iter().filter(|message| message.tag == tag).collect();
        let met = messages
            .iter()
            .enumerate()
            .any(|(k, message)| message.len == local && self.recv.buffer(tag, k) == Some(remote));
        assert!(met, "{error}, but no message and buffer are such a pair");
    }
}
