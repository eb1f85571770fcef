//! Packets going out, in trains.
//!
//! The payload of each packet is copied behind its headers into one buffer, and there the ICRC is
//! computed while the bytes are in the cache. Sending straight from registered memory would save
//! that copy, but the kernel reads a gather list after us: whatever the application changes in
//! between would travel under the wrong checksum, be dropped, and cost a retransmission.

use std::net::SocketAddr;

use invar_core::roce::qp::{Payload, Transmit};
use invar_core::roce::{HEADERS_BYTES_MAX, ICRC_BYTES, Ipv4Id};

use super::queue_pair::{Path, QueuePair, Surroundings};
use super::region::Regions;
use super::{Device, DeviceCounters};
use crate::udp::{DATAGRAM_BYTES_MAX, SEGMENTS_MAX};

/// Packets of one queue pair before the next one has its turn.
const TURN_PACKETS: usize = SEGMENTS_MAX;

/// Consecutive datagrams to one address, all equally long but for the last, which may be shorter:
/// what the kernel sends by one call.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// Where they go.
    pub to: SocketAddr,
    /// Which of [`DeviceConfig::source_ports`](super::DeviceConfig::source_ports) they leave from.
    pub source: usize,
    /// IP type of service, or traffic class.
    pub traffic_class: u8,
    /// IP time to live, or hop limit.
    pub hop_limit: u8,
    /// Bytes of each datagram.
    pub segment_bytes: usize,
    /// The datagrams one behind the other, at most [`DATAGRAM_BYTES_MAX`] bytes and
    /// [`SEGMENTS_MAX`] datagrams.
    pub bytes: &'a [u8],
}

impl<'a> Train<'a> {
    /// The datagrams by themselves.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.bytes.chunks(self.segment_bytes)
    }

    /// The first `count` datagrams.
    #[must_use]
    pub fn first(self, count: usize) -> Train<'a> {
        Train { bytes: &self.bytes[..self.end_of(count)], ..self }
    }

    /// What is left behind the first `count` datagrams.
    #[must_use]
    pub fn after(self, count: usize) -> Train<'a> {
        Train { bytes: &self.bytes[self.end_of(count)..], ..self }
    }

    fn end_of(&self, count: usize) -> usize {
        (count * self.segment_bytes).min(self.bytes.len())
    }
}

/// Where the datagrams of a [`Device`] go.
pub trait TransmitSink {
    /// The IPv4 identification that datagram `index` of a train from source port number `source`
    /// is going to have: the ICRC may cover it.
    fn ip_id(&self, source: usize, index: usize) -> u16;
    /// Sends a train and says how many of its datagrams are taken, from the front; the others
    /// will come again. One that cannot be sent at all is taken, and lost.
    fn send(&mut self, train: Train<'_>) -> usize;
}

/// What all datagrams of a train have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Route {
    to: SocketAddr,
    source: usize,
    traffic_class: u8,
    hop_limit: u8,
}

/// The train that is being made up.
pub(super) struct Staging {
    bytes: Box<[u8]>,
    len: usize,
    /// Bytes at the front that are sent.
    sent: usize,
    route: Option<Route>,
    count: usize,
    segment_bytes: usize,
    /// The packet that did not fit into a train that the sink had no room for.
    held: Option<(u32, Transmit)>,
}

/// The sink has no room.
struct Full;

impl Staging {
    pub(super) fn new() -> Self {
        Staging {
            bytes: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice(),
            len: 0,
            sent: 0,
            route: None,
            count: 0,
            segment_bytes: 0,
            held: None,
        }
    }

    /// Whether a packet of `bytes` may be the next one of the train.
    fn takes(&self, route: &Route, bytes: usize) -> bool {
        self.route.as_ref() == Some(route)
            && self.count < SEGMENTS_MAX
            // A shorter one ends the train.
            && self.len == self.count * self.segment_bytes
            && bytes <= self.segment_bytes
            && self.len + bytes <= self.bytes.len()
    }

    /// Sends what is there.
    fn flush(
        &mut self,
        sink: &mut impl TransmitSink,
        counters: &mut DeviceCounters,
    ) -> Result<(), Full> {
        let Some(Route { to, source, traffic_class, hop_limit }) = self.route else {
            return Ok(());
        };
        let train = Train {
            to,
            source,
            traffic_class,
            hop_limit,
            segment_bytes: self.segment_bytes,
            bytes: &self.bytes[self.sent..self.len],
        };
        let left = train.datagrams().len();
        let taken = sink.send(train).min(left);
        counters.trains_sent += u64::from(taken > 0);
        counters.packets_sent += taken as u64;
        if taken < left {
            let bytes = taken * self.segment_bytes;
            self.sent += bytes;
            counters.bytes_sent += bytes as u64;
            counters.sink_full += 1;
            return Err(Full);
        }
        counters.bytes_sent += (self.len - self.sent) as u64;
        (self.len, self.sent, self.count, self.route) = (0, 0, 0, None);
        Ok(())
    }

    /// Adds a packet, sending what is there if it does not fit behind that.
    fn add(
        &mut self,
        transmit: &Transmit,
        qp: &QueuePair,
        path: &Path,
        regions: &Regions,
        sink: &mut impl TransmitSink,
        counters: &mut DeviceCounters,
    ) -> Result<(), Full> {
        let mut headers = [0; HEADERS_BYTES_MAX];
        let headers_len = transmit.headers.encode(&mut headers);
        let headers = &headers[..headers_len];
        let payload_len = transmit.payload.len() as usize;
        let body_len = payload_len + usize::from(transmit.headers.bth.pad_count);
        let bytes = headers_len + body_len + ICRC_BYTES;

        let Path { peer: to, source, traffic_class, hop_limit, .. } = *path;
        let route = Route { to, source, traffic_class, hop_limit };
        if !self.takes(&route, bytes) {
            self.flush(sink, counters)?;
            self.route = Some(route);
            self.segment_bytes = bytes;
        }
        let id = if path.masks_ip_id {
            Ipv4Id::Masked
        } else {
            Ipv4Id::Known(sink.ip_id(source, self.count))
        };
        let packet = &mut self.bytes[self.len..self.len + bytes];
        let (front, icrc) = packet.split_at_mut(bytes - ICRC_BYTES);
        let (front, body) = front.split_at_mut(headers_len);
        front.copy_from_slice(headers);
        let (payload, pad) = body.split_at_mut(payload_len);
        let there = match transmit.payload {
            Payload::None => true,
            Payload::Inline { slot, offset, len } => {
                payload.copy_from_slice(qp.inline(slot, offset, len));
                true
            }
            Payload::Memory { region, .. } => regions.fetch(region, payload),
        };
        if !there {
            // Deregistered while the packet was held: it counts as lost, and sending it again
            // will find the memory gone.
            if self.count == 0 {
                self.route = None;
            }
            return Ok(());
        }
        pad.fill(0);
        let mut crc = path.outgoing.start(id, headers, body_len);
        crc.update(body);
        icrc.copy_from_slice(&crc.finish());
        self.len += bytes;
        self.count += 1;
        Ok(())
    }
}

impl Device {
    /// Sends what there is to send, each queue pair some packets at a time, until the sink has no
    /// room: then call again, at the latest at [`Device::next_deadline_ns`].
    pub fn transmit(&mut self, now_ns: u64, sink: &mut impl TransmitSink) {
        let _ = self.try_transmit(now_ns, sink);
    }

    /// Whether the sink had no room for what is to be sent.
    pub fn is_blocked(&self) -> bool {
        self.staging.route.is_some()
    }

    fn try_transmit(&mut self, now_ns: u64, sink: &mut impl TransmitSink) -> Result<(), Full> {
        let Device { regions, cqs, qps, ready, timers, staging, counters, .. } = self;
        if staging.route.is_some() {
            staging.flush(sink, counters)?;
            if let Some((qpn, transmit)) = staging.held.take()
                && let Some(qp) = qps.get(qpn)
                && let Some(path) = &qp.path
            {
                staging.add(&transmit, qp, path, regions, sink, counters)?;
            }
        }
        while let Some(qpn) = ready.pop_front() {
            let Some(qp) = qps.get_mut(qpn) else { continue };
            qp.listed = false;
            let (pd, cq) = (qp.pd, qp.cq);
            let mut env = Surroundings { regions, cqs, pd, cq };
            let mut turn = TURN_PACKETS;
            while let Some(transmit) = qp.poll_transmit(now_ns, &mut env) {
                // An engine before RTR sends nothing.
                let Some(path) = &qp.path else { break };
                if let Err(full) = staging.add(&transmit, qp, path, regions, sink, counters) {
                    staging.held = Some((qpn, transmit));
                    qp.follow_up(qpn, &mut env, ready);
                    timers.arm(qpn, qp.deadline_ns(), &mut qp.armed_ns);
                    return Err(full);
                }
                turn -= 1;
                if turn == 0 {
                    qp.follow_up(qpn, &mut env, ready);
                    break;
                }
            }
            timers.arm(qpn, qp.deadline_ns(), &mut qp.armed_ns);
        }
        staging.flush(sink, counters)
    }
}
