//! Sending of packets in trains.
//!
//! The kernel reads the payload of a request directly from registered memory, through a gather list,
//! after the device. The device computes the ICRC over a copy of each packet, and the next packet
//! overwrites that copy in the nearest cache. If an application changes memory while a work request
//! sends it, which the verbs forbid, the peer drops the packet and the device repeats it. The device
//! copies three kinds of payload behind their headers. A READ response concerns memory that may change at
//! any time. The memory of a request without acknowledge may change once the request completes. A short
//! payload is not worth an entry of the list.

use heapless::Vec;

use invar_core::roce::qp::{LONG_MTU_BYTES_MAX, Payload, Region, Transmit};
use invar_core::roce::{HEADERS_BYTES_MAX, Ipv4Id, Opcode, RoceTransport};

use super::path::Path;
use super::posted::{DeviceEnv, Posted};
use super::queue_pair::QueuePair;
use super::region::Regions;
use super::tags::TAG_BYTES;
use super::train::{Datagram, Route, Train, TransmitSink};
use super::{Device, DeviceCounters};
use crate::udp::{SEGMENTS_MAX, TRAIN_BYTES_MAX};

/// Number of packets that one queue pair sends before the next one has its turn.
const TURN_PACKETS: u32 = SEGMENTS_MAX as u32;

/// Maximum number of packets per call. Windows bound requests, but a READ may ask for gigabytes, and the
/// device must receive meanwhile.
const CALL_PACKETS_MAX: u32 = 4096;

/// Maximum number of queue pairs whose acknowledges wait: checking more of them again would cost more
/// than the wait saves.
const WAITING_MAX: usize = 8;

/// Minimum length of a payload that the kernel reads from registered memory.
const GATHER_BYTES_MIN: usize = 1024;
const PAYLOAD_BYTES_MAX: usize = LONG_MTU_BYTES_MAX as usize;

/// The train that is being built.
pub(super) struct Staging {
    /// The bytes of the packets in sequence.
    bytes: Box<[u8]>,
    laid: Vec<Laid, SEGMENTS_MAX>,
    /// Number of packets at the front that are sent.
    sent: usize,
    /// Bytes of all packets on the wire.
    wire_bytes: usize,
    route: Option<Route>,
    segment_bytes: usize,
    /// The packets that did not fit into the train when the sink was full.
    pub(super) held: Option<(u32, Transmit)>,
    /// The packet whose ICRC is being computed, if its payload is to be gathered.
    packet: Box<Contiguous>,
}

/// Headers up to [`HEADERS_BYTES_MAX`], then the payload, which copies fastest to the start of a cache
/// line.
#[repr(align(64))]
struct Contiguous([u8; HEADERS_BYTES_MAX + PAYLOAD_BYTES_MAX]);

/// A packet of the train that is being built.
#[derive(Clone, Copy)]
struct Laid {
    /// End of the packet's bytes in the buffer.
    end: usize,
    wire_bytes: usize,
    /// The queue pair of the packet.
    qpn: u32,
    /// For a gathered payload: its position in the buffer, its region and its length.
    payload: Option<(usize, Region, usize)>,
}

/// Whether the memory of a packet must stay unchanged until an acknowledge comes.
fn keeps_memory(opcode: Opcode) -> bool {
    opcode.transport() == RoceTransport::Rc && !opcode.is_response()
}

/// The sink has no room.
struct Full;

/// The acknowledges that [`Device::transmit_urgent`] holds back: those of packets that arrived after
/// these times, on the clock of `now_ns`.
#[derive(Clone, Copy, Debug)]
pub struct AckDelay {
    /// Acknowledges of packets after this time that [may wait](invar_core::roce::qp::Qp::may_wait) leave
    /// only together with other packets of their queue pair.
    pub waits_since_ns: u64,
    /// Acknowledges of packets after this time that are [deferred](invar_core::roce::qp::Qp::defer_ack)
    /// do not leave with other packets either.
    pub deferred_since_ns: u64,
}

impl AckDelay {
    const NONE: AckDelay = AckDelay { waits_since_ns: u64::MAX, deferred_since_ns: u64::MAX };
}

impl Staging {
    pub(super) fn new() -> Self {
        Staging {
            bytes: vec![0; TRAIN_BYTES_MAX + HEADERS_BYTES_MAX].into_boxed_slice(),
            laid: Vec::new(),
            sent: 0,
            wire_bytes: 0,
            route: None,
            segment_bytes: 0,
            held: None,
            packet: Box::new(Contiguous([0; HEADERS_BYTES_MAX + PAYLOAD_BYTES_MAX])),
        }
    }

    /// Whether a packet of `bytes` can be the next one of the train.
    fn takes(&self, route: &Route, bytes: usize) -> bool {
        self.route.as_ref() == Some(route)
            && !self.laid.is_full()
            // A shorter packet ends the train.
            && self.wire_bytes == self.laid.len() * self.segment_bytes
            && bytes <= self.segment_bytes
            && self.wire_bytes + bytes <= TRAIN_BYTES_MAX
    }

    /// Passes the unsent packets to the sink and returns the number that it took, or `None` if a
    /// payload's region has ended. The function builds the list in place, because the list is too long
    /// to be moved for each train.
    fn send(&self, route: Route, regions: &Regions, sink: &mut impl TransmitSink) -> Option<usize> {
        let mut datagrams = Vec::<Datagram<'_>, SEGMENTS_MAX>::new();
        let mut start = 0;
        for laid in &self.laid {
            let bytes = &self.bytes[start..laid.end];
            let at = std::mem::replace(&mut start, laid.end);
            let datagram = match laid.payload {
                None => Datagram::whole(bytes),
                Some((payload_at, region, len)) => {
                    let (front, back) = bytes.split_at(payload_at - at);
                    Datagram::around(front, regions.range(region, len)?, back)?
                }
            };
            let _ = datagrams.push(datagram);
        }
        let (segment_bytes, datagrams) = (self.segment_bytes, &datagrams[self.sent..]);
        Some(sink.send(Train { route, segment_bytes, datagrams }))
    }

    /// Sends the train.
    fn flush(
        &mut self,
        regions: &Regions,
        sink: &mut impl TransmitSink,
        counters: &mut DeviceCounters,
    ) -> Result<(), Full> {
        let Some(route) = self.route else { return Ok(()) };
        // Memory was deregistered while the train waited: the train counts as lost, and the retry will
        // find the memory gone.
        let Some(taken) = self.send(route, regions, sink) else {
            self.clear();
            return Ok(());
        };
        let left = &self.laid[self.sent..];
        let taken = &left[..taken.min(left.len())];
        counters.trains_sent += u64::from(!taken.is_empty());
        counters.packets_sent += taken.len() as u64;
        counters.bytes_sent += taken.iter().map(|laid| laid.wire_bytes as u64).sum::<u64>();
        if taken.len() < left.len() {
            self.sent += taken.len();
            counters.sink_full += 1;
            return Err(Full);
        }
        self.clear();
        Ok(())
    }

    /// Drops the train if one of its packets reads the memory of a queue pair that `has_ended`: the program
    /// may use that memory again. The whole train counts as lost.
    pub(super) fn drop_train_of(&mut self, has_ended: impl Fn(u32) -> bool) {
        if self.laid.iter().any(|laid| laid.payload.is_some() && has_ended(laid.qpn)) {
            self.clear();
        }
    }

    /// Whether packets wait because the sink had no room.
    fn is_blocked(&self) -> bool {
        self.route.is_some() || self.held.is_some()
    }

    fn clear(&mut self) {
        self.laid.clear();
        (self.sent, self.wire_bytes, self.route) = (0, 0, None);
    }

    /// Adds packets to the train; keeps those that the sink has no room for.
    #[inline]
    fn add_run(
        &mut self,
        mut run: Transmit,
        qp: &mut QueuePair,
        regions: &Regions,
        sink: &mut impl TransmitSink,
        counters: &mut DeviceCounters,
    ) -> Result<(), Full> {
        let qpn = qp.qpn();
        let QueuePair { path, posted, datagrams, .. } = qp;
        let path = match datagrams {
            None => path.as_mut(),
            Some(paths) => {
                let receiver = posted.receivers.get(run.slot);
                receiver.and_then(|receiver| paths.path_to(&receiver.ah).ok())
            }
        };
        // An engine before RTR sends nothing, and datagrams were posted with an address that has a path.
        let Some(path) = path else { return Ok(()) };
        loop {
            if let Err(full) = self.add(&run, path, posted, regions, sink, counters) {
                self.held = Some((qpn, run));
                return Err(full);
            }
            if !run.advance() {
                return Ok(());
            }
        }
    }

    /// Adds a packet to the train; if it does not fit, sends the train first.
    fn add(
        &mut self,
        transmit: &Transmit,
        path: &mut Path,
        posted: &Posted,
        regions: &Regions,
        sink: &mut impl TransmitSink,
        counters: &mut DeviceCounters,
    ) -> Result<(), Full> {
        let mut headers = [0; HEADERS_BYTES_MAX];
        let headers_len = transmit.headers.encode(&mut headers);
        let bth = &transmit.headers.bth;
        let payload_len = transmit.payload.len() as usize;
        let pad_len = usize::from(bth.pad_count);
        let packet_len = headers_len + payload_len + pad_len;
        let check_bytes = path.check_bytes();
        let wire_bytes = packet_len + check_bytes;

        if !self.takes(&path.route, wire_bytes) {
            self.flush(regions, sink, counters)?;
            self.route = Some(path.route);
            self.segment_bytes = wire_bytes;
        }
        let id = if path.route.masks_ip_id {
            Ipv4Id::Masked
        } else {
            Ipv4Id::Known(sink.ip_id(path.route.source, self.laid.len()))
        };
        let start = self.laid.last().map_or(0, |laid| laid.end);
        let gathered = match transmit.payload {
            Payload::Memory { region, .. }
                if payload_len >= GATHER_BYTES_MIN && keeps_memory(bth.opcode) =>
            {
                Some((start + headers_len, region, payload_len))
            }
            _ => None,
        };
        // Copying the maximum length of headers is faster than copying their actual length.
        let laid = &mut self.bytes[start..];
        laid[..HEADERS_BYTES_MAX].copy_from_slice(&headers);
        let packet = if gathered.is_some() {
            let packet = &mut self.packet.0[HEADERS_BYTES_MAX - headers_len..];
            packet[..HEADERS_BYTES_MAX].copy_from_slice(&headers);
            packet
        } else {
            laid
        };
        let packet = &mut packet[..packet_len];
        let (payload, pad) = packet[headers_len..].split_at_mut(payload_len);
        if !pad.is_empty() {
            pad.fill(0);
        }
        if !posted.fetch(transmit.payload, regions, payload) {
            // The region was deregistered while the packet waited: the packet counts as lost too.
            if self.laid.is_empty() {
                self.route = None;
            }
            return Ok(());
        }
        let mut check = [0; TAG_BYTES];
        path.end_packet(id, bth, packet, &mut check);
        let mut end = start + packet_len;
        if gathered.is_some() {
            // The bytes after the headers are zero, so the padding is already in place.
            end -= payload_len;
        }
        self.bytes[end..end + check_bytes].copy_from_slice(&check[..check_bytes]);
        end += check_bytes;
        self.wire_bytes += wire_bytes;
        let _ = self.laid.push(Laid { end, wire_bytes, qpn: posted.qpn, payload: gathered });
        Ok(())
    }
}

impl Device {
    /// Sends pending packets until the sink has no room, a few packets of each queue pair at a time. If
    /// the sink is full, call again, at the latest at [`Device::next_deadline_ns`]. If very many packets
    /// are pending, the call sends a part of them, and the device stays [ready](Device::is_ready).
    pub fn transmit(&mut self, now_ns: u64, sink: &mut impl TransmitSink) {
        let _ = self.try_transmit(now_ns, sink, AckDelay::NONE);
    }

    /// Sends pending packets as [`Device::transmit`] does, except acknowledges that `delay` holds
    /// back.
    pub fn transmit_urgent(&mut self, now_ns: u64, delay: AckDelay, sink: &mut impl TransmitSink) {
        let _ = self.try_transmit(now_ns, sink, delay);
    }

    /// Whether packets wait because the sink had no room.
    pub fn is_blocked(&self) -> bool {
        self.staging.is_blocked()
    }

    fn try_transmit(
        &mut self,
        now_ns: u64,
        sink: &mut impl TransmitSink,
        delay: AckDelay,
    ) -> Result<(), Full> {
        let Device {
            regions,
            windows,
            cqs,
            events,
            srqs,
            notices,
            qps,
            lingerers,
            ready,
            posted,
            timers,
            staging,
            counters,
            ..
        } = self;
        if staging.is_blocked() {
            staging.drop_train_of(|qpn| qps.get(qpn).is_none_or(QueuePair::has_ended));
            staging.flush(regions, sink, counters)?;
            if let Some((qpn, run)) = staging.held.take()
                && let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.may_send(&run))
            {
                staging.add_run(run, qp, regions, sink, counters)?;
            }
        }
        while let Some((answer, path)) = lingerers.poll_transmit() {
            // If the sink has no room, the answer counts as lost.
            staging.add(&answer, path, &Posted::NONE, regions, sink, counters)?;
        }
        // Number of queue pairs at the end of the list that wait.
        let mut waiting = 0;
        let mut left = CALL_PACKETS_MAX;
        while left > 0 && waiting < ready.len() {
            let posted = posted.take();
            let Some(qpn) = posted.or_else(|| ready.pop_front()) else { break };
            let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.listed) else { continue };
            if posted.is_none() && waiting < WAITING_MAX && qp.may_wait(delay.waits_since_ns) {
                waiting += 1;
                ready.push_back(qpn);
                continue;
            }
            waiting = 0;
            qp.listed = false;
            let mut env = DeviceEnv { regions, windows, cqs, events, srqs, notices };
            let most = TURN_PACKETS.min(left);
            let (mut turn, mut added) = (most, Ok(()));
            let mut deferred = false;
            while turn > 0
                && added.is_ok()
                && !deferred
                && let Some(run) = qp.poll_transmit_run(now_ns, turn, &mut env)
            {
                turn -= 1 + run.following;
                added = staging.add_run(run, qp, regions, sink, counters);
                deferred = ready.len() < WAITING_MAX && qp.defer_ack(delay.deferred_since_ns);
            }
            left -= most - turn;
            if turn == 0 || added.is_err() || deferred {
                qp.listed = posted.is_some();
                qp.follow_up(qpn, &mut env, ready);
            } else {
                qp.look_after(qpn, &mut env);
            }
            timers.arm(qpn, qp.deadline_ns(), &mut qp.armed_ns);
            added?;
        }
        staging.flush(regions, sink, counters)
    }
}
