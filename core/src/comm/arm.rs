//! Descriptors that end the sleep of a program that waits for a comm.

use core::ffi::c_int;

use super::base::{Base, Gate};
use super::route::Route;
use super::{RecvComm, SendComm};
use crate::conn::Stream;
use crate::nic::Nic;

impl<N: Nic, S: Stream, R: Route<N, T, REQS>, T, const REQS: usize> Base<N, S, R, T, REQS> {
    fn arm(&mut self, writes: bool, ready: &mut dyn FnMut(c_int)) -> bool {
        // A NIC may tell at once of completions that nobody has taken, and a test takes none of idle rails.
        while self.has_rails() && self.gate.is_open() && self.poll() {}
        let is_told = self.verbs.nic.arm(&self.verbs.cq, writes, ready);
        // Without queue pairs the calls themselves make the comm go on.
        is_told && self.gate.is_open()
    }

    pub(super) fn line(&self) -> Option<c_int> {
        self.line.stream().descriptor().filter(|_| self.line.is_whole())
    }

    pub(super) fn rest(&self) -> Option<(c_int, u64)> {
        let is_calm = self.gate == Gate::Open
            && !self.has_rails()
            && self.path.is_calm()
            && self.line.is_whole();
        let rest_ns = self.stalls.rest_ns().filter(|_| is_calm)?;
        Some((self.line.stream().descriptor()?, rest_ns))
    }
}

impl<N: Nic, S: Stream> SendComm<N, S> {
    /// Lets the NIC make descriptors readable when a send may be done, or when the peer may have posted a
    /// receive; see [`Nic::arm`].
    pub fn arm(&mut self, ready: &mut dyn FnMut(c_int)) -> bool {
        self.base.arm(true, ready)
    }
}

impl<N: Nic, S: Stream> RecvComm<N, S> {
    /// Lets the NIC make descriptors readable when a receive or a flush may be done; see [`Nic::arm`].
    pub fn arm(&mut self, ready: &mut dyn FnMut(c_int)) -> bool {
        self.base.arm(false, ready)
    }
}
