//! The packets that a device sends and receives, for people who look at packets.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::time::SystemTime;

use invar_core::roce::{IP_UDP_BYTES_MAX, IpHeaders};

use super::device::{Route, Train};
use crate::pcap::Writer;
use crate::udp::Datagram;

/// The value of header fields that a UDP socket does not tell of a received packet.
const HOP_LIMIT_UNKNOWN: u8 = 64;
const IDENTIFICATION_UNKNOWN: u16 = 0;

/// A pcap file that grows with each packet.
pub(super) struct Capture {
    file: Writer<BufWriter<File>>,
    /// The address at which the device receives.
    address: SocketAddr,
    failed: Option<io::Error>,
}

impl Capture {
    pub(super) fn new(file: File, address: SocketAddr) -> io::Result<Capture> {
        let file = Writer::new(BufWriter::new(file))?;
        Ok(Capture { file, address, failed: None })
    }

    /// A train that left from `src`, the IPv4 identifications of its datagrams given by index.
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

    /// Brings all packets to the file, or says what kept them from getting there.
    pub(super) fn finish(mut self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.file.flush(),
        }
    }

    /// After an error, nothing more: a file with a hole would mislead.
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
