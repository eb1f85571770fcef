//! Packet capture: writes the packets that a device sends and receives to a file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::time::SystemTime;

use invar_core::roce::{IP_UDP_BYTES_MAX, IpHeaders};

use super::device::{Route, Train};
use crate::pcap::Writer;
use crate::udp::Datagram;

/// The values of header fields that a UDP socket does not report for a received packet.
const HOP_LIMIT_UNKNOWN: u8 = 64;
const IDENTIFICATION_UNKNOWN: u16 = 0;

/// A pcap file that grows with each packet.
pub(super) struct Capture {
    file: Writer<BufWriter<File>>,
    /// The address on which the device receives.
    address: SocketAddr,
    failed: Option<io::Error>,
}

impl Capture {
    pub(super) fn new(file: File, address: SocketAddr) -> io::Result<Capture> {
        let file = Writer::new(BufWriter::new(file))?;
        Ok(Capture { file, address, failed: None })
    }

    /// Records a train that left from `src`; `ip_id` returns the IPv4 identification of a datagram by
    /// its index.
    pub(super) fn sent(
        &mut self,
        train: &Train<'_>,
        src: SocketAddr,
        ip_id: impl Fn(usize) -> u16,
    ) {
        let Route { to: dst, traffic_class, hop_limit, .. } = train.route;
        for (index, datagram) in train.datagrams.iter().enumerate() {
            let identification = ip_id(index);
            let headers = IpHeaders { src, dst, traffic_class, hop_limit, identification };
            self.add(&headers, &datagram.to_vec());
        }
    }

    pub(super) fn received(&mut self, datagram: &Datagram<'_>) {
        let headers = IpHeaders {
            src: datagram.source,
            dst: self.address,
            traffic_class: 0,
            hop_limit: HOP_LIMIT_UNKNOWN,
            identification: IDENTIFICATION_UNKNOWN,
        };
        self.add(&headers, datagram.bytes);
    }

    /// Writes all remaining packets to the file, or returns the error that kept packets out of it.
    pub(super) fn finish(mut self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.file.flush(),
        }
    }

    /// Adds a packet. After an error it adds no more, because a file with a gap would mislead.
    fn add(&mut self, headers: &IpHeaders, udp_payload: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.write(headers, udp_payload).err();
        }
    }

    fn write(&mut self, headers: &IpHeaders, udp_payload: &[u8]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time_ns = now.map_or(0, |now| now.as_nanos() as u64);
        let mut buffer = [0; IP_UDP_BYTES_MAX];
        let len = u16::try_from(udp_payload.len()).map_err(io::Error::other)?;
        let encoded = headers.encode(len, &mut buffer).map_err(io::Error::other)?;
        self.file.write(time_ns, encoded, udp_payload)
    }
}
