//! The sockets that send packets.

use std::net::SocketAddr;
use std::time::Instant;
use std::{io, iter};

use invar_core::nic::SourcePorts;

use super::capture::Capture;
use super::device::{Datagram, Route, Train, TransmitSink};
use super::impair::Impairment;
use crate::memory::Gather;
use crate::udp::{SEGMENTS_MAX, SendError, TxSocket};

/// Maximum number of pieces of a train: the payloads and the bytes around them.
const PIECES_MAX: usize = 2 * SEGMENTS_MAX + 1;

/// A pool of sockets, one for each source port of the device.
pub(super) struct Sockets {
    /// The sockets of the first address, then one of each other address.
    pool: Box<[Lane]>,
    /// Number of sockets of the first address.
    first: usize,
    impairment: Option<Impairment>,
    pub(super) capture: Option<Capture>,
    errors: u64,
    last_error: Option<(SendError, Instant)>,
}

/// After this many consecutive trains to one address, more trains to it are likely.
const HABIT_TRAINS: u32 = 32;

/// A socket and the IP header fields that it last set.
struct Lane {
    socket: TxSocket,
    traffic_class: u8,
    hop_limit: u8,
    /// Destination of the last trains; `trains` is the number of consecutive trains to it.
    last: Option<SocketAddr>,
    trains: u32,
}

impl Sockets {
    /// Binds `count` sockets at the IP address of `address`, and one at each of `more`, on ports that the
    /// kernel picks.
    pub(super) fn bind(
        address: SocketAddr,
        count: usize,
        more: impl Iterator<Item = SocketAddr>,
        impairment: Option<Impairment>,
    ) -> io::Result<Sockets> {
        let lane = |mut address: SocketAddr| {
            address.set_port(0);
            let socket = TxSocket::bind(address)?;
            let (traffic_class, hop_limit) = (0, 64);
            socket.set_traffic_class(traffic_class)?;
            socket.set_hop_limit(hop_limit)?;
            Ok(Lane { socket, traffic_class, hop_limit, last: None, trains: 0 })
        };
        let first = count.clamp(1, SourcePorts::MAX);
        let addresses = iter::repeat_n(address, first).chain(more);
        let pool = addresses.map(lane).collect::<io::Result<_>>()?;
        Ok(Sockets { pool, first, impairment, capture: None, errors: 0, last_error: None })
    }

    pub(super) fn ports(&self) -> io::Result<SourcePorts> {
        let mut ports = SourcePorts::default();
        for (port, lane) in ports.0.iter_mut().zip(&self.pool[..self.first]) {
            *port = lane.socket.local_addr()?.port();
        }
        Ok(ports)
    }

    /// Returns index and port of the sockets of the other addresses.
    pub(super) fn more(&self) -> io::Result<Vec<(usize, u16)>> {
        let others = self.pool.iter().enumerate().skip(self.first);
        others.map(|(index, lane)| Ok((index, lane.socket.local_addr()?.port()))).collect()
    }

    /// Returns the number of trains that the kernel refused, and the reason and time of the last
    /// refusal.
    pub(super) fn errors(&self) -> (u64, Option<&(SendError, Instant)>) {
        (self.errors, self.last_error.as_ref())
    }
}

impl TransmitSink for Sockets {
    #[inline]
    fn ip_id(&self, source: usize, index: usize) -> u16 {
        self.pool[source].socket.ip_id(index)
    }

    #[inline]
    fn send(&mut self, train: Train<'_>) -> usize {
        let Sockets { pool, impairment, capture, errors, last_error, .. } = self;
        let mut send = |train: Train<'_>| match pool[train.route.source].send(&train) {
            Ok(taken) => {
                if let Some(capture) = capture {
                    let datagrams = &train.datagrams[..taken];
                    pool[train.route.source].show(&Train { datagrams, ..train }, capture);
                }
                taken
            }
            // The protocol treats the packets as lost, and its retries recover them.
            Err(error) => {
                *errors += 1;
                *last_error = Some((error, Instant::now()));
                train.datagrams.len()
            }
        };
        match impairment {
            None => send(train),
            Some(impairment) => impairment.pass(train, send),
        }
    }
}

impl Lane {
    #[cold]
    fn show(&self, train: &Train<'_>, capture: &mut Capture) {
        if let Ok(src) = self.socket.local_addr() {
            capture.sent(train, src, |index| self.socket.ip_id(index));
        }
    }

    fn send(&mut self, train: &Train<'_>) -> Result<usize, SendError> {
        let Train { route, segment_bytes, .. } = *train;
        let Route { to, traffic_class, hop_limit, .. } = route;
        let refused = |source| SendError { to, segment_bytes, source };
        // This system call happens only when queue pairs of different traffic classes alternate.
        if self.traffic_class != traffic_class {
            self.socket.set_traffic_class(traffic_class).map_err(refused)?;
            self.traffic_class = traffic_class;
        }
        if self.hop_limit != hop_limit {
            self.socket.set_hop_limit(hop_limit).map_err(refused)?;
            self.hop_limit = hop_limit;
        }
        self.note_peer(&route).map_err(refused)?;
        let mut pieces = heapless::Vec::<Gather<'_>, PIECES_MAX>::new();
        for piece in train.datagrams.iter().flat_map(Datagram::pieces) {
            let joined = pieces.last_mut().is_some_and(|last| last.extend(&piece));
            if !joined && !piece.is_empty() {
                let pushed = pieces.push(piece);
                debug_assert!(pushed.is_ok(), "room for all that lie apart");
            }
        }
        self.socket.send_segments(to, &pieces, segment_bytes)
    }

    fn note_peer(&mut self, route: &Route) -> io::Result<()> {
        if !route.masks_ip_id && route.to.is_ipv4() {
            self.last = None;
            return self.socket.expect_any();
        }
        if self.last != Some(route.to) {
            (self.last, self.trains) = (Some(route.to), 0);
        }
        self.trains = self.trains.saturating_add(1);
        if self.trains == HABIT_TRAINS { self.socket.expect_peer(route.to) } else { Ok(()) }
    }
}
