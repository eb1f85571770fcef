//! Many pieces by one system call.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use invar_core::conn::StreamError;

use super::{OobStream, is_not_now, os};
use crate::memory::{Gather, Scatter};
use crate::udp::message_header;

impl OobStream {
    /// Sends the bytes of `pieces`, as many as fit now, and says how many; 0 where nothing fits.
    pub(crate) fn send_gather(&self, pieces: &[Gather<'_>]) -> Result<usize, StreamError> {
        let (socket, flags) = (self.stream.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // `Gather` is a transparent `iovec`, and the kernel does not write to the list.
        let list: *mut libc::iovec = pieces.as_ptr().cast_mut().cast();
        let sent = match pieces.len() {
            1 => {
                // SAFETY: there is one.
                let piece = unsafe { *list };
                // SAFETY: what the piece points to is borrowed.
                unsafe { libc::send(socket, piece.iov_base, piece.iov_len, flags) }
            }
            len => {
                let header = message_header(ptr::null_mut(), 0, list, len);
                // SAFETY: the list is as long as the header says and outlives the call, and so
                // does what its pieces point to, which they borrow.
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

    /// Receives into `pieces`, which are not all empty, what is there, and says how many bytes; 0
    /// where nothing is there. The end of the stream is [`StreamError::Closed`], or the error that
    /// another handle of the connection was told of.
    pub(crate) fn recv_scatter(&self, pieces: &mut [Scatter<'_>]) -> Result<usize, StreamError> {
        let (socket, flags) = (self.stream.as_raw_fd(), libc::MSG_DONTWAIT);
        // `Scatter` is a transparent `iovec`.
        let list: *mut libc::iovec = pieces.as_mut_ptr().cast();
        let received = match pieces.len() {
            1 => {
                // SAFETY: there is one.
                let piece = unsafe { *list };
                // Most looks find nothing, and this spares them a list that the kernel fetches.
                // SAFETY: what the piece points to is borrowed for writing.
                unsafe { libc::recv(socket, piece.iov_base, piece.iov_len, flags) }
            }
            len => {
                let mut header = message_header(ptr::null_mut(), 0, list.cast(), len);
                // SAFETY: as above, of each piece.
                unsafe { libc::recvmsg(socket, &mut header, flags) }
            }
        };
        match received {
            0 => Err(self.error.get().copied().unwrap_or(StreamError::Closed)),
            _ => moved(received).map_err(os).inspect_err(|error| self.note(*error)),
        }
    }
}

/// Bytes that a call moved, of what it returned.
fn moved(result: isize) -> io::Result<usize> {
    if let Ok(bytes) = usize::try_from(result) {
        return Ok(bytes);
    }
    let error = io::Error::last_os_error();
    if is_not_now(&error) { Ok(0) } else { Err(error) }
}
