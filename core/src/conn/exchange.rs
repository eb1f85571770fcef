//! The exchange of messages over the stream during the handshake.

use static_assertions::const_assert;
use zerocopy::{FromBytes, IntoBytes};

use super::stage::Stage;
use super::wire::{
    MESSAGE_BYTES_MAX, PREFACE_BYTES, Preface, PrefaceBytes, PrefaceError, QP_INFO_BYTES, QpInfo,
    QpInfoBytes, TIME_BYTES,
};
use super::{Stream, StreamError, Wire};
use crate::auth::Hello;
use crate::error::Error;

/// Bytes of the longest message with the time after it.
const BYTES_MAX: usize = MESSAGE_BYTES_MAX + TIME_BYTES;

const_assert!(BYTES_MAX <= u16::MAX as usize);

/// One outgoing and one incoming message, resumable at any byte.
pub(crate) struct Exchange {
    wire: Wire,
    out: heapless::Vec<u8, BYTES_MAX>,
    sent: usize,
    input: [u8; BYTES_MAX],
    got: usize,
    want: usize,
}

impl Exchange {
    pub(crate) fn new(wire: Wire) -> Self {
        let out = heapless::Vec::new();
        Exchange { wire, out, sent: 0, input: [0; BYTES_MAX], got: 0, want: 0 }
    }

    /// Lays out the message that [`Exchange::send`] sends.
    pub(crate) fn put_message(&mut self, preface: &Preface, info: &QpInfo) {
        self.put(&[]);
        if self.wire == Wire::Invar {
            self.extend(preface.to_bytes().as_bytes());
        }
        self.extend(info.to_bytes().as_bytes());
    }

    /// Adds the time of this end's clock to the message that was laid out.
    pub(crate) fn put_time(&mut self, now_ns: u64) {
        self.extend(&now_ns.to_le_bytes());
    }

    /// Lays out a few bytes to send.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.out.clear();
        self.sent = 0;
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = self.out.extend_from_slice(bytes);
        debug_assert!(room.is_ok(), "the longest message fits");
    }

    /// Prepares to receive a message or word of `bytes` bytes.
    pub(crate) fn expect(&mut self, bytes: usize) {
        (self.got, self.want) = (0, bytes.min(BYTES_MAX));
    }

    /// Length of a message in bytes.
    fn message_bytes(&self) -> usize {
        match self.wire {
            Wire::Invar => PREFACE_BYTES + QP_INFO_BYTES,
            Wire::Nccl214 => QP_INFO_BYTES,
        }
    }

    /// Prepares to receive the peer's message.
    pub(crate) fn expect_message(&mut self) {
        self.expect(self.message_bytes());
    }

    /// Sends the rest of the message; returns whether all of it is sent.
    pub(crate) fn send(&mut self, stream: &mut impl Stream, stage: Stage) -> Result<bool, Error> {
        while self.sent < self.out.len() {
            match stream.send(&self.out[self.sent..]) {
                Ok(0) => return Ok(false),
                Ok(n) => self.sent += n.min(self.out.len() - self.sent),
                Err(error) => return Err(self.failed(stage, error)),
            }
        }
        Ok(true)
    }

    /// The awaited bytes, once all of them have arrived.
    pub(crate) fn recv(
        &mut self,
        stream: &mut impl Stream,
        stage: Stage,
    ) -> Result<Option<&[u8]>, Error> {
        while self.got < self.want {
            match stream.recv(&mut self.input[self.got..self.want]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.got += n.min(self.want - self.got),
                Err(error) => return Err(self.failed(stage, error)),
            }
            // A peer on Invar's wire sends fewer bytes than this end awaits, so its hello is recognised
            // early.
            if self.wire == Wire::Nccl214 && self.want >= QP_INFO_BYTES {
                let version = Hello::version_of(&self.input[..self.got]);
                if let Some(theirs) = version {
                    return Err(Error::Preface(PrefaceError::OtherWire(theirs)));
                }
            }
        }
        Ok(Some(&self.input[..self.want]))
    }

    /// The peer's message, once all of it has arrived. `qps` is the number of the peer's queue pairs on
    /// a wire that does not transmit it.
    pub(crate) fn recv_message(
        &mut self,
        stream: &mut impl Stream,
        stage: Stage,
        qps: usize,
        with_fifo: bool,
    ) -> Result<Option<(Option<Preface>, QpInfo)>, Error> {
        let (wire, len) = (self.wire, self.message_bytes());
        let Some(bytes) = self.recv(stream, stage)? else { return Ok(None) };
        parse(wire, &bytes[..len], qps, with_fifo).map(Some)
    }

    /// The time after the peer's message, once all of it has arrived.
    pub(crate) fn recv_time(
        &mut self,
        stream: &mut impl Stream,
        stage: Stage,
    ) -> Result<Option<u64>, Error> {
        let len = self.message_bytes();
        self.want = len + TIME_BYTES;
        let bytes = self.recv(stream, stage)?;
        Ok(bytes.and_then(|bytes| bytes[len..].first_chunk()).copied().map(u64::from_le_bytes))
    }

    /// The message that [`Exchange::put_message`] has laid out.
    pub(crate) fn message(&self) -> &[u8] {
        &self.out
    }

    /// The error for a deadline that has passed.
    pub(crate) fn timed_out(&self, stage: Stage) -> Error {
        Error::Timeout { stage, got: self.got as u16, want: self.want as u16 }
    }

    pub(crate) fn failed(&self, stage: Stage, error: StreamError) -> Error {
        Error::Stream { stage, error, got: self.got as u16, want: self.want as u16 }
    }
}

/// Reads a whole message of a peer.
pub(crate) fn parse(
    wire: Wire,
    bytes: &[u8],
    qps: usize,
    with_fifo: bool,
) -> Result<(Option<Preface>, QpInfo), Error> {
    let (preface, qps, bytes) = match wire {
        Wire::Nccl214 => (None, qps, bytes),
        Wire::Invar => {
            let short = Error::Argument("a message shorter than its preface");
            let (head, rest) = PrefaceBytes::read_from_prefix(bytes).map_err(|_| short)?;
            let preface = Preface::parse(&head).map_err(Error::Preface)?;
            let qps = usize::from(preface.qp_count);
            (Some(preface), qps, rest)
        }
    };
    let short = Error::Argument("a message that is not as long as QP info");
    let info = QpInfoBytes::read_from_bytes(bytes).map_err(|_| short)?;
    let info = QpInfo::parse(&info, qps, with_fifo).map_err(Error::QpInfo)?;
    Ok((preface, info))
}
