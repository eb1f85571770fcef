//! The remains of a connection after one of its ends has failed or died.

use invar_core::comm::{RecvComm, Request, SendComm};
use invar_core::error::Error;
use invar_core::nic::Nic;

use super::Traffic;
use super::cells::Cells;
use crate::duo::Duo;
use crate::pipe::Pipe;

/// The end that has not failed, if there is one. Its peer has closed, as an application closes a failed
/// comm, or has died. So this end must notice, and all its requests must end.
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
        let mut traffic = self;
        let Duo { send, recv, .. } = &mut traffic.duo;
        match (send.check_peer(0), recv.check_peer(0)) {
            (Err(_), Err(_)) => Remains { end: None, _cells: [traffic.source, traffic.room] },
            (Err(_), Ok(())) => traffic.kill(End::Sender),
            (Ok(()), Err(_)) => traffic.kill(End::Receiver),
            (Ok(()), Ok(())) => panic!("a comm gave an error that no end remembers"),
        }
    }

    /// Ends the process of an end: its queue pairs and its stream go without a word to the peer.
    pub fn kill(self, end: End) -> Remains<N> {
        let Duo { send, recv, .. } = self.duo;
        let sends = self.sends.into_iter().map(|sending| sending.request);
        let recvs = self.recvs.into_iter().map(|recv| recv.request);
        let flushes = self.flushes.into_iter().map(|flush| flush.request);
        let left = match end {
            End::Sender => Open::Recv(Box::new(recv), recvs.chain(flushes).collect()),
            End::Receiver => Open::Send(Box::new(send), sends.collect()),
        };
        Remains { end: Some(left), _cells: [self.source, self.room] }
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

    /// Tests all requests in flight once the end has noticed that its peer has gone. Returns whether
    /// everything is over.
    pub fn finish(&mut self, now_ns: u64) -> bool {
        match &mut self.end {
            Some(Open::Send(comm, sends)) => {
                let is_noticed = comm.check_peer(now_ns).is_err();
                sends.retain(|request| !is_noticed || !is_over(comm.test(request)));
                is_noticed && sends.is_empty()
            }
            Some(Open::Recv(comm, recvs)) => {
                let is_noticed = comm.check_peer(now_ns).is_err();
                recvs.retain(|request| !is_noticed || !is_over(comm.test(request)));
                is_noticed && recvs.is_empty()
            }
            None => true,
        }
    }
}

/// Whether a request that was tested is over.
///
/// # Panics
/// Panics if the comm does not know the request, which was not tested as done before.
fn is_over<T>(tested: Result<Option<T>, Error>) -> bool {
    match tested {
        Err(error @ Error::UnknownRequest(_)) => panic!("a request is lost: {error}"),
        tested => !matches!(tested, Ok(None)),
    }
}
