//! Links between ranks over the network.
//!
//! A link carries data in one direction between two ranks on one channel. Each end is a ring of
//! registered slots. The sending rank fills the next slot and publishes it; the receiving rank uses the
//! slot and releases it. A link has no thread: each end moves data only in the calls of its owner.
//!
//! ```
//! use std::time::Duration;
//! use invar::net::{Abort, NetSettings, Network, wait_for_links};
//!
//! let device = invar::Device::open_at("127.0.0.1:0".parse()?)?;
//! let settings = NetSettings::from(invar::Settings::from_env()?);
//! // Two ranks. Most programs have them on two hosts.
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
pub use invar_linux::abort::Abort;
pub use recv::NetRecv;
pub use send::NetSend;
pub(super) use status::LinkDump;

/// All messages of a link have this tag, because a link needs no others.
const TAG: u32 = 0;
/// A message of up to this many bytes takes no longer than one or two calls around it.
const SHORT_BYTES: usize = 32 << 10;
/// Slots begin on a cache line.
const SLOT_ALIGN: usize = 64;

/// Settings for the links of one rank.
#[derive(Clone, Debug)]
pub struct NetSettings {
    /// The settings of the connections.
    pub connections: Settings,
    /// Bytes of a slot, at most 128 MiB. A link has eight slots at each end. Both ends must have the
    /// same slot size.
    pub slot_bytes: usize,
    /// The number of the rank's communicator; the name of the trace contains it.
    pub communicator: u64,
    /// The rank that owns the links; the name of the trace contains this number.
    pub rank: u32,
    /// Number of the GPU, or the rank's index among the ranks of this host. The trace uses it as the
    /// thread's number.
    pub device: u32,
}

impl From<Settings> for NetSettings {
    fn from(connections: Settings) -> Self {
        NetSettings { connections, slot_bytes: 256 << 10, communicator: 0, rank: 0, device: 0 }
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

/// The devices over which one rank makes its links, and the status of these links.
pub struct Network {
    devices: Vec<Device>,
    settings: Settings,
    slot_bytes: usize,
    statuses: LinkStatuses,
    _on_signal: Option<DumpOnSignal>,
}

impl Network {
    /// Creates a network whose links go over `devices`. `abort` ends all links.
    ///
    /// # Errors
    /// Fails if the slots are too large, if the trace can't be written, or if the process can't wait
    /// for the signal.
    pub fn open(devices: Vec<Device>, settings: &NetSettings, abort: Abort) -> Result<Self, Error> {
        let connections = &settings.connections;
        let trace = connections.links.trace.as_deref();
        let trace = trace.map(|path| LinkTrace::create(path, settings)).transpose()?;
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

    /// Starts to listen for rank `peer` on `channel`, on the device with index `device`. The peer needs
    /// the handle for its [`Network::connect`]. Anyone who has the handle may connect, unless the
    /// [connections](NetSettings::connections) have a [key](Settings::key).
    ///
    /// # Errors
    /// Fails if there is no such device or no free port.
    pub fn listen(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
    ) -> Result<(LinkAttempt, Handle), Error> {
        LinkAttempt::listen(LinkId { peer, channel }, false, self.parts(device)?, &self.settings)
    }

    /// Starts to connect to rank `peer`, which listens for this rank with `handle` on `channel`.
    ///
    /// # Errors
    /// Fails if there is no such device or if the handle is invalid.
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

    /// Returns whether links of both directions can share a connection over the device with index
    /// `device`. Messages in one direction then acknowledge messages in the other.
    pub fn goes_both_ways(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|device| device.info().kind == DeviceKind::Socket)
    }

    /// Starts to listen, like [`Network::listen`], for a connection that also carries a link back. The
    /// peer needs the handle for its [`Network::connect_both_ways`].
    ///
    /// # Errors
    /// Fails if the device [does not go both ways](Network::goes_both_ways), or if `listen` fails.
    pub fn listen_both_ways(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
    ) -> Result<(LinkAttempt, Handle), Error> {
        let parts = self.parts_both_ways(device)?;
        LinkAttempt::listen(LinkId { peer, channel }, true, parts, &self.settings)
    }

    /// Starts to connect, like [`Network::connect`], over a connection that also carries a link back.
    ///
    /// # Errors
    /// Fails if the device [does not go both ways](Network::goes_both_ways), or if `connect` fails.
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

    /// Creates a link to rank `peer` on `channel`. The caller has connected `end` to an end of that
    /// rank.
    ///
    /// # Errors
    /// Fails if there is no such device or no memory for the link.
    pub fn sender(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
        end: Box<dyn SendEnd>,
    ) -> Result<NetSend, Error> {
        self.parts(device)?.sender(LinkId { peer, channel }, end)
    }

    /// Creates a link from rank `peer` on `channel`. The caller has connected `end` to an end of that
    /// rank.
    ///
    /// # Errors
    /// Fails if there is no such device, if there is no memory for the link, or if the connection has
    /// ended.
    pub fn receiver(
        &self,
        peer: u32,
        channel: u16,
        device: usize,
        end: Box<dyn RecvEnd>,
    ) -> Result<NetRecv, Error> {
        self.parts(device)?.receiver(LinkId { peer, channel }, end)
    }

    /// Returns the operations in progress on all links, in the notation of NCCL's proxy dump.
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
