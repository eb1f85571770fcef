//! The remains of a connection after one of its ends has failed.

use invar_core::comm::{RecvComm, Request, SendComm};
use invar_core::nic::Nic;

use super::Traffic;
use super::cells::Cells;
use crate::pipe::Pipe;

/// The end that has not failed, if there is one. Its peer has closed, as an application closes a failed
/// comm. So all its requests must end.
pub struct Remains<N: Nic> {
    end: Option<Open<N>>,
    // Requests in flight may still use these buffers.
    _cells: [Cells<N>; 2],
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that sends.
    Sender,
    /// The end that receives.
    Receiver,
}

enum Open<N: Nic> {
    Send(Box<SendComm<N, Pipe>>, Vec<Request>),
    Recv(Box<RecvComm<N, Pipe>>, Vec<Request>),
}

impl<N: Nic> Traffic<N> {
    /// Closes the end that has failed.
    ///
    /// # Panics
    /// Panics if no end has failed.
    pub fn abandon(self) -> Remains<N> {
        let mut duo = self.duo;
        let sends = self.sends.into_iter().map(|sending| sending.request);
        let recvs = self.recvs.into_iter().map(|recv| recv.request);
        let flushes = self.flushes.into_iter().map(|flush| flush.request);
        let end = match (duo.send.check_peer(0), duo.recv.check_peer(0)) {
            (Err(_), Err(_)) => None,
            (Err(_), Ok(())) => {
                Some(Open::Recv(Box::new(duo.recv), recvs.chain(flushes).collect()))
            }
            (Ok(()), Err(_)) => Some(Open::Send(Box::new(duo.send), sends.collect())),
            (Ok(()), Ok(())) => panic!("a comm gave an error that no end remembers"),
        };
        Remains { end, _cells: [self.source, self.room] }
    }
}

impl<N: Nic> Remains<N> {
    /// The end that has not failed, if there is one.
    pub fn open_end(&self) -> Option<End> {
        self.end.as_ref().map(|end| match end {
            Open::Send(..) => End::Sender,
            Open::Recv(..) => End::Receiver,
        })
    }

    /// Tests all requests in flight once the end has noticed that its peer has closed. Returns whether
    /// everything is over.
    pub fn finish(&mut self, now_ns: u64) -> bool {
        match &mut self.end {
            Some(Open::Send(comm, sends)) if !sends.is_empty() => {
                let is_noticed = comm.check_peer(now_ns).is_err();
                sends.retain(|request| !is_noticed || comm.test(request) == Ok(None));
                sends.is_empty()
            }
            Some(Open::Recv(comm, recvs)) if !recvs.is_empty() => {
                let is_noticed = comm.check_peer(now_ns).is_err();
                recvs.retain(|request| !is_noticed || comm.test(request) == Ok(None));
                recvs.is_empty()
            }
            _ => true,
        }
    }
}
