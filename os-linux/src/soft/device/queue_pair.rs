//! A queue pair of the device: the engine, and the device's knowledge of the peer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

use invar_core::nic::{
    Access, NicError, QpCap, QpOptions, QpState, QpTransition, RecvWr, RtrAttr, SendWr, Verb, Wc,
};
use invar_core::roce::qp::{
    AccessFault, Counters, Env, Lingering, Qp, Queue, Region, RequesterPhase, ResponderPhase, Side,
    Transmit, Tuning,
};
use invar_core::roce::{Bth, Flow, ICRC_BYTES, Ipv4Id, Packet, Psn, UDP_PORT};

use super::DeviceCounters;
use super::completion::CompletionQueue;
use super::region::Regions;
use super::table::Table;
use super::tags::{TAG_BYTES, Tags};
use super::train::Route;

/// Maximum number of work requests on either queue.
pub(super) const WORK_REQUESTS_MAX: u32 = 2048;
/// Maximum bytes of inline data.
pub(super) const INLINE_BYTES_MAX: u32 = 1024;

/// The default partition, which all of RoCE uses; the top bit distinguishes full from limited members.
const PKEY: u16 = 0x7fff;

/// The engine in the smallest size that fits. Each send takes about 72 bytes, each receive 32.
///
/// The small size fits NCCL 2.14's FIFO depth of 64, the medium size fits ours of 256.
enum Engine {
    Small(Box<Qp<128, 64>>),
    Medium(Box<Qp<512, 256>>),
    Large(Box<Qp<{ WORK_REQUESTS_MAX as usize }, { WORK_REQUESTS_MAX as usize }>>),
}

/// Makes the same call on an engine of any size.
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
    /// The path to the peer, known since the transition to RTR.
    pub(super) path: Option<Path>,
    /// Whether the device's list of queue pairs with pending packets contains this one.
    pub(super) listed: bool,
    /// Time of the earliest armed timer; `u64::MAX` if none is armed.
    pub(super) armed_ns: u64,
}

/// Copies of inline data, by slot of the send queue.
pub(super) struct Inline {
    bytes: Vec<u8>,
    slot_bytes: usize,
}

/// The path to the peer.
pub(super) struct Path {
    pub(super) route: Route,
    outgoing: Flow,
    /// Makes and checks tags, if packets carry tags instead of the ICRC.
    tags: Option<Box<Tags>>,
    /// UDP source port of the peer's packets; 0 means any port.
    source_port: u16,
    /// The last address from which packets came, with the state that verifies them.
    incoming: Option<(SocketAddr, Flow)>,
}

/// The parts of the device that an engine can access.
pub(super) struct DeviceEnv<'a> {
    pub(super) regions: &'a Regions,
    pub(super) cqs: &'a mut Table<CompletionQueue>,
    pub(super) pd: u32,
    pub(super) cq: u32,
}

impl Env for DeviceEnv<'_> {
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
        // If the completion queue is gone, nobody can receive the completion.
        if let Some(cq) = self.cqs.get_mut(self.cq) {
            cq.push(wc);
        }
    }
}

/// Makes an engine on the heap. The function is never inlined: an unoptimized build keeps copies of an
/// engine on the stack. Inlining would put the copies of all sizes there at once, more than half of a
/// thread's 2 MiB.
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

    pub(super) fn phases(&self) -> (RequesterPhase, ResponderPhase) {
        engine!(&self.engine, qp => qp.phases())
    }

    pub(super) fn state(&self) -> QpState {
        engine!(&self.engine, qp => qp.state())
    }

    pub(super) fn modify(
        &mut self,
        transition: &QpTransition,
        env: &mut DeviceEnv<'_>,
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

    /// Posts a send and returns its slot, into which the caller copies inline data.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        wr: &SendWr,
        env: &mut DeviceEnv<'_>,
    ) -> Result<u16, NicError> {
        engine!(&mut self.engine, qp => qp.post_send(wr, env))
    }

    pub(super) fn post_recv(
        &mut self,
        wr: &RecvWr,
        env: &mut DeviceEnv<'_>,
    ) -> Result<(), NicError> {
        engine!(&mut self.engine, qp => qp.post_recv(wr, env))
    }

    #[inline]
    pub(super) fn handle_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
        env: &mut DeviceEnv<'_>,
    ) {
        engine!(&mut self.engine, qp => qp.handle_packet(now_ns, packet, env));
    }

    #[inline]
    pub(super) fn poll_transmit_run(
        &mut self,
        now_ns: u64,
        packets_max: u32,
        env: &mut DeviceEnv<'_>,
    ) -> Option<Transmit> {
        engine!(&mut self.engine, qp => qp.poll_transmit_run(now_ns, packets_max, env))
    }

    #[inline]
    pub(super) fn may_wait(&self, since_ns: u64) -> bool {
        engine!(&self.engine, qp => qp.may_wait(since_ns))
    }

    #[inline]
    pub(super) fn defer_ack(&mut self, since_ns: u64) -> bool {
        engine!(&mut self.engine, qp => qp.defer_ack(since_ns))
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64, env: &mut DeviceEnv<'_>) {
        engine!(&mut self.engine, qp => qp.handle_timeout(now_ns, env));
    }

    #[inline]
    pub(super) fn deadline_ns(&self) -> u64 {
        engine!(&self.engine, qp => qp.deadline_ns()).unwrap_or(u64::MAX)
    }
}

impl Inline {
    /// The inline data of a queue pair that posts nothing.
    pub(super) const NONE: Inline = Inline { bytes: Vec::new(), slot_bytes: 0 };

    /// Returns posted inline data.
    #[inline]
    pub(super) fn get(&self, slot: u16, offset: u32, len: u32) -> &[u8] {
        &self.bytes[self.range(slot, offset, len)]
    }

    /// Returns the room for inline data that is being posted.
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
    /// Makes the path from `local`, with the source port `source.1`, to the peer that `attr` names.
    pub(super) fn new(
        local: SocketAddr,
        source: (usize, u16),
        attr: &RtrAttr,
    ) -> Result<Path, NicError> {
        let refuse = |cause| NicError::new(Verb::ModifyQp, libc::EINVAL, cause);
        let port = if attr.ah.udp_port == 0 { UDP_PORT } else { attr.ah.udp_port };
        let peer = match (attr.ah.dgid.ip(), local) {
            // A link-local address is valid on our own link only.
            (IpAddr::V6(ip), SocketAddr::V6(local)) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, local.scope_id()).into()
            }
            (ip, _) => SocketAddr::new(ip, port),
        };
        let is_broadcast = peer.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
        if peer.ip().is_unspecified() || peer.ip().is_multicast() || is_broadcast {
            return Err(refuse("the peer's GID is no address of a host"));
        }
        // Without this check a remote peer could aim our packets at services of this host.
        if peer.ip().is_loopback() && !local.ip().is_loopback() {
            return Err(refuse("the peer's GID is a loopback address, and this device's is not"));
        }
        let outgoing = Flow::new(SocketAddr::new(local.ip(), source.1), peer)
            .map_err(|_| refuse("the peer's GID is of the other IP version"))?;
        let route = Route {
            to: peer,
            source: source.0,
            traffic_class: attr.ah.traffic_class,
            // If no hop limit is given, use 64 as the kernel's driver does.
            hop_limit: if attr.ah.hop_limit == 0 { 64 } else { attr.ah.hop_limit },
            masks_ip_id: attr.options.contains(QpOptions::ICRC_MASKS_IP_ID),
        };
        let tags = attr.packet_keys.map(|keys| Box::new(Tags::new(&keys, Psn::new(attr.rq_psn))));
        Ok(Path { route, outgoing, tags, source_port: attr.ah.udp_source_port, incoming: None })
    }

    /// Sets the sequence number of the first request that this end sends.
    pub(super) fn set_first_psn(&mut self, psn: Psn) {
        if let Some(tags) = &mut self.tags {
            tags.set_first_psn(psn);
        }
    }

    /// Length of the trailer that [`Path::end_packet`] writes.
    #[inline]
    pub(super) fn check_bytes(&self) -> usize {
        if self.tags.is_some() { TAG_BYTES } else { ICRC_BYTES }
    }

    /// Writes the trailer of a packet, tag or ICRC, to the front of `out`. `packet` is everything before
    /// the trailer.
    #[inline]
    pub(super) fn end_packet(&mut self, id: Ipv4Id, bth: &Bth, packet: &[u8], out: &mut [u8]) {
        match &mut self.tags {
            None => out[..ICRC_BYTES].copy_from_slice(&self.outgoing.icrc(id, packet)),
            Some(tags) => out[..TAG_BYTES].copy_from_slice(&tags.make(bth, packet)),
        }
    }

    /// Decodes the packet in `bytes` if it comes from the peer and is undamaged; otherwise counts the
    /// reason and returns `None`.
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

    /// Whether the receiver can know the IP header that the ICRC covers. This always holds for IPv6. For
    /// IPv4 it holds if the peer excludes the fields that a UDP socket does not show.
    fn verifies(&self) -> bool {
        self.route.to.is_ipv6() || self.route.masks_ip_id
    }

    /// Whether a datagram from `from` ends with the right ICRC.
    #[inline]
    fn verify(&mut self, from: SocketAddr, local: SocketAddr, bytes: &[u8]) -> bool {
        if self.incoming.as_ref().is_none_or(|(source, _)| *source != from) {
            self.incoming = Flow::new(from, local).ok().map(|flow| (from, flow));
        }
        let Some((_, flow)) = &mut self.incoming else { return false };
        flow.verify(Ipv4Id::Masked, bytes)
    }
}
