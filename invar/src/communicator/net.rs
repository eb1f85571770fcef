//! Links between ranks over the network.
//!
//! A link goes one way between two ranks on one channel. At both ends it is a ring of registered
//! slots: the sending rank fills the next slot and publishes it, the receiving rank uses and releases
//! it. A link has no thread: its two ends move in the calls of whoever has them.
//!
//! ```
//! use std::time::Duration;
//! use invar::net::{Abort, NetSettings, Network, wait_for_links};
//!
//! let device = invar::Device::open_at("127.0.0.1:0".parse()?)?;
//! let settings = NetSettings::from(invar::Settings::from_env()?);
//! // Two ranks, as a rule on two hosts.
//! let zero = Network::open(vec![device.clone()], &settings, Abort::default())?;
//! let one = Network::open(vec![device], &settings, Abort::default())?;
//! let (receiving, handle) = one.listen(0, 0, 0)?;
//! let sending = zero.connect(1, 0, 0, &handle)?;
//! let mut ends = wait_for_links(vec![sending, receiving], Duration::from_secs(30))?.into_iter();
//! let mut send = ends.next().and_then(|ends| ends.send).expect("rank zero sends");
//! let mut recv = ends.next().and_then(|ends| ends.recv).expect("rank one receives");
//!
//! let slot = send.free(1)?.expect("eight are free");
//! // SAFETY: it is ours until it is published.
//! unsafe { slot.write(42) };
//! send.publish(1)?;
//! let (slot, len) = loop {
//!     send.progress()?;
//!     if let Some(full) = recv.full()? {
//!         break full;
//!     }
//! };
//! // SAFETY: it is ours until it is released.
//! assert_eq!((unsafe { slot.read() }, len), (42, 1));
//! recv.release();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attempt;
mod id;
mod recv;
mod ring;
mod send;
mod status;
mod trace;

use std::io;

use invar_linux::proxy::DumpOnSignal;

use crate::error::Kind;
use crate::raw::{RecvEnd, SendEnd};
use crate::{Device, DeviceKind, Error, Handle, Settings};
use attempt::LinkParts;
use id::LinkId;
use status::LinkStatuses;
use trace::LinkTrace;

pub use attempt::{LinkAttempt, LinkEnds, wait_for_links};
pub use invar_linux::proxy::Abort;
pub use recv::NetRecv;
pub use send::NetSend;
pub(super) use status::LinkDump;

/// The messages of a link need no telling apart.
const TAG: u32 = 0;
/// Up to so many bytes a message takes no longer than a call or two around it.
const SHORT_BYTES: usize = 32 << 10;
/// Slots begin on a cache line.
const SLOT_ALIGN: usize = 64;

/// How links are made.
#[derive(Clone, Debug)]
pub struct NetSettings {
    /// Of connections.
    pub connections: Settings,
    /// Bytes of a slot, of which a link has eight at each end: 128 MiB at most. Both ends must have the
    /// same.
    pub slot_bytes: usize,
    /// Whose links they are: the rank in the name of its trace.
    pub rank: u32,
    /// The GPU, or the place among the ranks of this host: the thread's number in the trace.
    pub device: u32,
}

impl From<Settings> for NetSettings {
    fn from(connections: Settings) -> Self {
        NetSettings { connections, slot_bytes: 256 << 10, rank: 0, device: 0 }
    }
}

impl NetSettings {
    fn slot_bytes(&self) -> Result<usize, Error> {
        if self.slot_bytes > ring::SLOT_BYTES_MAX {
            let (asked, max) = (self.slot_bytes, ring::SLOT_BYTES_MAX);
            let text = format!("slots of {asked} bytes for links, of {max} at most");
            return Err(Kind::Usage(text).into());
        }
        Ok(self.slot_bytes.next_multiple_of(SLOT_ALIGN).max(SLOT_ALIGN))
    }
}

/// What one rank makes its links over: devices, and how its links stand.
pub struct Network {
    devices: Vec<Device>,
    settings: Settings,
    slot_bytes: usize,
    statuses: LinkStatuses,
    _on_signal: Option<DumpOnSignal>,
}

impl Network {
    /// Links will go over `devices`. `abort` ends all of them.
    ///
    /// # Errors
    /// Slots that are too large; a trace that cannot be written; a signal that nobody can wait for.
    pub fn open(devices: Vec<Device>, settings: &NetSettings, abort: Abort) -> Result<Self, Error> {
        let NetSettings { connections, rank, device, .. } = settings;
        let trace = connections.links.trace.as_deref();
        let trace = trace.map(|path| LinkTrace::create(path, *rank, *device)).transpose()?;
        let statuses = LinkStatuses::new(abort, trace);
        let shown = statuses.dumper();
        let on_signal = connections
            .links
            .dump_signal
            .map(|signal| DumpOnSignal::spawn(signal, move || shown.text(), io::stderr()))
            .transpose()
            .map_err(|error| Error::io("waiting for a signal", error))?;
        Ok(Network {
            devices,
            settings: connections.clone(),
            slot_bytes: settings.slot_bytes()?,
            statuses,
            _on_signal: on_signal,
        })
    }

    /// Begins to listen for rank `peer` on `channel`, on the device of that index. The handle is
    /// for that rank's [`Network::connect`]. Whoever has it may connect, unless the
    /// [connections](NetSettings::connections) have a [key](Settings::key).
    ///
    /// # Errors
    /// No such device; no port to listen at.
    pub fn listen(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
    ) -> Result<(LinkAttempt, Handle), Error> {
        LinkAttempt::listen(LinkId { peer, channel }, false, self.parts(device)?, &self.settings)
    }

    /// Begins to connect to rank `peer`, which listens for this rank with `handle` on `channel`.
    ///
    /// # Errors
    /// No such device; a handle that is none.
    pub fn connect(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
        handle: &Handle,
    ) -> Result<LinkAttempt, Error> {
        let (id, parts) = (LinkId { peer, channel }, self.parts(device)?);
        LinkAttempt::connect(id, false, parts, &self.settings, handle)
    }

    /// Whether links both ways can share a connection over the device of that index: messages one
    /// way then acknowledge those the other way.
    pub fn goes_both_ways(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|device| device.info().kind == DeviceKind::Socket)
    }

    /// As [`Network::listen`], with a link back over the same connection. The handle is for that
    /// rank's [`Network::connect_both_ways`].
    ///
    /// # Errors
    /// A device that [does not go both ways](Network::goes_both_ways), and those of `listen`.
    pub fn listen_both_ways(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
    ) -> Result<(LinkAttempt, Handle), Error> {
        let parts = self.parts_both_ways(device)?;
        LinkAttempt::listen(LinkId { peer, channel }, true, parts, &self.settings)
    }

    /// As [`Network::connect`], with a link back over the same connection.
    ///
    /// # Errors
    /// A device that [does not go both ways](Network::goes_both_ways), and those of `connect`.
    pub fn connect_both_ways(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
        handle: &Handle,
    ) -> Result<LinkAttempt, Error> {
        let (id, parts) = (LinkId { peer, channel }, self.parts_both_ways(device)?);
        LinkAttempt::connect(id, true, parts, &self.settings, handle)
    }

    /// A link to rank `peer` on `channel`, by an end that the caller has connected to one of that
    /// rank's.
    ///
    /// # Errors
    /// No such device; no memory for the link.
    pub fn sender(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
        end: Box<dyn SendEnd>,
    ) -> Result<NetSend, Error> {
        self.parts(device)?.sender(LinkId { peer, channel }, end)
    }

    /// A link from rank `peer` on `channel`, by an end that the caller has connected to one of that
    /// rank's.
    ///
    /// # Errors
    /// As of [`Network::sender`]; what ended the connection.
    pub fn receiver(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
        end: Box<dyn RecvEnd>,
    ) -> Result<NetRecv, Error> {
        self.parts(device)?.receiver(LinkId { peer, channel }, end)
    }

    /// What is under way on all links, in the notation of NCCL's proxy dump.
    pub fn dump(&self) -> String {
        self.statuses.dump()
    }

    pub(super) fn dumper(&self) -> LinkDump {
        self.statuses.dumper()
    }

    fn parts(&self, device: usize) -> Result<LinkParts, Error> {
        let Some(device) = self.devices.get(device) else {
            let text = format!("device {device}: there are {}", self.devices.len());
            return Err(Kind::Usage(text).into());
        };
        let (slot_bytes, statuses) = (self.slot_bytes, self.statuses.clone());
        Ok(LinkParts { device: device.clone(), slot_bytes, statuses })
    }

    fn parts_both_ways(&self, device: usize) -> Result<LinkParts, Error> {
        if !self.goes_both_ways(device) {
            let text = format!("connections over device {device} do not go both ways");
            return Err(Kind::Usage(text).into());
        }
        self.parts(device)
    }
}
