//! Ends of connections over TCP.

use std::os::fd::{AsRawFd, RawFd};

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::stall::Wait;
use invar_linux::interest::Interest;
use invar_linux::socket::{RecvComm, SendComm};

use super::end::{Carrier, RecvEnd, SendEnd, copy_sizes};
use super::hooks::{CommHooks, own_hooks};
use super::on::On;
use super::recorded::{EndState, Snapshot};
use crate::Error;

/// A sending end over TCP.
pub type SocketSend = On<SendComm, ()>;
/// A receiving end over TCP.
pub type SocketRecv = On<RecvComm, ()>;

/// Implements the hooks that both comms over TCP have alike.
macro_rules! hooks_over_tcp {
    () => {
        const NEEDS_CALLS: bool = true;

        own_hooks!();

        fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
            Some(vec![Carrier::Socket(self.main_socket().as_raw_fd())])
        }

        fn is_recovering(&self) -> bool {
            self.is_recovering()
        }

        fn arm(&mut self, interest: &mut Interest) {
            self.arm(interest);
        }

        fn snapshot(&self, _: &(), _: bool, now_ns: u64) -> Option<Snapshot> {
            let state = EndState { error: self.end(), ..EndState::default() };
            // The kernel counts for all programs, and not for one.
            Snapshot::of(self.watch(), self.ends(), self.numbers(), None, state, now_ns)
        }
    };
}

impl CommHooks<()> for SendComm {
    hooks_over_tcp!();

    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        let checked = self.check_peer();
        self.look_for_stall(now_ns);
        checked
    }
}

impl CommHooks<()> for RecvComm {
    hooks_over_tcp!();

    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        self.look_for_stall(now_ns);
        self.check_peer()
    }
}

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
