//! A peer that knows the secret, over a plain socket. The test decides what it sends after the proof.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use invar_core::auth::{Answering, Calling, NONCE_BYTES, Secret, Service, Session};
use invar_core::conn::{Handle, Stream, StreamError};

/// The nonce of every proof. Nonces of tests need not be random.
const NONCE: [u8; NONCE_BYTES] = [0x5a; NONCE_BYTES];

/// Proves to a listener that this peer knows the secret of the listener's handle.
pub fn call(stream: &mut TcpStream, handle: &Handle, service: Service) -> Session {
    prove(stream, handle.secret(None).expect("a handle of ours"), service)
}

/// Proves to a listener that this peer knows the secret.
pub fn prove(stream: &mut TcpStream, secret: Secret, service: Service) -> Session {
    let mut calling = Calling::new(secret, service, NONCE);
    finish(stream, |stream| calling.poll(stream).expect("the listener knows the secret"))
}

/// Accepts a caller's proof, as a listener with this handle does.
pub fn answer(stream: &mut TcpStream, handle: &Handle, service: Service) -> Session {
    answer_with(stream, handle.secret(None).expect("a handle of ours"), service)
}

/// Accepts a caller's proof, as a listener with this secret does.
pub fn answer_with(stream: &mut TcpStream, secret: Secret, service: Service) -> Session {
    let mut answering = Answering::new(NONCE);
    finish(stream, |stream| {
        answering.poll(&secret, service, stream).expect("the caller knows the secret")
    })
}

fn finish(
    stream: &mut TcpStream,
    mut poll: impl FnMut(&mut Blocking<'_>) -> Option<Session>,
) -> Session {
    let mut blocking = Blocking(stream);
    loop {
        if let Some(session) = poll(&mut blocking) {
            return session;
        }
    }
}

/// A socket whose calls block.
struct Blocking<'a>(&'a mut TcpStream);

impl Stream for Blocking<'_> {
    fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr().ok()
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Ok(true)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        self.0.write(bytes).map_err(|error| StreamError::Os(error.raw_os_error().unwrap_or(5)))
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        match self.0.read(buf) {
            Ok(0) => Err(StreamError::Closed),
            Ok(n) => Ok(n),
            Err(error) => Err(StreamError::Os(error.raw_os_error().unwrap_or(5))),
        }
    }
}
