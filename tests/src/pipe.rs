//! An out-of-band stream in memory. It moves as few bytes at a time as a test asks for.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar_core::conn::{Stream, StreamError};

/// One end of a pipe. Dropping it closes the pipe for the other end.
#[derive(Debug)]
pub struct Pipe {
    shared: Arc<Mutex<[Direction; 2]>>,
    end: usize,
    /// The most bytes that one call moves.
    pub chunk_bytes_max: usize,
}

/// One direction of a pipe.
#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    closed: bool,
}

impl Pipe {
    /// The two ends of a new pipe.
    pub fn pair() -> (Pipe, Pipe) {
        let shared = Arc::<Mutex<[Direction; 2]>>::default();
        let end = |end| Pipe { shared: Arc::clone(&shared), end, chunk_bytes_max: usize::MAX };
        (end(0), end(1))
    }

    /// Whether `self` and `other` are the two ends of one pipe.
    pub fn is_other_end_of(&self, other: &Pipe) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.end != other.end
    }

    fn directions(&self) -> MutexGuard<'_, [Direction; 2]> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut ways = self.directions();
        if ways[1 - self.end].closed {
            return Err(StreamError::Os(32));
        }
        let n = bytes.len().min(self.chunk_bytes_max);
        ways[self.end].bytes.extend(&bytes[..n]);
        Ok(n)
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        let way = &mut self.directions()[1 - self.end];
        let n = buf.len().min(self.chunk_bytes_max).min(way.bytes.len());
        if n == 0 && way.closed && way.bytes.is_empty() {
            return Err(StreamError::Closed);
        }
        for (to, from) in buf.iter_mut().zip(way.bytes.drain(..n)) {
            *to = from;
        }
        Ok(n)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.directions()[self.end].closed = true;
    }
}
