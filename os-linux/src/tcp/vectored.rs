//! Sends and receives many pieces by one system call.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::thread;

use invar_core::conn::StreamError;

use super::{OobStream, is_not_now, os};
use crate::memory::{Gather, Scatter};
use crate::udp::message_header;

impl OobStream {
    /// Sends as many bytes of `pieces` as fit now and returns their number, or 0 if nothing fits.
    pub(crate) fn send_gather(&self, pieces: &[Gather<'_>]) -> Result<usize, StreamError> {
        let (socket, flags) = (self.stream.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // `Gather` is a transparent `iovec`, and the kernel does not write to the list.
        let list: *mut libc::iovec = pieces.as_ptr().cast_mut().cast();
        let sent = match pieces.len() {
            1 => {
                // SAFETY: The list has exactly one piece.
                let piece = unsafe { *list };
                // SAFETY: The piece borrows the memory that it points to.
                unsafe { libc::send(socket, piece.iov_base, piece.iov_len, flags) }
            }
            len => {
                let header = message_header(ptr::null_mut(), 0, list, len);
                // SAFETY: The list has the length in the header and outlives the call. Each piece
                // borrows the memory that it points to.
                unsafe { libc::sendmsg(socket, &header, flags) }
            }
        };
        moved(sent)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EPIPE) => self.error.get().copied().unwrap_or(StreamError::Closed),
                _ => os(error),
            })
            .inspect_err(|error| self.note(*error))
    }

    /// Receives available bytes into `pieces`, which are not all empty, and returns their number, or 0
    /// if nothing is available. The end of the stream is [`StreamError::Closed`], or the error that
    /// another handle of the connection received.
    pub(crate) fn recv_scatter(&self, pieces: &mut [Scatter<'_>]) -> Result<usize, StreamError> {
        let (socket, flags) = (self.stream.as_raw_fd(), libc::MSG_DONTWAIT);
        // `Scatter` is a transparent `iovec`.
        let list: *mut libc::iovec = pieces.as_mut_ptr().cast();
        let received = match pieces.len() {
            1 => {
                // SAFETY: The list has exactly one piece.
                let piece = unsafe { *list };
                // Most calls find no bytes, and without a list the kernel has less to fetch.
                // SAFETY: The piece borrows the memory that it points to for writing.
                unsafe { libc::recv(socket, piece.iov_base, piece.iov_len, flags) }
            }
            len => {
                let mut header = message_header(ptr::null_mut(), 0, list.cast(), len);
                // SAFETY: The list has the length in the header and outlives the call. Each piece
                // borrows its memory for writing.
                unsafe { libc::recvmsg(socket, &mut header, flags) }
            }
        };
        match received {
            0 => Err(self.error.get().copied().unwrap_or_else(|| self.end_of_stream())),
            _ => moved(received).map_err(os).inspect_err(|error| self.note(*error)),
        }
    }
}

impl OobStream {
    /// Tells why there are no more bytes. The kernel reports a reset once, perhaps to another handle of the connection,
    /// whose thread is about to note it.
    #[cold]
    fn end_of_stream(&self) -> StreamError {
        /// State of a connection that both ends have closed, or that was reset (`tcp_states.h`).
        const TCP_CLOSE: u8 = 7;
        /// Number of times that another thread gets the processor.
        const TURNS: u32 = 8;
        let turns = if self.state() == Some(TCP_CLOSE) { TURNS } else { 0 };
        (0..turns)
            .find_map(|_| {
                thread::yield_now();
                self.error.get().copied()
            })
            .unwrap_or(StreamError::Closed)
    }
}

/// Converts the result of a call into the number of moved bytes.
fn moved(result: isize) -> io::Result<usize> {
    if let Ok(bytes) = usize::try_from(result) {
        return Ok(bytes);
    }
    let error = io::Error::last_os_error();
    if is_not_now(&error) { Ok(0) } else { Err(error) }
}
