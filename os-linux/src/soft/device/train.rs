//! Trains: datagrams that one call sends together.

use std::net::SocketAddr;

use crate::memory::{Gather, HostMemory};

/// The values that all datagrams of a train share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination of the datagrams.
    pub to: SocketAddr,
    /// Index of the source port in [`DeviceConfig::source_ports`](super::DeviceConfig::source_ports).
    pub source: usize,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// Whether both ends exclude the IPv4 identification from the ICRC, so that it may have any value.
    pub masks_ip_id: bool,
}

/// Consecutive datagrams to one address, which the kernel sends by one call. All have the same length,
/// except that the last may be shorter. A train has at most
/// [`TRAIN_BYTES_MAX`](crate::udp::TRAIN_BYTES_MAX) bytes and [`SEGMENTS_MAX`](crate::udp::SEGMENTS_MAX)
/// datagrams.
#[derive(Clone, Copy)]
pub struct Train<'a> {
    /// Route of all datagrams.
    pub route: Route,
    /// Length of each datagram in bytes.
    pub segment_bytes: usize,
    /// The datagrams in order.
    pub datagrams: &'a [Datagram<'a>],
}

/// A datagram whose payload may still lie in registered memory.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    /// The whole datagram, or the bytes before the payload.
    front: &'a [u8],
    /// The memory, the offset of the payload in it, and the payload.
    payload: Option<(&'a HostMemory, usize, Gather<'a>)>,
    /// The trailer after the payload.
    back: &'a [u8],
}

/// The consumer of the datagrams that a [`Device`](super::Device) sends.
pub trait TransmitSink {
    /// Returns the IPv4 identification that datagram `index` of a train from source port number `source`
    /// will have. The device asks only if the route does not mask the identification, because the ICRC
    /// then covers it.
    fn ip_id(&self, source: usize, index: usize) -> u16;
    /// Sends a train and returns the number of datagrams taken from its front; the device offers the
    /// rest again. A datagram that cannot be sent at all counts as taken, and is lost.
    fn send(&mut self, train: Train<'_>) -> usize;
}

impl<'a> Datagram<'a> {
    /// Makes a datagram from its bytes.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Datagram { front: bytes, payload: None, back: &[] }
    }

    /// Makes a datagram around `len` bytes of memory; returns `None` if the memory does not contain the
    /// range.
    pub(super) fn around(
        front: &'a [u8],
        (memory, offset, len): (&'a HostMemory, usize, usize),
        back: &'a [u8],
    ) -> Option<Self> {
        let payload = memory.gather(offset..offset.checked_add(len)?).ok()?;
        Some(Datagram { front, payload: Some((memory, offset, payload)), back })
    }

    /// Returns the length of the datagram in bytes.
    pub fn wire_bytes(&self) -> usize {
        self.pieces().iter().map(Gather::len).sum()
    }

    /// Returns the pieces to send, in order.
    #[inline]
    pub fn pieces(&self) -> [Gather<'a>; 3] {
        let payload = self.payload.map_or(Gather::bytes(&[]), |(.., payload)| payload);
        [Gather::bytes(self.front), payload, Gather::bytes(self.back)]
    }

    /// Copies the datagram's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.front.to_vec();
        if let Some((memory, offset, payload)) = &self.payload {
            bytes.resize(self.front.len() + payload.len(), 0);
            let read = memory.read_at(*offset, &mut bytes[self.front.len()..]);
            debug_assert_eq!(read, Ok(()), "gathered");
        }
        bytes.extend_from_slice(self.back);
        bytes
    }
}
