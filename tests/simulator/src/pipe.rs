//! An out-of-band stream in memory. It moves as few bytes at a time as a test asks for, and a test may
//! break it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::auth::Session;
use invar_core::conn::stage::Side;
use invar_core::conn::{Stream, StreamError};

/// The error of an end whose stream is broken: `ETIMEDOUT`.
const BROKEN: StreamError = StreamError::Os(110);

/// One end of a pipe. Dropping it closes the pipe for the other end.
#[derive(Debug)]
pub struct Pipe {
    shared: Arc<Mutex<Shared>>,
    end: usize,
    /// The number of the stream that this end uses.
    line: usize,
    /// The number of the stream that this end, a connector, has asked for.
    called: Option<usize>,
    side: Side,
    /// Whether the end has just received a piece.
    has_piece: bool,
    /// The most bytes that one call moves.
    pub chunk_bytes_max: usize,
}

/// The network between the ends of a pipe, as a test controls it.
#[derive(Clone, Debug)]
pub struct Cable(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    /// The streams of the pipe, each made anew after the one before.
    lines: Vec<Line>,
    /// The ends that are dropped.
    closed: [bool; 2],
    /// The ends that refuse the next call.
    refusing: [bool; 2],
    is_out: bool,
    /// The most bytes that arrive between two looks of an end, if there is a limit.
    piece_bytes_max: Option<usize>,
}

/// A stream with two directions. Each is that of the end that sends.
#[derive(Debug, Default)]
struct Line {
    bytes: [VecDeque<u8>; 2],
    /// The ends for which the stream is broken.
    broken: [bool; 2],
    /// The ends that use a later stream.
    left: [bool; 2],
}

impl Pipe {
    /// The two ends of a new pipe.
    pub fn pair() -> (Pipe, Pipe) {
        let shared = Shared { lines: vec![Line::default()], ..Shared::default() };
        let shared = Arc::new(Mutex::new(shared));
        let end = |end| Pipe {
            shared: Arc::clone(&shared),
            end,
            line: 0,
            called: None,
            side: Side::Connector,
            has_piece: false,
            chunk_bytes_max: usize::MAX,
        };
        (end(0), end(1))
    }

    /// Whether `self` and `other` are the two ends of one pipe.
    pub fn is_other_end_of(&self, other: &Pipe) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.end != other.end
    }

    /// The network of the pipe.
    pub fn cable(&self) -> Cable {
        Cable(Arc::clone(&self.shared))
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cable {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Breaks all streams so far for some ends. What is on its way to such an end is lost, and what it has
    /// sent may be.
    pub fn cut(&self, ends: [bool; 2]) {
        for line in &mut self.shared().lines {
            for end in [0, 1].into_iter().filter(|end| ends[*end]) {
                line.broken[end] = true;
                line.bytes.iter_mut().for_each(VecDeque::clear);
            }
        }
    }

    /// Takes the network away, or brings it back. Without it bytes wait, and nobody can call.
    pub fn set_out(&self, is_out: bool) {
        self.shared().is_out = is_out;
    }

    /// Lets at most so many bytes arrive between two looks of an end.
    pub fn set_pieces(&self, bytes: usize) {
        self.shared().piece_bytes_max = Some(bytes);
    }

    /// The number of times that the stream was made anew.
    pub fn renewals(&self) -> usize {
        self.shared().lines.len() - 1
    }
}

impl Stream for Pipe {
    fn peer_addr(&self) -> Option<SocketAddr> {
        None
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Ok(true)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let Shared { lines, closed, .. } = &mut *self.shared();
        let Line { bytes: ways, broken, .. } = &mut lines[self.line];
        if closed[1 - self.end] {
            return Err(StreamError::Os(32));
        }
        if broken[self.end] {
            return Err(BROKEN);
        }
        let n = bytes.len().min(self.chunk_bytes_max);
        if !broken[1 - self.end] {
            ways[self.end].extend(&bytes[..n]);
        }
        Ok(n)
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        let shared = &mut *self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Shared { lines, closed, is_out, piece_bytes_max, .. } = shared;
        let Line { bytes, broken, left } = &mut lines[self.line];
        let other = 1 - self.end;
        if broken[self.end] {
            return Err(BROKEN);
        }
        if *is_out {
            return Ok(0);
        }
        self.has_piece = !self.has_piece && piece_bytes_max.is_some();
        if !self.has_piece && piece_bytes_max.is_some() {
            return Ok(0);
        }
        let piece_bytes_max = piece_bytes_max.unwrap_or(usize::MAX);
        let n = buf.len().min(self.chunk_bytes_max).min(piece_bytes_max).min(bytes[other].len());
        if n == 0 && bytes[other].is_empty() && (closed[other] || left[other]) {
            return Err(StreamError::Closed);
        }
        for (to, from) in buf.iter_mut().zip(bytes[other].drain(..n)) {
            *to = from;
        }
        Ok(n)
    }

    fn prepare_renewal(&mut self, side: Side, _: &Session, _: u16) -> bool {
        self.side = side;
        true
    }

    /// The acceptor may take the new stream before the connector knows that its call has succeeded.
    fn renew(&mut self) -> Result<bool, StreamError> {
        let (end, side) = (self.end, self.side);
        let shared = &mut *self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.is_out {
            return Ok(false);
        }
        let latest = shared.lines.len() - 1;
        if side == Side::Acceptor {
            if latest == self.line || shared.lines[latest].broken[end] {
                return Ok(false);
            }
        } else if shared.closed[1 - end] || shared.refusing[1 - end] {
            return Err(StreamError::Closed);
        } else if self.called.is_none_or(|called| shared.lines[called].broken[end]) {
            shared.lines.push(Line::default());
            self.called = Some(latest + 1);
            return Ok(false);
        }
        let new = self.called.take().unwrap_or(latest);
        shared.lines[self.line].left[end] = true;
        self.line = new;
        Ok(true)
    }

    fn end_renewal(&mut self) {
        self.shared().refusing[self.end] = true;
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.shared().closed[self.end] = true;
    }
}
