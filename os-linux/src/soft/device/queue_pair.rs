//! A queue pair of the device: the engine, and what the device knows of the peer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

use invar_core::nic::{
    Access, NicError, QpCap, QpOptions, QpState, QpTransition, RecvWr, RtrAttr, SendWr, Verb, Wc,
};
use invar_core::roce::qp::{
    AccessFault, Counters, Env, Lingering, Qp, Queue, Region, Side, Transmit, Tuning,
};
use invar_core::roce::{Bth, Flow, ICRC_BYTES, Ipv4Id, Packet, Psn, UDP_PORT};

use super::DeviceCounters;
use super::completion::CompletionQueue;
use super::region::Regions;
use super::table::Table;
use super::tags::{TAG_BYTES, Tags};
use super::train::Route;

/// Most work requests on either queue.
pub(super) const WORK_REQUESTS_MAX: u32 = 2048;
/// Most bytes posted inline.
pub(super) const INLINE_BYTES_MAX: u32 = 1024;

/// The default partition, in which all of RoCE is; the top bit tells full members from limited
/// ones.
const PKEY: u16 = 0x7fff;

/// The engine in the size that fits; each send takes about 72 bytes, each receive 32.
///
/// The first is that of NCCL 2.14's FIFO depth, 64, the second that of ours, 256.
enum Engine {
    Small(Box<Qp<128, 64>>),
    Medium(Box<Qp<512, 256>>),
    Large(Box<Qp<{ WORK_REQUESTS_MAX as usize }, { WORK_REQUESTS_MAX as usize }>>),
}

/// The same call on an engine of any size.
macro_rules! engine {
    ($engine:expr, $qp:ident => $call:expr) => {
        match $engine {
            Engine::Small($qp) => $call,
            Engine::Medium($qp) => $call,
            Engine::Large($qp) => $call,
        }
    };
}

pub(super) struct QueuePair {
    engine: Engine,
    pub(super) pd: u32,
    pub(super) cq: u32,
    pub(super) inline: Inline,
    /// The peer, known from RTR on.
    pub(super) path: Option<Path>,
    /// Whether it is in the list of those that may have something to send.
    pub(super) listed: bool,
    /// When its earliest timer goes off; `u64::MAX` where it has none.
    pub(super) armed_ns: u64,
}

/// Copies of inline bytes, by slot of the send queue.
pub(super) struct Inline {
    bytes: Vec<u8>,
    slot_bytes: usize,
}

/// The way to the peer.
pub(super) struct Path {
    pub(super) route: Route,
    outgoing: Flow,
    /// Makes and checks tags, if packets carry tags in place of the ICRC.
    tags: Option<Box<Tags>>,
    /// The UDP port that the peer's packets come from; 0 for any.
    source_port: u16,
    /// The last address that packets came from.
    incoming: Option<(SocketAddr, Flow)>,
}

/// The parts of its device that an engine reaches.
pub(super) struct Surroundings<'a> {
    pub(super) regions: &'a Regions,
    pub(super) cqs: &'a mut Table<CompletionQueue>,
    pub(super) pd: u32,
    pub(super) cq: u32,
}

impl Env for Surroundings<'_> {
    #[inline]
    fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        side: Side,
    ) -> Result<Region, AccessFault> {
        self.regions.resolve((self.pd, side), key, addr, len, need)
    }

    #[inline]
    fn place(&mut self, to: Region, payload: &[u8]) {
        self.regions.place(to, payload);
    }

    #[inline]
    fn complete(&mut self, _: Queue, wc: Wc) {
        // A queue pair whose completion queue is gone has nobody to tell.
        if let Some(cq) = self.cqs.get_mut(self.cq) {
            cq.push(wc);
        }
    }
}

/// Never inlined: an unoptimized build keeps copies of an engine on the stack, and would keep those
/// of all sizes on it at once, together more than half of a thread's 2 MiB.
#[inline(never)]
fn boxed<const SQ: usize, const RQ: usize>(
    qpn: u32,
    cap: &QpCap,
) -> Result<Box<Qp<SQ, RQ>>, NicError> {
    Ok(Box::new(Qp::new(qpn, *cap)?))
}

impl QueuePair {
    pub(super) fn new(qpn: u32, pd: u32, cq: u32, cap: &QpCap) -> Result<Self, NicError> {
        if cap.max_inline_data > INLINE_BYTES_MAX {
            let cause = "max_inline_data exceeds 1024 bytes";
            return Err(NicError::new(Verb::CreateQp, libc::EINVAL, cause));
        }
        let (engine, slots) = match (cap.max_send_wr, cap.max_recv_wr) {
            (0..=128, 0..=64) => (Engine::Small(boxed(qpn, cap)?), 128),
            (0..=512, 0..=256) => (Engine::Medium(boxed(qpn, cap)?), 512),
            _ => (Engine::Large(boxed(qpn, cap)?), WORK_REQUESTS_MAX as usize),
        };
        let slot_bytes = cap.max_inline_data as usize;
        Ok(QueuePair {
            engine,
            pd,
            cq,
            inline: Inline { bytes: vec![0; slots * slot_bytes], slot_bytes },
            path: None,
            listed: false,
            armed_ns: u64::MAX,
        })
    }

    pub(super) fn set_tuning(&mut self, tuning: Tuning) {
        engine!(&mut self.engine, qp => qp.set_tuning(tuning));
    }

    pub(super) fn counters(&self) -> &Counters {
        engine!(&self.engine, qp => qp.counters())
    }

    pub(super) fn lingering(&self) -> Option<Lingering> {
        engine!(&self.engine, qp => qp.lingering())
    }

    pub(super) fn retry_time_ns(&self) -> Option<u64> {
        engine!(&self.engine, qp => qp.retry_time_ns())
    }

    #[inline]
    pub(super) fn qpn(&self) -> u32 {
        engine!(&self.engine, qp => qp.qpn())
    }

    pub(super) fn state(&self) -> QpState {
        engine!(&self.engine, qp => qp.state())
    }

    pub(super) fn modify(
        &mut self,
        transition: &QpTransition,
        env: &mut Surroundings<'_>,
    ) -> Result<(), NicError> {
        engine!(&mut self.engine, qp => qp.modify(transition, env))?;
        if let QpTransition::Reset = transition {
            self.path = None;
        }
        if let (QpTransition::Rts(attr), Some(path)) = (transition, &mut self.path) {
            path.set_first_psn(Psn::new(attr.sq_psn));
        }
        Ok(())
    }

    /// Posts a send; the answer is its slot, where an inline request wants its bytes.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        wr: &SendWr,
        env: &mut Surroundings<'_>,
    ) -> Result<u16, NicError> {
        engine!(&mut self.engine, qp => qp.post_send(wr, env))
    }

    pub(super) fn post_recv(
        &mut self,
        wr: &RecvWr,
        env: &mut Surroundings<'_>,
    ) -> Result<(), NicError> {
        engine!(&mut self.engine, qp => qp.post_recv(wr, env))
    }

    #[inline]
    pub(super) fn handle_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
        env: &mut Surroundings<'_>,
    ) {
        engine!(&mut self.engine, qp => qp.handle_packet(now_ns, packet, env));
    }

    #[inline]
    pub(super) fn poll_transmit_run(
        &mut self,
        now_ns: u64,
        packets_max: u32,
        env: &mut Surroundings<'_>,
    ) -> Option<Transmit> {
        engine!(&mut self.engine, qp => qp.poll_transmit_run(now_ns, packets_max, env))
    }

    #[inline]
    pub(super) fn may_wait(&self, since_ns: u64) -> bool {
        engine!(&self.engine, qp => qp.may_wait(since_ns))
    }

    #[inline]
    pub(super) fn stays(&mut self, since_ns: u64) -> bool {
        engine!(&mut self.engine, qp => qp.stays(since_ns))
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64, env: &mut Surroundings<'_>) {
        engine!(&mut self.engine, qp => qp.handle_timeout(now_ns, env));
    }

    #[inline]
    pub(super) fn deadline_ns(&self) -> u64 {
        engine!(&self.engine, qp => qp.deadline_ns()).unwrap_or(u64::MAX)
    }
}

impl Inline {
    /// Of a queue pair that posts nothing.
    pub(super) const NONE: Inline = Inline { bytes: Vec::new(), slot_bytes: 0 };

    /// Bytes that were posted.
    #[inline]
    pub(super) fn get(&self, slot: u16, offset: u32, len: u32) -> &[u8] {
        &self.bytes[self.range(slot, offset, len)]
    }

    /// Where they go when they are.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u16, len: u32) -> &mut [u8] {
        let range = self.range(slot, 0, len);
        &mut self.bytes[range]
    }

    fn range(&self, slot: u16, offset: u32, len: u32) -> Range<usize> {
        let start = usize::from(slot) * self.slot_bytes + offset as usize;
        start..start + len as usize
    }
}

impl Path {
    /// The way from `local` by the source port `source.1` to the peer that `attr` names.
    pub(super) fn new(
        local: SocketAddr,
        source: (usize, u16),
        attr: &RtrAttr,
    ) -> Result<Path, NicError> {
        let refuse = |cause| NicError::new(Verb::ModifyQp, libc::EINVAL, cause);
        let port = if attr.ah.udp_port == 0 { UDP_PORT } else { attr.ah.udp_port };
        let peer = match (attr.ah.dgid.ip(), local) {
            // A link-local address means something on our own link only.
            (IpAddr::V6(ip), SocketAddr::V6(local)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, local.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, port),
        };
        let is_broadcast = peer.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
        if peer.ip().is_unspecified() || peer.ip().is_multicast() || is_broadcast {
            return Err(refuse("the peer's GID is no address of a host"));
        }
        // Otherwise a peer elsewhere could aim our packets at services of this host.
        if peer.ip().is_loopback() && !local.ip().is_loopback() {
            return Err(refuse("the peer's GID is a loopback address, and this device's is not"));
        }
        let outgoing = Flow::new(SocketAddr::new(local.ip(), source.1), peer)
            .map_err(|_| refuse("the peer's GID is of the other IP version"))?;
        let route = Route {
            to: peer,
            source: source.0,
            traffic_class: attr.ah.traffic_class,
            // As the kernel's driver does where none is given.
            hop_limit: if attr.ah.hop_limit == 0 { 64 } else { attr.ah.hop_limit },
            masks_ip_id: attr.options.contains(QpOptions::ICRC_MASKS_IP_ID),
        };
        let tags = attr.packet_keys.map(|keys| Box::new(Tags::new(&keys, Psn::new(attr.rq_psn))));
        Ok(Path { route, outgoing, tags, source_port: attr.ah.udp_source_port, incoming: None })
    }

    /// Notes the sequence number of the first request that this end will send.
    pub(super) fn set_first_psn(&mut self, psn: Psn) {
        if let Some(tags) = &mut self.tags {
            tags.set_first_psn(psn);
        }
    }

    /// Bytes of what [`Path::end_packet`] writes.
    #[inline]
    pub(super) fn check_bytes(&self) -> usize {
        if self.tags.is_some() { TAG_BYTES } else { ICRC_BYTES }
    }

    /// Writes what ends a packet, tag or ICRC, to the front of `out`. `packet` is all that goes
    /// before.
    #[inline]
    pub(super) fn end_packet(&mut self, id: Ipv4Id, bth: &Bth, packet: &[u8], out: &mut [u8]) {
        match &mut self.tags {
            None => out[..ICRC_BYTES].copy_from_slice(&self.outgoing.icrc(id, packet)),
            Some(tags) => out[..TAG_BYTES].copy_from_slice(&tags.make(bth, packet)),
        }
    }

    /// The packet that came in `bytes` from `from`, if it is the peer's and undamaged; counts why
    /// not.
    #[inline]
    pub(super) fn admit<'a>(
        &mut self,
        from: SocketAddr,
        local: SocketAddr,
        bytes: &'a [u8],
        counters: &mut DeviceCounters,
    ) -> Option<Packet<'a>> {
        let is_from_peer = from.ip() == self.route.to.ip()
            && (self.source_port == 0 || from.port() == self.source_port);
        if !is_from_peer {
            counters.wrong_source += 1;
            return None;
        }
        let Ok(packet) = Packet::decode_with(bytes, self.check_bytes()) else {
            counters.malformed += 1;
            return None;
        };
        let bth = &packet.headers.bth;
        if let Some(tags) = &mut self.tags {
            if !tags.verify(bth, bytes) {
                counters.tag_bad += 1;
                return None;
            }
        } else if !self.verifies() {
            counters.icrc_unverified += 1;
        } else if !self.verify(from, local, bytes) {
            counters.icrc_bad += 1;
            return None;
        }
        if bth.pkey & PKEY != PKEY {
            counters.wrong_pkey += 1;
            return None;
        }
        Some(packet)
    }

    /// Whether the IP header that the ICRC covers can be known: IPv6 always, IPv4 from a peer
    /// that leaves out what a UDP socket does not show.
    fn verifies(&self) -> bool {
        self.route.to.is_ipv6() || self.route.masks_ip_id
    }

    /// Whether a datagram from `from` ends with its right ICRC.
    #[inline]
    fn verify(&mut self, from: SocketAddr, local: SocketAddr, bytes: &[u8]) -> bool {
        if self.incoming.as_ref().is_none_or(|(source, _)| *source != from) {
            self.incoming = Flow::new(from, local).ok().map(|flow| (from, flow));
        }
        let Some((_, flow)) = &mut self.incoming else { return false };
        flow.verify(Ipv4Id::Masked, bytes)
    }
}
