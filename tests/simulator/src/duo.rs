//! A sender and a receiver, connected in one thread.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use invar_core::auth::{Answering, Calling, NONCE_BYTES, Secret, Service, Session};
use invar_core::comm::{RecvBuf, RecvComm, Request, SendBuf, SendComm};
use invar_core::conn::{Acceptor, CommSettings, Connector};
use invar_core::error::Error;
use invar_core::nic::{Access, Memory, MemoryKeys, Nic};

use crate::pipe::{Cable, Pipe};

/// The number of calls of connect and accept after which a connection is given up.
const POLLS_MAX: usize = 1_000_000;

/// Both ends of a connection, and the protection domains for their buffers.
pub struct Duo<N: Nic> {
    /// The sending comm.
    pub send: SendComm<N, Pipe>,
    /// The receiving comm.
    pub recv: RecvComm<N, Pipe>,
    /// The network of the stream between the ends.
    pub cable: Cable,
    /// The sender's protection domain.
    pub send_pd: N::Pd,
    /// The receiver's protection domain.
    pub recv_pd: N::Pd,
}

impl<N: Nic> Duo<N> {
    /// Posts a receive.
    ///
    /// # Panics
    /// Panics if the receiver refuses it or has no request left.
    #[track_caller]
    pub fn irecv(&mut self, bufs: &[RecvBuf]) -> Request {
        self.recv.irecv(bufs).expect("irecv").expect("a request")
    }

    /// Starts a send whose receive is posted.
    ///
    /// # Panics
    /// Panics if the sender refuses it, sees no receive for it or has no request left.
    #[track_caller]
    pub fn isend(&mut self, buf: &SendBuf, tag: u32) -> Request {
        self.send.isend(buf, tag).expect("isend").expect("a request")
    }
}

/// Registered memory of one end.
pub struct Buffer<N: Nic> {
    /// The registration.
    pub mr: N::Mr,
    /// The bytes.
    pub memory: N::Memory,
}

impl<N: Nic> Buffer<N> {
    /// Registers `len` zeroed bytes that the NIC and its peers may read and write.
    pub fn new(nic: &N, pd: &N::Pd, len: usize) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = nic.alloc(len).expect("memory");
        let mr = nic.reg_mr(pd, &memory, access).expect("registration");
        Buffer { mr, memory }
    }

    /// The address of the byte at `offset`.
    pub fn addr(&self, offset: usize) -> u64 {
        self.memory.addr() + offset as u64
    }

    /// Writes `bytes` at `offset`. Nobody else may write there meanwhile.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (range, word, part) in self.parts(offset, bytes.len()) {
            let bytes = &bytes[range];
            let value = bytes.try_into().unwrap_or_else(|_| {
                let mut value = word.load(Ordering::Relaxed).to_ne_bytes();
                value[part].copy_from_slice(bytes);
                value
            });
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    /// Reads the `len` bytes at `offset`.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let words = &self.memory.words()[offset / 8..(offset + len).div_ceil(8)];
        let mut bytes = Vec::with_capacity(8 * words.len());
        for word in words {
            bytes.extend_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        bytes.drain(..offset % 8);
        bytes.truncate(len);
        bytes
    }

    /// Cuts a range at the borders of words. Each part has its range in the bytes, the word, and its
    /// range in the word.
    fn parts(
        &self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (Range<usize>, &AtomicU64, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let (at, first) = (offset + done, done);
            let n = (8 - at % 8).min(len - done);
            done += n;
            (n > 0).then(|| (first..done, &self.memory.words()[at / 8], at % 8..at % 8 + n))
        })
    }

    /// The `len` bytes at `offset`, to receive into.
    pub fn room(&self, offset: usize, len: u32, tag: u32) -> RecvBuf {
        RecvBuf { addr: self.addr(offset), len, tag, rkey: self.rkey() }
    }

    /// The `len` bytes at `offset`, to send.
    pub fn message(&self, offset: usize, len: u32) -> SendBuf {
        SendBuf { addr: self.addr(offset), len, lkey: self.lkey() }
    }

    /// The local key.
    pub fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// The remote key.
    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }
}

/// Connects two ports with a pipe as the out-of-band stream. `idle` runs when both ends wait. If the settings
/// have a key, the ends prove to each other that they know it.
///
/// # Errors
/// Returns the first error of either end.
///
/// # Panics
/// Panics when neither end makes progress, which is a bug.
pub fn connect<N: Nic + Clone>(
    nics: [&N; 2],
    settings: [CommSettings; 2],
    idle: impl FnMut(),
) -> Result<Duo<N>, Error> {
    connect_in(nics, [nics[0].alloc_pd()?, nics[1].alloc_pd()?], settings, idle)
}

/// Connects two ports as [`connect`] does, in existing protection domains.
///
/// # Errors
/// Returns the first error of either end.
///
/// # Panics
/// Panics when neither end makes progress, which is a bug.
pub fn connect_in<N: Nic + Clone>(
    nics: [&N; 2],
    [send_pd, recv_pd]: [N::Pd; 2],
    settings: [CommSettings; 2],
    mut idle: impl FnMut(),
) -> Result<Duo<N>, Error> {
    let (here, mut there) = Pipe::pair();
    let cable = here.cable();
    let [called, answered] = settings.map(|settings| settings.key);
    let calling = called.map(|key| Calling::new(key, Service::Rdma, [1; NONCE_BYTES]));
    let mut connector =
        Connector::new(nics[0].clone(), send_pd.clone(), here, calling, settings[0], 0);
    let session = match answered {
        Some(key) => answer(&mut connector, &mut there, &key)?,
        None => Session::UNKNOWN_PEER,
    };
    let mut acceptor =
        Acceptor::new(nics[1].clone(), recv_pd.clone(), there, session, settings[1], 0);
    // Comms are large, and without optimization each move takes room on the stack.
    let (mut send, mut recv) = (None, None);
    for _ in 0..POLLS_MAX {
        if send.is_none() {
            send = connector.poll(0)?.map(Box::new);
        }
        if recv.is_none() {
            recv = acceptor.poll(0)?.map(Box::new);
        }
        if send.is_some() && recv.is_some() {
            break;
        }
        idle();
    }
    match (send, recv) {
        (Some(send), Some(recv)) => Ok(Duo { send: *send, recv: *recv, cable, send_pd, recv_pd }),
        _ => panic!("no connection after {POLLS_MAX} polls of both ends"),
    }
}

/// Answers a connector that proves that it knows the key. The connector gets no further meanwhile.
fn answer<N: Nic>(
    connector: &mut Connector<N, Pipe>,
    stream: &mut Pipe,
    key: &Secret,
) -> Result<Session, Error> {
    let mut answering = Answering::new([2; NONCE_BYTES]);
    for _ in 0..POLLS_MAX {
        assert!(connector.poll(0)?.is_none(), "a comm before the peer has proved itself");
        let session = answering.poll(key, Service::Rdma, stream).map_err(Error::Auth)?;
        if let Some(session) = session {
            return Ok(session);
        }
    }
    panic!("no proof after {POLLS_MAX} polls of both ends");
}
