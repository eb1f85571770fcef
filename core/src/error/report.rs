//! An error together with both ends.

use core::fmt;
use core::net::SocketAddr;

use super::Error;
use crate::conn::wire::{DeviceName, shorten};
use crate::nic::{Gid, PortNotices};

/// Both ends of a connection, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// This end's device.
    pub device: DeviceName,
    /// This end's GID.
    pub gid: Gid,
    /// This end's first queue pair; 0 before there is one.
    pub qpn: u32,
    /// The peer's address on the out-of-band connection.
    pub peer: Option<SocketAddr>,
    /// The peer's device, where its wire tells.
    pub peer_device: DeviceName,
    /// The peer's GID; zero before it is known.
    pub peer_gid: Gid,
    /// The peer's first queue pair; 0 before it is known.
    pub peer_qpn: u32,
    /// What had befallen this end's port when the connection ended.
    pub notices: PortNotices,
}

impl Ends {
    pub(crate) fn local(name: &str, gid: Gid) -> Self {
        Ends { device: shorten(name), gid, ..Ends::default() }
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
        let Report { error, ends } = self;
        write!(f, "{ends}: {error}")?;
        let Ends { device, notices, .. } = ends;
        if notices.is_empty() { Ok(()) } else { write!(f, "; the port of {device} {notices}") }
    }
}

/// This end and the peer, without what had befallen the port.
impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { device, gid, qpn, peer, peer_device, peer_gid, peer_qpn, notices: _ } = self;
        write!(f, "{device}")?;
        // Sockets have neither.
        if *gid != Gid::default() {
            write!(f, " (GID {gid}, QP {qpn:#x})")?;
        }
        f.write_str(" to peer ")?;
        match peer {
            Some(addr) => write!(f, "{addr}")?,
            None => f.write_str("of unknown address")?,
        }
        match (peer_device.as_str(), *peer_gid != Gid::default()) {
            ("", false) => Ok(()),
            ("", true) => write!(f, " (GID {peer_gid}, QP {peer_qpn:#x})"),
            (name, false) => write!(f, " ({name})"),
            (name, true) => write!(f, " ({name}, GID {peer_gid}, QP {peer_qpn:#x})"),
        }
    }
}
