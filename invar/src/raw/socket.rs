//! Ends of connections over TCP.

use std::os::fd::{AsRawFd, RawFd};

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::nic::NicCounters;
use invar_core::stall::Wait;
use invar_linux::clock;
use invar_linux::interest::Interest;
use invar_linux::socket::{RecvComm, SendComm};

use super::end::{Carrier, End, RecvEnd, SendEnd, copy_sizes};
use super::keeper::{Attention, Rest};
use super::on::{CommHooks, On};
use super::recorded::{EndState, Snapshot};
use crate::Error;

/// A sending end over TCP.
pub type SocketSend = On<SendComm, ()>;
/// A receiving end over TCP.
pub type SocketRecv = On<RecvComm, ()>;

impl CommHooks for SendComm {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        let checked = SendComm::check_peer(self);
        self.look_for_stall(now_ns);
        checked
    }

    fn is_recovering(&self) -> bool {
        SendComm::is_recovering(self)
    }

    fn rest(&self) -> Option<(RawFd, u64)> {
        SendComm::rest(self)
    }

    fn park(&mut self, asleep_ns: Option<u64>) {
        SendComm::park(self, asleep_ns);
    }

    fn notes_call(&self) -> bool {
        SendComm::notes_call(self)
    }

    fn called(&mut self, wait: Wait, now_ns: u64) {
        SendComm::called(self, wait, now_ns);
    }

    fn snapshot(&self, nic: Option<NicCounters>, now_ns: u64) -> Option<Snapshot> {
        let state = EndState { error: self.end(), ..EndState::default() };
        Snapshot::of(self.watch(), self.ends(), self.numbers(), nic, state, now_ns)
    }
}

impl CommHooks for RecvComm {
    fn check_peer(&mut self, now_ns: u64) -> Result<(), CoreError> {
        self.look_for_stall(now_ns);
        RecvComm::check_peer(self)
    }

    fn is_recovering(&self) -> bool {
        RecvComm::is_recovering(self)
    }

    fn rest(&self) -> Option<(RawFd, u64)> {
        RecvComm::rest(self)
    }

    fn park(&mut self, asleep_ns: Option<u64>) {
        RecvComm::park(self, asleep_ns);
    }

    fn notes_call(&self) -> bool {
        RecvComm::notes_call(self)
    }

    fn called(&mut self, wait: Wait, now_ns: u64) {
        RecvComm::called(self, wait, now_ns);
    }

    fn snapshot(&self, nic: Option<NicCounters>, now_ns: u64) -> Option<Snapshot> {
        let state = EndState { error: self.end(), ..EndState::default() };
        Snapshot::of(self.watch(), self.ends(), self.numbers(), nic, state, now_ns)
    }
}

impl End for SocketSend {
    fn ends(&self) -> Ends {
        self.comm.ends().clone()
    }

    fn look(&mut self) -> Attention {
        // The program's next call returns the error.
        let _ = self.check_peer();
        self.attention()
    }

    fn attention(&self) -> Attention {
        On::attention(self)
    }

    fn rest(&self) -> Option<Rest<'_>> {
        On::rest(self)
    }

    fn park(&mut self, is_asleep: bool) {
        On::park(self, is_asleep);
    }

    fn called(&mut self) {
        self.note(Wait::None);
    }

    fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
        Some(vec![Carrier::Socket(self.comm.main_socket().as_raw_fd())])
    }

    fn needs_calls(&self) -> bool {
        true
    }

    fn arm(&mut self, interest: &mut Interest) {
        self.comm.arm(interest);
    }

    fn snapshot(&self, _: bool) -> Option<Snapshot> {
        // The kernel counts for all programs, and not for one.
        self.comm.snapshot(None, clock::now_ns())
    }

    fn is_done(&mut self, request: &Request) -> bool {
        self.comm.is_done(request)
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

impl End for SocketRecv {
    fn ends(&self) -> Ends {
        self.comm.ends().clone()
    }

    fn look(&mut self) -> Attention {
        // The program's next call returns the error.
        let _ = self.check_peer();
        self.attention()
    }

    fn attention(&self) -> Attention {
        On::attention(self)
    }

    fn rest(&self) -> Option<Rest<'_>> {
        On::rest(self)
    }

    fn park(&mut self, is_asleep: bool) {
        On::park(self, is_asleep);
    }

    fn called(&mut self) {
        self.note(Wait::None);
    }

    fn carriers(&mut self, _: &Request) -> Option<Vec<Carrier>> {
        Some(vec![Carrier::Socket(self.comm.main_socket().as_raw_fd())])
    }

    fn needs_calls(&self) -> bool {
        true
    }

    fn arm(&mut self, interest: &mut Interest) {
        self.comm.arm(interest);
    }

    fn snapshot(&self, _: bool) -> Option<Snapshot> {
        // The kernel counts for all programs, and not for one.
        self.comm.snapshot(None, clock::now_ns())
    }

    fn is_done(&mut self, request: &Request) -> bool {
        self.comm.is_done(request)
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
