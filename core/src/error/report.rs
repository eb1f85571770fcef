//! An error together with a description of both ends.

use core::fmt;
use core::net::SocketAddr;

use super::Error;
use crate::conn::wire::{DeviceName, shorten};
use crate::nic::{Gid, PortNotices, WcStatus};
use crate::peer_clock::PeerClock;
use crate::roce;
use crate::stall::Verdict;

/// Both ends of a connection, for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Name of this end's device.
    pub device: DeviceName,
    /// This end's GID.
    pub gid: Gid,
    /// Number of this end's first queue pair; 0 before it exists.
    pub qpn: u32,
    /// UDP port on which this end receives packets; 0 on InfiniBand, and before it is known.
    pub udp_port: u16,
    /// The peer's address on the out-of-band connection.
    pub peer: Option<SocketAddr>,
    /// Name of the peer's device, if the wire transmits it.
    pub peer_device: DeviceName,
    /// The peer's GID; zero before it is known.
    pub peer_gid: Gid,
    /// Number of the peer's first queue pair; 0 before it is known.
    pub peer_qpn: u32,
    /// UDP port to which this end sends packets; 0 on InfiniBand, and before it is known.
    pub peer_udp_port: u16,
    /// The number by which both ends know the connection; 0 if the wire has none.
    pub number: u64,
    /// The peer's clock, if this end has called and the peer has told it.
    pub peer_clock: Option<PeerClock>,
    /// Recent events of this end's port when the connection ended.
    pub notices: PortNotices,
    /// The verdict on a stall that lasts for longer than the settings allow, or did so when the connection ended.
    pub stall: Option<Verdict>,
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

/// Displays an error with both ends, so that a person knows at which machine to look.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    error: Error,
    ends: &'a Ends,
}

impl<'a> Report<'a> {
    /// Both ends of the connection that failed.
    pub fn ends(&self) -> &'a Ends {
        self.ends
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { error, ends } = self;
        write!(f, "{ends}: {error}")?;
        let Ends { device, notices, udp_port, peer_udp_port, stall, .. } = ends;
        let is_silence =
            matches!(error, Error::Completion(e) if e.status == WcStatus::RETRY_EXC_ERR);
        if is_silence && *peer_udp_port != 0 {
            write!(f, "; UDP ports: {peer_udp_port} at the peer, {udp_port} here")?;
            if [*udp_port, *peer_udp_port] != [roce::UDP_PORT; 2] {
                f.write_str(" (INVAR_SOFT_PORT sets that of a software NIC)")?;
            }
        }
        if !notices.is_empty() {
            write!(f, "; the port of {device} {notices}")?;
        }
        stall.map_or(Ok(()), |verdict| write!(f, "; before that: {verdict}"))
    }
}

/// Displays this end and the peer, without UDP ports and events of the port.
impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { device, gid, qpn, peer, peer_device, peer_gid, peer_qpn, .. } = self;
        write!(f, "{device}")?;
        // Sockets have neither a GID nor a queue pair.
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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;
    use crate::error::CompletionError;

    /// The text about UDP ports in the report of an error completion with this status.
    fn said(status: WcStatus, udp_port: u16, peer_udp_port: u16) -> Option<std::string::String> {
        let (qpn, vendor_err, timeout, retry_cnt, port_trouble) = (1, 0, 14, 7, None);
        let error = CompletionError { status, qpn, vendor_err, timeout, retry_cnt, port_trouble };
        let ends = Ends { udp_port, peer_udp_port, ..Ends::default() };
        let text = ends.report(Error::Completion(error)).to_string();
        text.split_once("; UDP ports: ").map(|(_, said)| said.to_string())
    }

    #[test]
    fn who_gets_no_answer_is_told_which_udp_ports_to_look_at() {
        let silence = WcStatus::RETRY_EXC_ERR;
        assert_eq!(said(silence, 4791, 4791).as_deref(), Some("4791 at the peer, 4791 here"));
        let soft = "20001 at the peer, 4791 here (INVAR_SOFT_PORT sets that of a software NIC)";
        assert_eq!(said(silence, 4791, 20001).as_deref(), Some(soft));
        assert_eq!(said(silence, 0, 0), None, "InfiniBand has none");
        assert_eq!(said(WcStatus::REM_ACCESS_ERR, 4791, 4791), None);
    }
}
