//! Ends of connections over TCP.

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::error::Error as CoreError;
use invar_core::stall::Wait;
use invar_linux::socket::{RecvComm, SendComm};

use super::end::{RecvEnd, SendEnd, copy_sizes};
use super::on::On;
use crate::Error;

/// A sending end over TCP.
pub type SocketSend = On<SendComm, ()>;
/// A receiving end over TCP.
pub type SocketRecv = On<RecvComm, ()>;

impl SendEnd for SocketSend {
    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        self.comm.room(tag)
    }

    fn is_settled(&self) -> bool {
        self.comm.is_settled()
    }

    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `isend` demands.
        let request = unsafe { self.comm.isend(buf, tag) }?;
        if request.is_none() {
            self.idle(Wait::Send { tag, len: buf.len })?;
        }
        Ok(request)
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.comm.test(request)?;
        if sent.is_none() {
            self.idle(Wait::Test)?;
        }
        Ok(sent)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        match self.comm.way_back() {
            Ok(comm) => Ok(Some(Box::new(SocketRecv::new(comm, &())))),
            Err(error) => Err(no_way_back(error)),
        }
    }
}

impl RecvEnd for SocketRecv {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `irecv` demands.
        unsafe { self.comm.irecv(bufs) }
    }

    unsafe fn iflush(&mut self, _: &[FlushBuf]) -> Result<Flush, CoreError> {
        Ok(Flush::NotNeeded)
    }

    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        if let Some(received) = self.comm.test(request)? {
            // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
            unsafe { copy_sizes(received, sizes) };
            return Ok(Some(received.len()));
        }
        self.idle(Wait::Test)?;
        Ok(None)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        match self.comm.way_back() {
            Ok(comm) => Ok(Some(Box::new(SocketSend::new(comm, &())))),
            Err(error) => Err(no_way_back(error)),
        }
    }
}

fn no_way_back(error: std::io::Error) -> Error {
    Error::io("using a connection both ways", error)
}
