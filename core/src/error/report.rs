//! An error together with both ends.

use core::fmt;
use core::net::SocketAddr;

use super::Error;
use crate::conn::wire::DEVICE_NAME_BYTES;
use crate::nic::Gid;

/// Both ends of a connection, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// This end's device.
    pub device: heapless::String<DEVICE_NAME_BYTES>,
    /// This end's GID.
    pub gid: Gid,
    /// This end's first queue pair; 0 before there is one.
    pub qpn: u32,
    /// The peer's address on the out-of-band connection.
    pub peer: Option<SocketAddr>,
    /// The peer's device, where its wire tells.
    pub peer_device: heapless::String<DEVICE_NAME_BYTES>,
    /// The peer's GID; zero before it is known.
    pub peer_gid: Gid,
    /// The peer's first queue pair; 0 before it is known.
    pub peer_qpn: u32,
}

impl Ends {
    pub(crate) fn local(name: &str, gid: Gid) -> Self {
        let mut device = heapless::String::new();
        for c in name.chars() {
            if device.push(c).is_err() {
                break;
            }
        }
        Ends { device, gid, ..Ends::default() }
    }

    /// Joins an error with these ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        Report { error, ends: self }
    }
}

/// Displays an error with both ends: what a person needs to know which machine to look at.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    error: Error,
    ends: &'a Ends,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { device, gid, qpn, peer, peer_device, peer_gid, peer_qpn } = self.ends;
        write!(f, "{device} (GID {gid}, QP {qpn:#x}) to peer ")?;
        match peer {
            Some(addr) => write!(f, "{addr}")?,
            None => f.write_str("of unknown address")?,
        }
        if *peer_gid != Gid::default() {
            f.write_str(" (")?;
            if !peer_device.is_empty() {
                write!(f, "{peer_device}, ")?;
            }
            write!(f, "GID {peer_gid}, QP {peer_qpn:#x})")?;
        }
        write!(f, ": {}", self.error)
    }
}
