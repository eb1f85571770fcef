//! The link over a bare TCP stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use invar_linux::tcp::Congestion;
use rustix::net::sockopt::set_tcp_congestion;

use crate::{Link, Meeting, Shape, until};

/// A listener for streams. With `SYSTEMS` they use the system's congestion control, otherwise the one
/// that Invar uses within a host.
pub(crate) struct Listening<const SYSTEMS: bool>(TcpListener);

struct Stream {
    stream: TcpStream,
    buffers: Vec<Vec<u8>>,
}

impl<const SYSTEMS: bool> Meeting for Listening<SYSTEMS> {
    fn listen() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let here = listener.local_addr().expect("an address").to_string();
        (Listening(listener), here)
    }

    fn join(self, peer: &str, is_first: bool, shape: Shape) -> Box<dyn Link> {
        let stream = if is_first {
            self.0.accept().expect("a peer").0
        } else {
            TcpStream::connect(peer).expect("a peer")
        };
        if !SYSTEMS {
            set_tcp_congestion(&stream, Congestion::WITHIN_A_HOST).expect("an option");
        }
        stream.set_nodelay(true).expect("an option");
        stream.set_nonblocking(true).expect("an option");
        // Fill the buffers, so that their pages exist before the clock starts.
        Box::new(Stream { stream, buffers: vec![vec![0x5a; shape.size]; shape.window] })
    }
}

impl Stream {
    fn send_one(&mut self, i: usize) {
        let mut rest = self.buffers[i % self.buffers.len()].as_slice();
        while !rest.is_empty() {
            let sent = until(|| unless_not_now(self.stream.write(rest)));
            rest = &rest[sent..];
        }
    }

    fn recv_one(&mut self, i: usize) {
        let window = self.buffers.len();
        let Stream { stream, buffers } = self;
        let mut rest = buffers[i % window].as_mut_slice();
        while !rest.is_empty() {
            let received = until(|| unless_not_now(stream.read(rest)));
            assert!(received > 0, "the other process is gone");
            rest = &mut rest[received..];
        }
    }
}

impl Link for Stream {
    fn send(&mut self, count: usize) {
        (0..count).for_each(|i| self.send_one(i));
    }

    fn recv(&mut self, count: usize) {
        (0..count).for_each(|i| self.recv_one(i));
    }

    fn exchange(&mut self, echo: bool) {
        if echo {
            self.recv_one(0);
            self.send_one(0);
        } else {
            self.send_one(0);
            self.recv_one(0);
        }
    }
}

fn unless_not_now(result: std::io::Result<usize>) -> Option<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        result => Some(result.expect("a stream")),
    }
}
