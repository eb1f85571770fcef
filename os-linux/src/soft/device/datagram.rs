//! Datagrams: the paths to their receivers, and the checks of those that arrive.

use std::net::SocketAddr;

use invar_core::nic::{AddressVector, NicError, QpOptions, RtrAttr, Verb};
use invar_core::roce::qp::{Destination, GRH_BYTES};
use invar_core::roce::{IP_UDP_BYTES_MAX, IpHeaders, Packet};

use super::path::{Incoming, Path, is_of_partition};
use super::{Device, DeviceConfig, DeviceCounters, LocalAddress};

/// The length of a UDP header.
const UDP_BYTES: usize = 8;
/// The hop limit of received headers, which a UDP socket does not show.
const HOP_LIMIT: u8 = 64;

/// The receiver of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Address and UDP port of the receiver.
    pub ah: AddressVector,
    /// The queue pair there.
    pub destination: Destination,
}

/// The receivers of posted datagrams.
pub(super) struct Receivers {
    /// The receiver of the datagram that is posted next.
    pub(super) next: Option<Receiver>,
    /// Receivers by slot of the send queue.
    pub(super) by_slot: Vec<Option<Receiver>>,
}

/// The paths of a queue pair of datagrams.
pub(super) struct DatagramPaths {
    /// The addresses of this end, by GID index.
    locals: Vec<LocalAddress>,
    /// The path to the receiver of the last datagram.
    last: Option<(AddressVector, Path)>,
    /// The options that all peers of datagrams have.
    options: QpOptions,
    /// The address at which the last datagram came, and the sender's.
    incoming: (usize, Incoming),
}

impl Receivers {
    pub(super) const NONE: Receivers = Receivers { next: None, by_slot: Vec::new() };

    /// Keeps the receiver of the datagram that was posted to `slot`.
    pub(super) fn keep(&mut self, slot: u16) {
        let slot = usize::from(slot);
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, None);
        }
        self.by_slot[slot] = self.next.take();
    }

    pub(super) fn get(&self, slot: u16) -> Option<&Receiver> {
        self.by_slot.get(usize::from(slot))?.as_ref()
    }
}

impl DatagramPaths {
    /// Makes the paths of a queue pair.
    pub(super) fn new(device: &DeviceConfig, qpn: u32) -> Self {
        DatagramPaths {
            locals: device.locals(qpn),
            last: None,
            options: device.datagram_options,
            incoming: (0, Incoming::default()),
        }
    }

    /// Returns the path to a receiver.
    ///
    /// # Errors
    /// `EINVAL`: this end cannot send to the address.
    pub(super) fn path_to(&mut self, ah: &AddressVector) -> Result<&mut Path, NicError> {
        let last = match self.last.take() {
            Some((address, path)) if address == *ah => (address, path),
            _ => {
                let attr = RtrAttr { ah: *ah, options: self.options, ..RtrAttr::default() };
                let local = self.locals.get(usize::from(ah.sgid_index)).copied();
                (*ah, Path::new(local, &attr)?)
            }
        };
        Ok(&mut self.last.insert(last).1)
    }

    /// Decodes a datagram that came to the address at index `at`, if it is undamaged; otherwise counts the
    /// reason and returns `None`.
    pub(super) fn admit<'a>(
        &mut self,
        at: usize,
        from: SocketAddr,
        bytes: &'a [u8],
        counters: &mut DeviceCounters,
    ) -> Option<(Packet<'a>, [u8; GRH_BYTES])> {
        let Ok(packet) = Packet::decode(bytes) else {
            counters.malformed += 1;
            return None;
        };
        let local = self.locals.get(at)?.address;
        if self.incoming.0 != at {
            self.incoming = (at, Incoming::default());
        }
        if local.is_ipv4() && !self.options.contains(QpOptions::ICRC_MASKS_IP_ID) {
            counters.icrc_unverified += 1;
        } else if !self.incoming.1.verify(from, local, bytes) {
            counters.icrc_bad += 1;
            return None;
        }
        if !is_of_partition(&packet) {
            counters.wrong_pkey += 1;
            return None;
        }
        Some((packet, global_route_header(from, local, bytes.len())))
    }
}

/// The header in front of a received datagram: that of IPv6, or 20 bytes of zeros and that of IPv4.
fn global_route_header(from: SocketAddr, local: SocketAddr, udp_bytes: usize) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    let headers = IpHeaders {
        src: from,
        dst: local,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        identification: 0,
    };
    let mut buffer = [0; IP_UDP_BYTES_MAX];
    // The ICRC was right, so both addresses are of one family.
    if let Ok(headers) = headers.encode(udp_bytes as u16, &mut buffer) {
        let ip = &headers[..headers.len() - UDP_BYTES];
        grh[GRH_BYTES - ip.len()..].copy_from_slice(ip);
    }
    grh
}

impl Device {
    /// Checks that a datagram can go to an address.
    ///
    /// # Errors
    /// `EINVAL`: the address is no address of a host, or is of the other IP version.
    pub fn check_address(&self, address: &AddressVector) -> Result<(), NicError> {
        DatagramPaths::new(&self.config, 0).path_to(address).map(|_| ())
    }

    /// Names the receiver of the datagram that is posted next to this queue pair.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair has no datagrams, or cannot send to the address.
    pub fn set_receiver(&mut self, qpn: u32, receiver: &Receiver) -> Result<(), NicError> {
        let refuse = |cause| Err(NicError::new(Verb::PostSend, libc::EINVAL, cause));
        let Some(qp) = self.qps.get_mut(qpn) else { return refuse("no such queue pair") };
        let Some(datagrams) = &mut qp.datagrams else { return refuse("a connection") };
        datagrams.path_to(&receiver.ah)?;
        qp.posted.receivers.next = Some(*receiver);
        Ok(())
    }
}
