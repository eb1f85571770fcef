//! Tries of pairs of devices, for `invar doctor`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use invar::{DeviceInfo, DeviceKind, Settings};
use invar_core::nic::Mtu;
use invar_linux::interface::is_link_local;

use super::about::{self, About};
use super::client::{Broken, Hello, Measured};
use super::job::Job;
pub(crate) use super::message::Offer;
use super::server::{self, Serving};
use super::{SERVER_IP, SERVER_PORT, client};
use crate::failure::{Failure, line};
use crate::output::Outputs;
use crate::resolved;

/// The default address of a server.
pub(crate) const ADDRESS: &str = SERVER_IP;

/// Bytes of the messages that are measured.
const SIZES: [u32; 2] = [8, 64 << 10];

/// A pair of devices that do not reach each other fails within about these times.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ACK_WITHIN: Duration = Duration::from_millis(250);

/// The server of `invar doctor --peer`.
pub(crate) struct Peer {
    addrs: Vec<SocketAddr>,
    /// The server's devices.
    pub(crate) devices: Vec<Offer>,
    /// Whether the server is on this host.
    pub(crate) is_here: bool,
    /// The server's version, settings and clock; `None` for an older server, which does not send them.
    pub(crate) about: Option<(About, ClockOffset)>,
}

/// How far the server's clock is from this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    /// How many microseconds the server's clock is ahead.
    pub(crate) ahead_us: i64,
    /// How far off that may be.
    pub(crate) error_us: i64,
}

/// The results of a try.
pub(crate) struct Tried {
    /// Payload bytes of a packet; `None` over TCP.
    pub(crate) path_mtu: Option<usize>,
    /// Half a round trip of a short message, at the median.
    pub(crate) half_round_trip_us: f64,
    /// The fastest half round trip, which other work of the hosts delays least.
    pub(crate) fastest_us: f64,
    /// The bandwidth of long messages.
    pub(crate) gbytes_per_s: f64,
    /// How many bytes were wrong.
    pub(crate) wrong: u64,
}

/// A pair of devices between which messages do not pass.
pub(crate) struct PairFailure {
    pub(crate) failure: Failure,
    pub(crate) cause: Option<Cause>,
}

/// The reason why messages do not pass, as far as both ends together can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The server's packets arrive here, and this end's packets do not arrive there.
    LostThere,
    /// This end's packets arrive at the server, and the server's packets do not arrive here.
    LostHere,
    /// Packets with so many bytes of payload pass, and those with the next larger path MTU do not.
    Mtu { passes: u32, fails: u32 },
}

impl From<Failure> for PairFailure {
    fn from(failure: Failure) -> Self {
        PairFailure { failure, cause: None }
    }
}

/// Serves clients of `invar doctor --peer`, one after another.
pub(crate) fn serve(addr: &str, settings: &Settings) -> Result<(), Failure> {
    let memory_max = server::CLIENT_MEMORY;
    let serving = Serving { nic: None, keep: true, child_of: None, memory_max };
    let addr = resolved(addr, Some(SERVER_PORT))?[0];
    server::run(&serving, addr, settings, |addr| server::announce(addr, "invar doctor --peer"))
}

impl Offer {
    /// Returns `None` for a device in software that has only link-local addresses. Whether those reach a
    /// peer depends on the link that the peer takes.
    pub(super) fn of(info: &DeviceInfo) -> Option<Self> {
        let is_soft = matches!(info.kind, DeviceKind::Soft | DeviceKind::Socket);
        let has_only = |is: fn(&IpAddr) -> bool| is_soft && info.addresses.iter().all(is);
        (!has_only(is_link_local)).then(|| Offer {
            name: info.name.clone(),
            transport: info.kind.to_string(),
            is_loopback: has_only(IpAddr::is_loopback),
        })
    }
}

impl ClockOffset {
    /// The offset of a clock that was read while this host's clock went from `before` to `after`.
    fn of(theirs: u64, [before, after]: [u64; 2]) -> Self {
        let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
        let error_us = signed(after.saturating_sub(before) / 2);
        let ahead_us = signed(theirs).saturating_sub(signed(before)).saturating_sub(error_us);
        ClockOffset { ahead_us, error_us }
    }
}

impl Peer {
    /// Asks the server at one of these addresses for its devices.
    pub(crate) fn call(addrs: Vec<SocketAddr>) -> Result<Self, Failure> {
        let before = about::now_us();
        let Hello { mut devices, about, addrs: [ours, theirs] } = client::offers(&addrs)?;
        // The server has read its clock at some time between these two.
        let clock = [before, about::now_us()];
        // The peer may be anybody, and these words go to a terminal.
        for offer in &mut devices {
            offer.name = line(&offer.name);
            offer.transport = line(&offer.transport);
        }
        let about = about.map(|about| {
            let offset = ClockOffset::of(about.clock_us, clock);
            (about.made_harmless(), offset)
        });
        Ok(Peer { addrs, devices, is_here: ours == theirs, about })
    }

    /// The pairs of devices of one transport that may reach each other.
    pub(crate) fn pairs(&self, devices: &[DeviceInfo]) -> Vec<(Offer, Offer)> {
        let reaches = |offer: &&Offer| self.is_here || !offer.is_loopback;
        let ours: Vec<Offer> = devices.iter().filter_map(Offer::of).collect();
        let ours = ours.iter().filter(reaches);
        let pair = |ours: &Offer| {
            let theirs = self.devices.iter().filter(reaches);
            let equal = theirs.filter(|theirs| theirs.transport == ours.transport);
            // Loopback reaches loopback alone.
            let equal = equal.filter(|theirs| theirs.is_loopback == ours.is_loopback);
            equal.map(|theirs| (ours.clone(), theirs.clone())).collect::<Vec<_>>()
        };
        ours.flat_map(pair).collect()
    }

    /// Sends messages between two devices and checks them. If none or only short ones pass, it looks for the
    /// cause.
    pub(crate) fn try_pair(
        &self,
        nic: &str,
        peer_nic: &str,
        settings: &Settings,
    ) -> Result<Tried, PairFailure> {
        let settings = settings.clone().connect_timeout(CONNECT_WITHIN);
        let settings = settings.ack_timeout(ACK_WITHIN).recovery_timeout(Duration::ZERO);
        let measure = |sizes: &[u32]| {
            let job = Job::brief(nic, peer_nic, settings.clone(), sizes.to_vec());
            client::run(&job, None, Outputs::silent(), client::Extras::default(), &self.addrs)
        };
        let measured = measure(&SIZES).map_err(|broken| {
            let cause = broken.one_way().or_else(|| broken.mtu(measure));
            PairFailure { failure: broken.failure, cause }
        })?;
        let (Some(header), [short, long]) = (&measured.header, &measured.rows[..]) else {
            return Err(Failure::new("the server ended before the measurement").into());
        };
        Ok(Tried {
            path_mtu: header.path_mtu,
            half_round_trip_us: short.latency_us.p50,
            fastest_us: short.latency_us.min,
            gbytes_per_s: long.algbw_gbytes_per_s,
            wrong: measured.wrong,
        })
    }
}

impl Broken {
    /// The direction that loses packets, if the other one does not.
    fn one_way(&self) -> Option<Cause> {
        match self.has_heard {
            [Some(true), Some(false)] => Some(Cause::LostThere),
            [Some(false), Some(true)] => Some(Cause::LostHere),
            _ => None,
        }
    }

    /// Finds the largest packet that passes, if only short messages pass. A message that is no longer than
    /// the path MTU is one packet.
    fn mtu(&self, measure: impl FnOnce(&[u32]) -> Result<Measured, Broken>) -> Option<Cause> {
        let mtu = self.path_mtu.filter(|_| (1..SIZES.len()).contains(&self.sizes))?;
        let mtu = u32::try_from(mtu).ok()?;
        let smaller = Mtu::ALL.iter().rev().map(|mtu| mtu.bytes()).filter(|bytes| *bytes < mtu);
        let sizes: Vec<u32> = smaller.chain([mtu]).collect();
        let passed = measure(&sizes).err()?.sizes;
        Some(Cause::Mtu { passes: *sizes.get(passed.checked_sub(1)?)?, fails: *sizes.get(passed)? })
    }
}
