//! A queue pair: the core's engine of a reliable connection, over two Unix sockets.
//!
//! The engine cuts messages into packets, and checks and acknowledges packets. A socket carries a packet
//! as a datagram. The kernel neither loses nor changes it, so packets have no checksum.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;

use invar_core::nic::{
    Access, Gid, NicError, QpCap, QpTransition, RecvWr, SendFlags, SendWr, Verb, Wc,
};
use invar_core::roce::qp::{AccessFault, Env, Payload, Qp, QpSide, Queue, Region, Transmit};
use invar_core::roce::{HEADERS_BYTES_MAX, Packet, pad_count};
use invar_linux::clock::now_ns;

use crate::domain::Domain;

/// The length of the longest packet: headers, payload and padding.
pub(crate) const PACKET_BYTES_MAX: usize = HEADERS_BYTES_MAX + 4096 + 3;

/// A completion queue, which grows as needed.
pub type CompletionQueue = Arc<spin::Mutex<VecDeque<Wc>>>;

/// A queue pair.
pub struct QueuePair {
    engine: Box<Qp<1024, 512>>,
    gid: Gid,
    host: Host,
    /// The bytes of inline requests, by slot of the send queue.
    inline: HashMap<u16, Vec<u8>>,
    /// The sockets for requests and for acknowledges. `None` if the peer was gone when we connected.
    sockets: Option<[UnixDatagram; 2]>,
    /// A packet that found its socket full, and the number of that socket.
    held: Option<(usize, Vec<u8>)>,
}

/// The part of the NIC that the engine needs.
struct Host {
    pd: Arc<Domain>,
    cq: CompletionQueue,
}

impl Env for Host {
    fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        _: QpSide,
    ) -> Result<Region, AccessFault> {
        self.pd.find(key, addr, len, need).ok_or(AccessFault)
    }

    fn place(&mut self, to: Region, payload: &[u8]) {
        self.pd.write(to, payload);
    }

    fn complete(&mut self, _: Queue, wc: Wc, _: bool) {
        self.cq.lock().push_back(wc);
    }
}

impl QueuePair {
    pub(crate) fn new(
        (gid, qpn): (Gid, u32),
        pd: Arc<Domain>,
        cq: CompletionQueue,
        cap: QpCap,
    ) -> Result<Self, NicError> {
        let (engine, host) = (Box::new(Qp::new(qpn, cap)?), Host { pd, cq });
        let sockets = Some(open(gid, qpn).map_err(|error| failed(Verb::CreateQp, &error))?);
        Ok(QueuePair { engine, gid, host, inline: HashMap::new(), sockets, held: None })
    }

    pub(crate) fn number(&self) -> u32 {
        self.engine.qpn()
    }

    pub(crate) fn modify(&mut self, to: &QpTransition) -> Result<(), NicError> {
        self.engine.modify(to, &mut self.host)?;
        match to {
            QpTransition::Reset => {
                // The new sockets have the names of the old ones.
                (self.sockets, self.held) = (None, None);
                let sockets = open(self.gid, self.number());
                self.sockets = Some(sockets.map_err(|error| failed(Verb::ModifyQp, &error))?);
            }
            QpTransition::Rtr(attr) => {
                self.sockets = self.sockets.take().filter(|sockets| {
                    sockets.iter().enumerate().all(|(which, socket)| {
                        let peer = address(attr.ah.dgid, attr.dest_qp_num, which);
                        let tied = peer.and_then(|peer| socket.connect_addr(&peer)).is_ok();
                        // From now on the kernel keeps others off. Packets from before may be theirs.
                        while socket.recv(&mut []).is_ok() {}
                        tied
                    })
                });
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn post_send(&mut self, wr: &SendWr) -> Result<(), NicError> {
        let mut inline = None;
        if wr.flags.contains(SendFlags::INLINE) {
            let missing = NicError::new(Verb::PostSend, 22, "inline bytes are not registered");
            inline = Some(self.host.pd.inline(wr.sge.addr, wr.sge.length).ok_or(missing)?);
        }
        let slot = self.engine.post_send(wr, &mut self.host)?;
        inline.map(|bytes| self.inline.insert(slot, bytes));
        Ok(())
    }

    pub(crate) fn post_recv(&mut self, wr: &RecvWr) -> Result<(), NicError> {
        self.engine.post_recv(wr, &mut self.host)
    }

    /// Does everything that can be done now. `buffer` has room for a packet.
    pub(crate) fn drive(&mut self, buffer: &mut [u8]) {
        let now_ns = now_ns();
        for socket in self.sockets.iter().flatten() {
            while let Ok(len) = socket.recv(buffer) {
                if let Ok(packet) = Packet::decode_with(&buffer[..len], 0) {
                    self.engine.handle_packet(now_ns, &packet, &mut self.host);
                }
            }
        }
        if self.engine.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.engine.handle_timeout(now_ns, &mut self.host);
        }
        while self.send_held()
            && let Some(transmit) = self.engine.poll_transmit(now_ns, &mut self.host)
        {
            let which = usize::from(transmit.headers.bth.opcode.is_response());
            self.held = Some((which, self.packet(&transmit)));
        }
    }

    /// Sends the held packet. Returns false if its socket is still full.
    fn send_held(&mut self) -> bool {
        if let (Some((which, packet)), Some(sockets)) = (&self.held, &self.sockets)
            && let Err(error) = sockets[*which].send(packet)
            && error.kind() == io::ErrorKind::WouldBlock
        {
            return false;
        }
        // The engine gives up a peer that is gone, because it does not answer.
        self.held = None;
        true
    }

    fn packet(&self, transmit: &Transmit) -> Vec<u8> {
        let mut headers = [0; HEADERS_BYTES_MAX];
        let start = transmit.headers.encode(&mut headers);
        let end = start + transmit.payload.len() as usize;
        let mut packet = headers[..start].to_vec();
        packet.resize(end + usize::from(pad_count(transmit.payload.len())), 0);
        match transmit.payload {
            Payload::None => {}
            Payload::List { .. } => unreachable!("no request has several buffers"),
            Payload::Memory { region, .. } => self.host.pd.read(region, &mut packet[start..end]),
            Payload::Inline { slot, offset, len } => {
                let bytes = &self.inline[&slot][offset as usize..][..len as usize];
                packet[start..end].copy_from_slice(bytes);
            }
        }
        packet
    }
}

fn open(gid: Gid, qpn: u32) -> io::Result<[UnixDatagram; 2]> {
    let open = |which| {
        let socket = UnixDatagram::bind_addr(&address(gid, qpn, which)?)?;
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    };
    Ok([open(0)?, open(1)?])
}

/// The address of a socket, to which GID and queue pair number lead the peer.
fn address(gid: Gid, qpn: u32, which: usize) -> io::Result<SocketAddr> {
    let what = ["requests", "acknowledges"][which];
    SocketAddr::from_abstract_name(format!("invar/{gid}/{qpn:06x}/{what}"))
}

pub(crate) fn failed(verb: Verb, error: &io::Error) -> NicError {
    NicError::new(verb, error.raw_os_error().unwrap_or(0), "a system call failed")
}
