//! The addresses of a device: its GIDs, and the sockets from which packets of each leave.

use std::net::SocketAddr;

use super::DeviceConfig;

/// An address of a device besides the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address to which peers send. Its IP address is the GID.
    pub address: SocketAddr,
    /// Index of the socket from which packets leave, as in [`Route`](super::Route).
    pub source: usize,
    /// UDP port of this socket.
    pub source_port: u16,
}

impl DeviceConfig {
    /// Returns the address at a GID index for packets of a queue pair.
    pub(super) fn local(&self, qpn: u32, gid_index: u8) -> Option<LocalAddress> {
        let ports = self.source_ports;
        let first = || LocalAddress {
            address: self.address,
            source: ports.place(qpn).unwrap_or(0),
            source_port: ports.port(qpn),
        };
        match usize::from(gid_index).checked_sub(1) {
            None => Some(first()),
            Some(index) => self.more_addresses.get(index).copied(),
        }
    }

    /// Returns all addresses for packets of a queue pair, by GID index.
    pub(super) fn locals(&self, qpn: u32) -> Vec<LocalAddress> {
        (0..=u8::MAX).map_while(|index| self.local(qpn, index)).collect()
    }
}
