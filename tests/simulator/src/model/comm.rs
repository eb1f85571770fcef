//! Runs operations on a pair of comms and checks their results.
//!
//! [`Op`] is one call on either end. [`Traffic`] makes the call on real comms, notes it in a list of
//! posted receives, and compares every answer with that list. Each message is delivered once, in the
//! order of its tag, with its bytes and its size. Each receive is flushed, and each flush ends. No request is
//! lost.

mod cells;
mod flush;
mod ledger;
mod remains;

use invar_core::comm::{RailStates, RecoveryStage, RecvBuf, Request, SendBuf};
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_core::fifo::{DEPTH_MAX, RECVS_MAX};
use invar_core::nic::Nic;

use crate::duo::{self, Duo};
use crate::null::NullNic;
use cells::{Cell, Cells};
use flush::Flushing;
use ledger::{Expected, Ledger};

pub use remains::{End, Remains};

/// One call on a comm.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// `irecv` of 1 to 8 buffers. Each buffer takes four bits of `tags`, and its length depends on
    /// `len`.
    Recv {
        /// The number of buffers, less one.
        nreqs: u8,
        /// The buffers' tags.
        tags: u32,
        /// The buffers' lengths.
        len: u16,
    },
    /// `isend` of any message. Most of these find no posted receive.
    Send {
        /// The message's tag.
        tag: u8,
        /// Determines the message's length, which may exceed that of the buffer.
        len: u16,
    },
    /// `isend` of a message for which a buffer waits.
    SendAwaited {
        /// Selects one of the buffers that the sender may send to.
        which: u8,
        /// Determines the message's length, which fits into the buffer.
        len: u16,
    },
    /// `test` of a send in flight.
    TestSend(u8),
    /// `test` of a receive or of a flush in flight.
    TestRecv(u8),
}

impl Op {
    /// The bytes of an encoded operation.
    pub const BYTES: usize = 8;

    /// Decodes any bytes as an operation, for a fuzzer or a random generator.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Op {
        let [kind, a, b, c, d, e, f, g] = bytes;
        let len = u16::from_le_bytes([f, g]);
        match kind % 8 {
            // Most receives have one buffer, and most operations use few tags.
            0 => Op::Recv { nreqs: 0, tags: (a & 3).into(), len },
            1 => Op::Recv { nreqs: e % 8, tags: u32::from_le_bytes([a, b, c, d]), len },
            2 => {
                Op::Recv { nreqs: e % 8, tags: u32::from_le_bytes([a, b, c, d]) & 0x1111_1111, len }
            }
            3 => Op::Send { tag: a % 16, len },
            4 | 5 => Op::SendAwaited { which: a, len },
            6 => Op::TestSend(a),
            _ => Op::TestRecv(a),
        }
    }
}

/// Runs operations over the null NIC, and then finishes all requests in flight.
///
/// # Panics
/// Panics if an answer is wrong.
pub fn run(settings: CommSettings, ops: impl IntoIterator<Item = Op>) {
    let nics: [NullNic; 2] = NullNic::ports();
    let [a, b] = &nics;
    let settings = [settings; 2];
    let mut duo = duo::connect([a, b], settings, || {}).expect("a connection");
    // On the wire of NCCL 2.14 the ends finish their setup in their first calls, the sender first.
    assert_eq!(duo.send.isend(&SendBuf::default(), 0), Ok(None));
    let shape = Shape { message_bytes_max: 700, cells: 300, prompt: true };
    let mut traffic = Traffic::new([a, b], settings, duo, shape);
    for op in ops {
        traffic.apply(op).expect("a comm without faults");
    }
    // The NIC completes at once, so each step ends a message.
    for _ in 0..DEPTH_MAX * RECVS_MAX + 1 {
        if traffic.finish(0).expect("a comm without faults") {
            return;
        }
    }
    panic!("requests are under way still");
}

/// The amount of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The length of the longest message.
    pub message_bytes_max: usize,
    /// The number of buffers of each end.
    pub cells: usize,
    /// Whether the NIC has finished each call when the call returns. Then every answer is predictable.
    pub prompt: bool,
}

/// Two comms under test.
pub struct Traffic<N: Nic> {
    duo: Duo<N>,
    shape: Shape,
    depth: usize,
    wire: Wire,
    truncate: bool,
    ledger: Ledger,
    room: Cells<N>,
    source: Cells<N>,
    recvs: Vec<Receiving>,
    sends: Vec<Sending>,
    flushes: Vec<Flushing>,
    messages: u64,
}

struct Receiving {
    request: Request,
    /// The number of receives posted before this one.
    row: u64,
    bufs: Vec<Buf>,
}

struct Buf {
    cell: Cell,
    len: u32,
    /// The number and the length of the message for this buffer, once it is sent.
    message: Option<(u64, u32)>,
}

struct Sending {
    request: Request,
    row: u64,
    /// The index of this message in its row.
    r: usize,
    cell: Cell,
    len: u32,
}

/// Whether `answer` refuses a finished request. The error is `UnknownRequest`, or a fatal one if the
/// comm has failed since.
fn is_refused(answer: Option<Error>, request: &Request) -> bool {
    answer.is_some_and(|e| e == Error::UnknownRequest(request.raw()) || e.is_fatal())
}

/// Whether the comm can give out the next request.
#[derive(Debug, PartialEq, Eq)]
enum Requests {
    Free,
    /// The request that began a whole ring ago is still in flight, so its place is taken.
    Blocked,
    Exhausted,
}

/// Predicts the state of the ring. `live` has the numbers of the requests in flight, and `next` is the
/// next number.
fn free_requests(live: impl Iterator<Item = u64> + Clone, next: u64, depth: usize) -> Requests {
    if live.clone().count() == depth {
        Requests::Exhausted
    } else if live.clone().any(|number| number % depth as u64 == next % depth as u64) {
        Requests::Blocked
    } else {
        Requests::Free
    }
}

impl<N: Nic> Traffic<N> {
    /// Traffic between `nics` over an existing connection with these `settings`.
    pub fn new(nics: [&N; 2], settings: [CommSettings; 2], duo: Duo<N>, shape: Shape) -> Self {
        let wire = settings[0].wire;
        let depth = match wire {
            Wire::Nccl214 => 64,
            Wire::Invar => settings[0].fifo_depth.min(settings[1].fifo_depth).into(),
        };
        let cells = |nic, pd| Cells::new(nic, pd, shape.cells, shape.message_bytes_max);
        Traffic {
            source: cells(nics[0], &duo.send_pd),
            room: cells(nics[1], &duo.recv_pd),
            duo,
            shape,
            depth,
            wire,
            truncate: settings[0].truncate,
            ledger: Ledger::default(),
            recvs: Vec::new(),
            sends: Vec::new(),
            flushes: Vec::new(),
            messages: 0,
        }
    }

    /// Carries out one operation.
    ///
    /// # Errors
    /// Returns the error that ended the connection.
    ///
    /// # Panics
    /// Panics if the answer is wrong.
    pub fn apply(&mut self, op: Op) -> Result<(), Error> {
        match op {
            Op::Recv { nreqs, tags, len } => self.recv(nreqs, tags, len),
            Op::Send { tag, len } => {
                self.send(tag.into(), u32::from(len) % (self.shape.message_bytes_max as u32 + 1))
            }
            Op::SendAwaited { which, len } => self.send_awaited(which.into(), len),
            Op::TestSend(which) if !self.sends.is_empty() => {
                self.test_send(usize::from(which) % self.sends.len())
            }
            Op::TestRecv(which) => self.test_recv_or_flush(which.into()),
            Op::TestSend(_) => Ok(()),
        }?;
        self.check_outstanding();
        Ok(())
    }

    /// Makes one step towards the end: sends messages for waiting buffers and tests all requests in
    /// flight. Returns whether everything is over.
    ///
    /// # Errors
    /// Returns the error that ended the connection.
    ///
    /// # Panics
    /// Panics if an answer is wrong.
    pub fn finish(&mut self, now_ns: u64) -> Result<bool, Error> {
        self.check_peers(now_ns, [true; 2])?;
        self.send_awaited(0, 77)?;
        for i in (0..self.sends.len()).rev() {
            self.test_send(i)?;
        }
        for i in (0..self.recvs.len()).rev() {
            self.test_recv(i)?;
        }
        for i in (0..self.flushes.len()).rev() {
            self.test_flush(i)?;
        }
        self.check_outstanding();
        let is_over = self.sends.is_empty() && self.recvs.is_empty() && self.flushes.is_empty();
        if is_over {
            self.source.check_all_free();
            self.room.check_all_free();
        }
        Ok(is_over)
    }

    /// Checks the peers of some ends, at the given time. This also continues a recovery.
    ///
    /// # Errors
    /// Returns the error that ended the connection.
    pub fn check_peers(&mut self, now_ns: u64, [send, recv]: [bool; 2]) -> Result<(), Error> {
        if send {
            self.duo.send.check_peer(now_ns)?;
        }
        if recv {
            self.duo.recv.check_peer(now_ns)?;
        }
        Ok(())
    }

    /// The two comms.
    pub fn duo(&mut self) -> &mut Duo<N> {
        &mut self.duo
    }

    /// The numbers of the queue pairs that the sender and the receiver use first.
    pub fn qpns(&self) -> [u32; 2] {
        [self.duo.send.ends().qpn, self.duo.recv.ends().qpn]
    }

    /// The rails of the connection, as the sending end sees them.
    pub(crate) fn rails(&self) -> RailStates {
        self.duo.send.rails()
    }

    /// The stages of a recovery at the sender and at the receiver.
    pub fn recovery_stages(&self) -> [Option<RecoveryStage>; 2] {
        [self.duo.send.recovery_stage(), self.duo.recv.recovery_stage()]
    }

    /// The number of sends and of receives in flight.
    pub fn in_flight(&self) -> [usize; 2] {
        [self.sends.len(), self.recvs.len()]
    }

    /// The number of messages that were sent.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Checks that no request is leaked, and that none ends before it was tested.
    fn check_outstanding(&self) {
        assert_eq!(self.duo.send.outstanding(), self.sends.len(), "sends under way");
        let recvs = self.recvs.len() + self.flushes.len();
        assert_eq!(self.duo.recv.outstanding(), recvs, "receives and flushes under way");
    }

    fn recv(&mut self, nreqs: u8, tags: u32, len: u16) -> Result<(), Error> {
        let nreqs = (usize::from(nreqs) % RECVS_MAX + 1).min(self.depth);
        if self.room.free() < nreqs {
            return Ok(());
        }
        let mut bufs = Vec::new();
        let mut wanted = Vec::new();
        for r in 0..nreqs {
            let tag = tags >> (4 * r) & 15;
            let len = (usize::from(len) + 97 * r) % (self.shape.message_bytes_max + 1);
            let cell = self.room.take(r);
            let (addr, rkey) = (self.room.addr(&cell), self.room.buffer().rkey());
            wanted.push(RecvBuf { addr, len: len as u32, tag, rkey });
            bufs.push(Buf { cell, len: len as u32, message: None });
        }
        let request = self.duo.recv.irecv(&wanted)?;
        let live = self.recvs.iter().map(|recv| recv.row);
        let requests = free_requests(live, self.ledger.rows(), self.depth);
        match request {
            None => {
                // On the wire of NCCL 2.14 the comm may still be waiting for its ready word.
                assert!(requests != Requests::Free || !self.shape.prompt, "no request is free");
                bufs.into_iter().for_each(|buf| self.room.give(buf.cell));
            }
            Some(request) => {
                assert_ne!(requests, Requests::Exhausted, "more requests than there are");
                let row = self.ledger.post(wanted.iter().map(|buf| (buf.tag, buf.len)));
                self.recvs.push(Receiving { request, row, bufs });
            }
        }
        Ok(())
    }

    fn send_awaited(&mut self, which: usize, len: u16) -> Result<(), Error> {
        let Some((tag, room)) = self.ledger.awaited(which) else { return Ok(()) };
        self.send(tag, u32::from(len) % (room + 1))
    }

    fn send(&mut self, tag: u32, len: u32) -> Result<(), Error> {
        if self.source.free() == 0 {
            return Ok(());
        }
        let cell = self.source.take(self.messages as usize);
        self.source.fill(&cell, self.messages, len);
        let (addr, lkey) = (self.source.addr(&cell), self.source.buffer().lkey());
        let answer = self.duo.send.isend(&SendBuf { addr, len, lkey }, tag);
        let expected = self.ledger.expected(tag, len, self.truncate);
        match (answer, expected) {
            (Ok(Some(request)), Expected::Start { row, r, len }) => {
                let is_there = self.in_place_of(row).any(|sending| sending.r == r);
                assert!(!is_there, "a request that is under way was given again");
                self.ledger.sent(tag);
                let message = self.messages;
                self.sends.push(Sending { request, row, r, cell, len });
                let recv = self.recvs.iter_mut().find(|recv| recv.row == row);
                let buf = &mut recv.expect("under way until its messages are here").bufs[r];
                assert_eq!(buf.message.replace((message, len)), None);
                self.messages += 1;
                return Ok(());
            }
            (Ok(None), Expected::Nothing) => {}
            // The row of the FIFO may not have arrived yet.
            (Ok(None), _) if !self.shape.prompt => {}
            (Ok(None), Expected::Start { row, .. } | Expected::Mismatch { row, .. })
                if self.is_full(row) => {}
            (
                Err(Error::SizeMismatch { local, remote, tag: of }),
                Expected::Mismatch { room, .. },
            ) => {
                assert_eq!((local, remote, of), (len, room, tag));
            }
            (Err(error), _) if error.is_fatal() => {
                self.source.give(cell);
                return Err(error);
            }
            (answer, expected) => panic!(
                "isend of {len} bytes with tag {tag}: {answer:?}, where {expected:?} was due"
            ),
        }
        self.source.give(cell);
        Ok(())
    }

    /// Whether the messages of `row` may find no free request.
    fn is_full(&self, row: u64) -> bool {
        let count = self.recvs.iter().find(|recv| recv.row == row).map_or(0, |it| it.bufs.len());
        let in_group = count > 1 && self.sends.len() + count > self.depth;
        in_group || self.in_place_of(row).next().is_some()
    }

    /// The sends in flight of rows that had the place of `row` whole rings ago.
    fn in_place_of(&self, row: u64) -> impl Iterator<Item = &Sending> {
        let depth = self.depth as u64;
        self.sends
            .iter()
            .filter(move |send| send.row < row && (row - send.row).is_multiple_of(depth))
    }

    fn test_send(&mut self, i: usize) -> Result<(), Error> {
        let sending = &self.sends[i];
        let complete = self.ledger.is_complete(sending.row);
        match self.duo.send.test(&sending.request)? {
            Some(len) => {
                assert!(complete, "a send was done before its group was complete");
                assert_eq!(len, sending.len, "bytes sent");
                let sending = self.sends.swap_remove(i);
                let again = self.duo.send.test(&sending.request);
                assert!(
                    is_refused(again.err(), &sending.request),
                    "a send that is over: {again:?}"
                );
                self.source.give(sending.cell);
            }
            None => assert!(!complete || !self.shape.prompt, "a complete send is not done"),
        }
        Ok(())
    }

    fn test_recv_or_flush(&mut self, which: usize) -> Result<(), Error> {
        let (recvs, flushes) = (self.recvs.len(), self.flushes.len());
        match which.checked_rem(recvs + flushes) {
            None => Ok(()),
            Some(i) if i < recvs => self.test_recv(i),
            Some(i) => self.test_flush(i - recvs),
        }
    }

    fn test_recv(&mut self, i: usize) -> Result<(), Error> {
        let recv = &self.recvs[i];
        let complete = self.ledger.is_complete(recv.row);
        match self.duo.recv.test(&recv.request)?.map(<[u32]>::to_vec) {
            Some(sizes) => {
                assert!(complete, "a receive was done before its messages were sent");
                let recv = self.recvs.swap_remove(i);
                let again = self.duo.recv.test(&recv.request);
                assert!(
                    is_refused(again.err(), &recv.request),
                    "a receive that is over: {again:?}"
                );
                self.check_received(&sizes, &recv.bufs);
                self.flush(recv.bufs)?;
            }
            None => assert!(!complete || !self.shape.prompt, "a complete receive is not done"),
        }
        Ok(())
    }

    fn check_received(&self, sizes: &[u32], bufs: &[Buf]) {
        let size = |buf: &Buf| {
            let (_, len) = buf.message.expect("complete");
            let grouped = bufs.len() > 1;
            if grouped && self.wire == Wire::Nccl214 { u32::from(len > 0) } else { len }
        };
        assert_eq!(sizes, bufs.iter().map(size).collect::<Vec<_>>(), "sizes received");
        for buf in bufs {
            let (message, len) = buf.message.expect("complete");
            assert!(len <= buf.len);
            self.room.check(&buf.cell, message, len);
        }
    }
}
