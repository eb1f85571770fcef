//! A connection between two ports of the null NIC. A test holds both ends and every byte in between.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use invar_core::auth::Session;
use invar_core::comm::{RecvComm, SendComm};
use invar_core::conn::stage::Side;
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream, StreamError};
use invar_core::error::Error;
use invar_core::nic::Nic;
use invar_testkit::duo::Buffer;
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;

/// A stream that connects when the test says so, and moves no more bytes than the test allows.
pub(crate) struct Gated {
    pipe: Pipe,
    gate: Gate,
}

/// The permissions of a [`Gated`] stream. Clones are the same gate.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) up: Rc<Cell<bool>>,
    /// The bytes that the stream may still send or receive.
    pub(crate) credit: Rc<Cell<usize>>,
}

impl Gated {
    /// A stream with all permissions.
    pub(crate) fn new(pipe: Pipe) -> (Gated, Gate) {
        let up = Rc::new(Cell::new(true));
        let gate = Gate { up, credit: Rc::new(Cell::new(usize::MAX)) };
        (Gated { pipe, gate: gate.clone() }, gate)
    }

    /// Moves bytes within the credit.
    fn spend<R>(&mut self, call: impl FnOnce(&mut Pipe, usize) -> R, moved: fn(&R) -> usize) -> R {
        let credit = &self.gate.credit;
        let result = call(&mut self.pipe, credit.get());
        credit.set(credit.get() - moved(&result));
        result
    }
}

impl Stream for Gated {
    fn peer_addr(&self) -> Option<SocketAddr> {
        Some("192.0.2.7:4000".parse().expect("an address"))
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Ok(self.gate.up.get())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let call = |pipe: &mut Pipe, credit| pipe.send(&bytes[..bytes.len().min(credit)]);
        self.spend(call, |result| result.unwrap_or(0))
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        let call = |pipe: &mut Pipe, credit| {
            let len = buf.len().min(credit);
            if len == 0 { Ok(0) } else { pipe.recv(&mut buf[..len]) }
        };
        self.spend(call, |result| result.unwrap_or(0))
    }
}

/// Both ends while they connect.
pub(crate) struct Handshake {
    pub(crate) nics: [NullNic; 2],
    pub(crate) connector: Connector<NullNic, Gated>,
    pub(crate) acceptor: Acceptor<NullNic, Gated>,
    /// The gates of the connector's stream and of the acceptor's.
    pub(crate) gates: [Gate; 2],
    pub(crate) send: Option<SendComm<NullNic, Gated>>,
    pub(crate) recv: Option<RecvComm<NullNic, Gated>>,
}

impl Handshake {
    pub(crate) fn new(settings: [CommSettings; 2]) -> Self {
        let nics: [NullNic; 2] = NullNic::ports();
        let (here, there) = Pipe::pair();
        let (here, here_gate) = Gated::new(here);
        let (there, there_gate) = Gated::new(there);
        let pd = |nic: &NullNic| nic.alloc_pd().expect("a domain");
        let [a, b] = &nics;
        Handshake {
            connector: Connector::new(a.clone(), pd(a), here, None, settings[0], 0),
            acceptor: Acceptor::new(b.clone(), pd(b), there, Session::UNKNOWN_PEER, settings[1], 0),
            gates: [here_gate, there_gate],
            send: None,
            recv: None,
            nics,
        }
    }

    /// Lets one end continue, if it has no comm yet.
    pub(crate) fn poll(&mut self, side: Side) -> Result<(), Error> {
        match side {
            Side::Connector if self.send.is_none() => self.send = self.connector.poll(0)?,
            Side::Acceptor if self.recv.is_none() => self.recv = self.acceptor.poll(0)?,
            _ => {}
        }
        Ok(())
    }

    /// Polls both ends in turn until there are two comms. These then carry a message.
    pub(crate) fn finish(mut self) {
        self.gates.iter().for_each(|gate| gate.credit.set(usize::MAX));
        for side in [Side::Connector, Side::Acceptor].into_iter().cycle().take(8) {
            self.poll(side).expect("no error");
        }
        let mut send = self.send.expect("connected");
        let mut recv = self.recv.expect("accepted");
        // Buffers need the protection domains of the comms, which are 1 and 2.
        let from = Buffer::new(&self.nics[0], &1, 4096);
        let to = Buffer::new(&self.nics[1], &2, 4096);
        from.write(0, b"over the wire");
        let message = from.message(0, 13);
        // On the wire of NCCL 2.14 the sender finishes its setup first.
        assert_eq!(send.isend(&message, 9), Ok(None));
        let received = recv.irecv(&[to.room(5, 100, 9)]).expect("irecv").expect("a request");
        let sent = send.isend(&message, 9).expect("isend").expect("a request");
        assert_eq!(send.test(&sent), Ok(Some(13)));
        assert_eq!(recv.test(&received).expect("test").expect("done"), [13]);
        assert_eq!(to.read(5, 13), b"over the wire");
    }
}

/// Settings of a connection that ends with the first error.
pub(crate) fn fragile() -> CommSettings {
    CommSettings { recovery_timeout_ns: 0, ..CommSettings::default() }
}
