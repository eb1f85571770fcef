//! The remains of a connection after one of its ends has failed.

use invar_core::comm::{RecvComm, SendComm};
use invar_core::nic::Nic;

use super::cells::Cells;
use super::{Receiving, Sending, Traffic};
use crate::pipe::Pipe;

/// The end that has not failed, if there is one. Its peer has closed, as an application closes a failed
/// comm. So all its requests must end.
pub struct Remains<N: Nic> {
    end: Option<End<N>>,
    // Requests in flight may still use these buffers.
    _cells: [Cells<N>; 2],
}

enum End<N: Nic> {
    Send(Box<SendComm<N, Pipe>>, Vec<Sending>),
    Recv(Box<RecvComm<N, Pipe>>, Vec<Receiving>),
}

impl<N: Nic> Traffic<N> {
    /// Closes the end that has failed.
    ///
    /// # Panics
    /// Panics if no end has failed.
    pub fn abandon(self) -> Remains<N> {
        let mut duo = self.duo;
        let end = match (duo.send.check_peer(0), duo.recv.check_peer(0)) {
            (Err(_), Err(_)) => None,
            (Err(_), Ok(())) => Some(End::Recv(Box::new(duo.recv), self.recvs)),
            (Ok(()), Err(_)) => Some(End::Send(Box::new(duo.send), self.sends)),
            (Ok(()), Ok(())) => panic!("a comm gave an error that no end remembers"),
        };
        Remains { end, _cells: [self.source, self.room] }
    }
}

impl<N: Nic> Remains<N> {
    /// Tests all requests in flight. Returns whether everything is over.
    ///
    /// # Panics
    /// Panics if the end does not notice that its peer has closed.
    pub fn finish(&mut self) -> bool {
        match &mut self.end {
            Some(End::Send(comm, sends)) if !sends.is_empty() => {
                assert!(comm.check_peer(0).is_err(), "the peer has closed");
                sends.retain(|sending| comm.test(&sending.request) == Ok(None));
                sends.is_empty()
            }
            Some(End::Recv(comm, recvs)) if !recvs.is_empty() => {
                assert!(comm.check_peer(0).is_err(), "the peer has closed");
                recvs.retain(|recv| comm.test(&recv.request) == Ok(None));
                recvs.is_empty()
            }
            _ => true,
        }
    }
}
