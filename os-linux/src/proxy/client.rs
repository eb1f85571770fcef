//! A rank's connection to the service of a proxy (`proxy.cc ncclProxyConnect`,
//! `ncclProxyCallBlocking`).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use invar_core::proxy::{CallError, CallId, Calls, ConnectionId, Expected, Init, Kind, Outcome};
use rustix::event::PollFd;

use super::HeapBanks;
use super::bound::{Bound, WaitError};
use crate::abort::Abort;
use crate::unix::{FdStream, wait};

type HeapCalls = Calls<OwnedFd, HeapBanks<Option<Expected<OwnedFd>>>>;

/// Asks a proxy to set up connections. Dropping the client ends the session and its connections.
#[derive(Debug)]
pub struct ProxyClient {
    address: String,
    stream: FdStream,
    /// The calls are large, so a box keeps them from being moved with the client.
    calls: Box<HeapCalls>,
    abort: Abort,
    timeout: Duration,
}

/// The reason why a request failed, with the proxy's address.
#[derive(Debug, thiserror::Error)]
#[error("proxy {address}: {error}")]
pub struct ClientError {
    /// Address of the proxy.
    pub address: String,
    /// The reason why the request failed.
    #[source]
    pub error: ClientErrorKind,
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientErrorKind {
    /// The proxy refused the request.
    #[error("{kind:?}: refused: {text}")]
    Refused {
        /// Kind of the request that was refused.
        kind: Kind,
        /// The proxy's reason.
        text: String,
    },
    /// The request is invalid, or the answer does not match the request.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The proxy is unreachable, or the connection to it was lost.
    #[error("{0}; has that process ended?")]
    Io(#[from] io::Error),
    /// The answer took too long.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl ProxyClient {
    /// Connects to a proxy of the same user on this host. Each call fails if it takes longer than
    /// `timeout`.
    pub fn connect(address: &str, abort: Abort, timeout: Duration) -> Result<Self, ClientError> {
        let failed =
            |error: io::Error| ClientError { address: address.to_owned(), error: error.into() };
        let stream = FdStream::connect(address, timeout).map_err(failed)?;
        Ok(ProxyClient {
            address: address.to_owned(),
            stream,
            calls: Box::new(Calls::new(HeapBanks::default())),
            abort,
            timeout,
        })
    }

    /// Opens a connection and returns its id. The proxy also sends the pool of operations if the
    /// connection needs it.
    pub fn open(&mut self, init: Init) -> Result<(ConnectionId, Option<OwnedFd>), ClientError> {
        let mut id = [0; 4];
        let body = init.to_bytes();
        let fd = self.call_blocking(Kind::Init, ConnectionId::default(), &body, &mut id)?;
        Ok((ConnectionId(u32::from_le_bytes(id)), fd))
    }

    /// Starts a request; [`ProxyClient::poll`] checks its progress.
    pub fn call(
        &mut self,
        kind: Kind,
        id: ConnectionId,
        body: &[u8],
        response_len: usize,
    ) -> Result<CallId, ClientError> {
        self.named(|client| {
            let (call, header) = client.calls.call(kind, id, body, response_len)?;
            client.stream.send([&header, body].concat(), None)?;
            Ok(call)
        })
    }

    /// Whether a request is done. If so, copies its response, which has the announced length, and
    /// returns the file descriptor that came with it.
    pub fn poll(
        &mut self,
        call: CallId,
        response: &mut [u8],
    ) -> Result<Option<Option<OwnedFd>>, ClientError> {
        self.named(|client| client.poll_once(call, response))
    }

    /// Makes a request, waits for its response, and returns the file descriptor that came with it.
    pub fn call_blocking(
        &mut self,
        kind: Kind,
        id: ConnectionId,
        body: &[u8],
        response: &mut [u8],
    ) -> Result<Option<OwnedFd>, ClientError> {
        let call = self.call(kind, id, body, response.len())?;
        self.wait(call, response)
    }

    /// Waits for the response to a pending request; returns the same as [`ProxyClient::poll`].
    pub fn wait(
        &mut self,
        call: CallId,
        response: &mut [u8],
    ) -> Result<Option<OwnedFd>, ClientError> {
        self.named(|client| {
            let abort = client.abort.clone();
            let bound = Bound::new(&abort, client.timeout);
            loop {
                if let Some(fd) = client.poll_once(call, response)? {
                    return Ok(fd);
                }
                let nap = bound.nap()?;
                let interest = client.stream.interest(true);
                wait(&mut [PollFd::new(&client.stream, interest)], nap)?;
            }
        })
    }

    /// Asks the proxy to end once all ranks are done, and ends the session.
    pub fn stop(mut self) -> Result<(), ClientError> {
        let message = HeapCalls::tell(Kind::Stop).to_vec();
        self.named(|client| {
            let bound = Bound::new(&client.abort, client.timeout);
            client.stream.send(message, None)?;
            while !client.stream.is_flushed() {
                let interest = client.stream.interest(false);
                wait(&mut [PollFd::new(&client.stream, interest)], bound.nap()?)?;
                client.stream.flush()?;
            }
            Ok(())
        })
    }

    /// Sends and receives as much as possible without waiting, and checks a request.
    fn poll_once(
        &mut self,
        call: CallId,
        response: &mut [u8],
    ) -> Result<Option<Option<OwnedFd>>, ClientErrorKind> {
        self.stream.flush()?;
        while let Some((n, fd)) = self.stream.recv(self.calls.space())? {
            self.calls.filled(n, fd)?;
        }
        match self.calls.poll(call, response)? {
            None => Ok(None),
            Some(Outcome::Done { fd }) => Ok(Some(fd)),
            Some(Outcome::Refused { kind, text }) => {
                Err(ClientErrorKind::Refused { kind, text: text.as_str().to_owned() })
            }
        }
    }

    fn named<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<R, ClientErrorKind>,
    ) -> Result<R, ClientError> {
        run(self).map_err(|error| ClientError { address: self.address.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use super::*;
    use crate::unix::listen;

    #[test]
    fn a_proxy_that_is_busy_is_told_to_stop_all_the_same() {
        let (listener, name) = listen("test").unwrap();
        let timeout = Duration::from_secs(60);
        let mut client = ProxyClient::connect(&name, Abort::default(), timeout).unwrap();
        let (mut proxy, _) = listener.accept().unwrap();
        // This is more than the kernel accepts before the proxy reads anything.
        while client.stream.is_flushed() {
            client.call(Kind::Setup, ConnectionId::default(), &[0; 1000], 0).unwrap();
        }
        let stopping = thread::spawn(move || client.stop().unwrap());
        // In this time a client that does not wait would end before it has sent everything.
        thread::sleep(Duration::from_millis(200));
        let mut heard = Vec::new();
        proxy.read_to_end(&mut heard).unwrap();
        stopping.join().unwrap();
        assert!(heard.ends_with(&HeapCalls::tell(Kind::Stop)));
    }
}
