//! Trains: datagrams that leave together.

use std::net::SocketAddr;

use crate::memory::{Gather, HostMemory};

/// The values that all datagrams of a train share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination of the datagrams.
    pub to: SocketAddr,
    /// Which of [`DeviceConfig::source_ports`](super::DeviceConfig::source_ports) they leave from.
    pub source: usize,
    /// IP type of service, or traffic class.
    pub traffic_class: u8,
    /// IP time to live, or hop limit.
    pub hop_limit: u8,
    /// Whether both ends leave the IPv4 identification out of the ICRC, so that it may be any.
    pub masks_ip_id: bool,
}

/// Consecutive datagrams to one address, all equally long but for the last, which may be shorter:
/// what the kernel sends by one call. At most [`TRAIN_BYTES_MAX`](crate::udp::TRAIN_BYTES_MAX)
/// bytes and [`SEGMENTS_MAX`](crate::udp::SEGMENTS_MAX) datagrams.
#[derive(Clone, Copy)]
pub struct Train<'a> {
    /// The way that they go.
    pub route: Route,
    /// Bytes of each datagram.
    pub segment_bytes: usize,
    /// The datagrams, first to last.
    pub datagrams: &'a [Datagram<'a>],
}

/// A datagram whose payload may still lie in registered memory.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    /// All of it, or what goes before the payload.
    front: &'a [u8],
    /// The memory, where in it the payload begins, and the payload.
    payload: Option<(&'a HostMemory, usize, Gather<'a>)>,
    /// The trailer behind the payload.
    back: &'a [u8],
}

/// The destination of the datagrams of a [`Device`](super::Device).
pub trait TransmitSink {
    /// The IPv4 identification that datagram `index` of a train from source port number `source`
    /// is going to have where the route does not mask it: then the ICRC covers it.
    fn ip_id(&self, source: usize, index: usize) -> u16;
    /// Sends a train and says how many of its datagrams are taken, from the front; the others
    /// will come again. One that cannot be sent at all is taken, and lost.
    fn send(&mut self, train: Train<'_>) -> usize;
}

impl<'a> Datagram<'a> {
    /// One whose bytes are all here.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Datagram { front: bytes, payload: None, back: &[] }
    }

    /// One around `len` bytes of memory; `None` where the memory does not have them.
    pub(super) fn around(
        front: &'a [u8],
        (memory, offset, len): (&'a HostMemory, usize, usize),
        back: &'a [u8],
    ) -> Option<Self> {
        let payload = memory.gather(offset, len).ok()?;
        Some(Datagram { front, payload: Some((memory, offset, payload)), back })
    }

    /// Bytes of it.
    pub fn wire_bytes(&self) -> usize {
        self.pieces().iter().map(Gather::len).sum()
    }

    /// The pieces to send, in this order.
    #[inline]
    pub fn pieces(&self) -> [Gather<'a>; 3] {
        let payload = self.payload.map_or(Gather::bytes(&[]), |(.., payload)| payload);
        [Gather::bytes(self.front), payload, Gather::bytes(self.back)]
    }

    /// A copy of its bytes.
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
