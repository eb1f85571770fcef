//! Sets up a communicator: which rank is on which host, and how the ranks reach each other.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use invar_core::coll::Order;
use invar_linux::interface::Found;
use invar_linux::processors::{self, BITS_BYTES};
use invar_linux::rendezvous::{Bootstrap, this_member};

use super::backoff::Backoff;
use super::board::Board;
use super::choose::{Facts, Tuning, pair_chunk_bytes};
use super::engine::Engine;
use super::links::Links;
use super::local::Local;
use super::net::{NetSettings, Network};
use super::pending_link::{CHANNELS_PER_DEVICE, Connector};
use super::tags;
use crate::device::interfaces;
use crate::error::Kind;
use crate::{Device, DeviceInfo, DeviceKind, Error, Settings, Survey};

/// Chunk sizes are multiples of this many bytes.
const CHUNK_ALIGN: usize = 64;

/// Version of the collectives' protocol; all ranks of a communicator must have the same version.
const VERSION: u32 = 10;

/// The facts that a rank tells the others about itself.
///
/// ```text
/// 0 version u32, little-endian   4 host, as this_member has it   36 whether it shares memory
/// 37 the processors that it may run on, 128 bytes, a bit each
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
struct About {
    host: [u8; 32],
    shares_memory: bool,
    processors: [u8; BITS_BYTES],
}

/// Creates a rank's engine, together with all other ranks. Also returns a description of the transport.
pub(super) fn engine(
    bootstrap: Arc<Bootstrap>,
    board: Arc<Board>,
    settings: &Settings,
) -> Result<(Engine, String), Error> {
    let within = settings.connect_within();
    let (rank, nranks) = (bootstrap.rank(), bootstrap.nranks());
    let ours = About {
        host: this_member().host,
        shares_memory: !settings.coll.shm_disable,
        processors: processors::allowed_bits(),
    };
    let all =
        bootstrap.all_gather(tags::ABOUT, &ours.to_bytes(), within).map_err(Error::bootstrap)?;
    let all = all.iter().zip(0..).map(|(about, rank)| About::parse(rank, about));
    let all = all.collect::<Result<Vec<About>, Error>>()?;
    let nodes = nodes(&all);
    let here = nodes.iter().find(|node| node.contains(&rank)).expect("every rank is on a node");
    let local = nodes.len() == 1;
    let (mut nchannels, mut tuning, mut connector) = (1, Tuning::SHARED_MEMORY, None);
    let mut transports = Vec::new();
    if here.len() > 1 {
        transports.push("shared memory".to_owned());
    }
    if !local {
        let devices = devices(settings, bootstrap.local_ip())?;
        transports.push(transport(&devices));
        let ndevices = devices.len() as u32;
        let counts = bootstrap.all_gather(tags::CHANNELS, &ndevices.to_le_bytes(), within);
        let counts = counts.map_err(Error::bootstrap)?;
        let count = |bytes: &Vec<u8>| bytes.first_chunk().map_or(1, |n| u32::from_le_bytes(*n));
        nchannels = CHANNELS_PER_DEVICE * counts.iter().map(count).min().unwrap_or(1).clamp(1, 16);
        let is_tcp = devices.iter().all(|device| device.info().kind == DeviceKind::Socket);
        // If some ranks share memory, the slots in memory and the slots over TCP must have the same
        // size.
        let tcp_alone = is_tcp && nchannels == CHANNELS_PER_DEVICE && nodes.len() == all.len();
        tuning = if tcp_alone { Tuning::TCP } else { Tuning::NETWORK };
        let mut net = NetSettings {
            slot_bytes: tuning.slot_bytes,
            communicator: bootstrap.communicator(),
            rank,
            device: place_on_host(&all, rank),
            ..NetSettings::from(
                settings.clone().key(*bootstrap.key()).truncate(false).judging_waits(),
            )
        };
        // The communicator dumps the links together with its other state.
        net.connections.links.dump_signal = None;
        let network = Network::open(devices, &net, bootstrap.abort())?;
        board.joined(network.dumper());
        connector = Some(Connector { network, ndevices, bootstrap: Arc::clone(&bootstrap) });
    }
    let memory = match here.len() {
        1 => None,
        _ => Some(Local::share(&bootstrap, here.clone(), nchannels, tuning.slot_bytes, within)?),
    };
    let crowded = is_crowded(&all, &ours.host);
    // All ranks must choose the same chunks, so the host with the most ranks decides.
    let host_ranks = nodes.iter().map(Vec::len).max().unwrap_or(1);
    let pair_chunk_bytes = pair_chunk_bytes(tuning.slot_bytes, host_ranks, nchannels);
    let p2p_chunk_bytes = p2p_chunk_bytes(settings, pair_chunk_bytes);
    let facts = Facts { nranks, nchannels, tuning, pair_chunk_bytes, p2p_chunk_bytes };
    board.chooses_by(facts);
    let engine = Engine {
        links: Links::new(nranks, nchannels, memory.as_ref(), connector),
        facts,
        orders: (0..nchannels)
            .map(|channel| Arc::from(order(&nodes, channel)))
            .map(|order| Order::new(order).expect("each rank is there once"))
            .collect(),
        last: None,
        copied: Vec::new(),
        backoff: Backoff::new(settings.spin(), crowded, settings.coll.timeout),
        bootstrap,
        board,
        deliver_within: settings.recovers_within(),
        has_left: false,
    };
    let transport = match transports.is_empty() {
        true => "nothing: there is one rank".to_owned(),
        false => transports.join(" and "),
    };
    log::info!("rank {rank} of {nranks}: {nchannels} channels over {transport}");
    Ok((engine, transport))
}

/// Describes the transport of devices of one kind, and lists the devices' names.
fn transport(devices: &[Device]) -> String {
    let names: Vec<&str> = devices.iter().map(|device| device.info().name.as_str()).collect();
    let kind = devices.first().map(|device| device.info().kind.to_string());
    format!("{} ({})", kind.unwrap_or_default(), names.join(", "))
}

/// Returns whether a host has more ranks than processors that the ranks may use. Each rank may be bound
/// to a few processors.
fn is_crowded(all: &[About], host: &[u8; 32]) -> bool {
    let here = all.iter().filter(|about| about.host == *host);
    let processors = here.clone().fold([0; BITS_BYTES], |all, about| {
        std::array::from_fn(|byte| all[byte] | about.processors[byte])
    });
    let nprocessors: u32 = processors.iter().map(|byte| byte.count_ones()).sum();
    here.count() > nprocessors as usize
}

/// Rounds the chunk size up to whole cache lines, and so to whole elements. It is at most `bytes_max`.
fn p2p_chunk_bytes(settings: &Settings, bytes_max: usize) -> usize {
    let set = settings.coll.chunk_bytes.map(|bytes| bytes as usize);
    set.map_or(bytes_max, |bytes| bytes.next_multiple_of(CHUNK_ALIGN).min(bytes_max))
}

/// Returns the number of lower ranks on the same host.
fn place_on_host(all: &[About], rank: u32) -> u32 {
    let (before, from) = all.split_at(rank as usize);
    before.iter().filter(|about| about.host == from[0].host).count() as u32
}

/// Groups the ranks that share memory. The groups are in the order of their first ranks.
fn nodes(all: &[About]) -> Vec<Vec<u32>> {
    let mut nodes: Vec<(About, Vec<u32>)> = Vec::new();
    for (about, rank) in all.iter().zip(0..) {
        let share = |of: &About| of.host == about.host && of.shares_memory && about.shares_memory;
        match nodes.iter_mut().find(|(of, _)| share(of)) {
            Some((_, ranks)) => ranks.push(rank),
            None => nodes.push((*about, vec![rank])),
        }
    }
    nodes.into_iter().map(|(_, ranks)| ranks).collect()
}

/// Returns the ring of a channel, node after node. For each device, the ring starts at another rank
/// within each node, so that each rank drives some of the devices.
fn order(nodes: &[Vec<u32>], channel: u32) -> Vec<u32> {
    let turned = |node: &Vec<u32>| {
        let mut node = node.clone();
        let turns = (channel / CHANNELS_PER_DEVICE) as usize % node.len();
        node.rotate_left(turns);
        node
    };
    nodes.iter().flat_map(turned).collect()
}

/// Opens a named device. A single software NIC opens at the address `towards` if it has that address, else
/// at one of the same family.
fn open_towards(info: &DeviceInfo, towards: IpAddr, settings: &Settings) -> Result<Device, Error> {
    settings.check(info)?;
    if info.kind != DeviceKind::Soft || !info.rails.is_empty() {
        return Device::open_for(info, settings);
    }
    let like = info.addresses.iter().find(|ip| ip.is_ipv4() == towards.is_ipv4());
    let address = match info.addresses.contains(&towards) {
        true => towards,
        false => like.copied().unwrap_or(info.address),
    };
    Device::open_at_for(address, settings)
}

/// Opens the devices that carry the data. If `coll_nic` names a device, the function opens only this
/// device. Otherwise it opens all NICs with a link that the program provides. Without any, it opens all
/// RDMA devices with a link. Without these, it opens the software NIC, or TCP, on one interface.
/// `NCCL_SOCKET_IFNAME` names the interface. By default it is the interface with the address `towards`,
/// which leads to the rendezvous.
fn devices(settings: &Settings, towards: IpAddr) -> Result<Vec<Device>, Error> {
    if let Some(name) = &settings.coll_nic {
        let info = Device::find(name, settings)?;
        return Ok(vec![open_towards(&info, towards, settings)?]);
    }
    let Survey { devices, left_out } = Device::survey(settings)?;
    for kind in [DeviceKind::Custom, DeviceKind::Verbs] {
        let is_usable = |info: &&DeviceInfo| info.kind == kind && info.up && settings.takes(kind);
        let mut nics = devices.iter().filter(is_usable).peekable();
        if nics.peek().is_some() {
            return nics.map(|info| Device::open_for(info, settings)).collect();
        }
    }
    let is_soft = settings.takes(DeviceKind::Soft);
    if !is_soft && !settings.takes(DeviceKind::Socket) {
        let (asked, why) = (settings.transport().as_str(), left_out.join("; "));
        let text = format!("INVAR_TRANSPORT={asked}: there is no such device; {why}");
        return Err(Kind::Setting(text).into());
    }
    let mut interfaces = interfaces()?;
    if settings.socket_ifname.is_empty() {
        interfaces.retain(|interface| interface.holds(towards));
    }
    let found = settings.allowed_interfaces(&interfaces).map_err(|error| {
        Kind::Setting(format!("no allowed interface reaches the rendezvous at {towards}: {error}"))
    })?;
    let Found { interface, addr } =
        *found.iter().find(|found| found.interface.holds(towards)).unwrap_or(&found[0]);
    let is_way = interface.holds(towards) && settings.socket_family.takes(towards);
    let address = if is_way { towards } else { addr.ip() };
    let device = match is_soft {
        true => Device::open_at_for(address, settings),
        false => {
            let addr = SocketAddr::new(address, 0);
            Device::open_socket_on(Found { interface, addr }, settings)
        }
    };
    Ok(vec![device?])
}

impl About {
    fn to_bytes(self) -> Vec<u8> {
        let About { host, shares_memory, processors } = self;
        [&VERSION.to_le_bytes()[..], &host, &[shares_memory.into()], &processors].concat()
    }

    fn parse(rank: u32, bytes: &[u8]) -> Result<Self, Error> {
        let fields =
            bytes.split_first_chunk().map(|(version, rest)| (u32::from_le_bytes(*version), rest));
        let about = fields.filter(|(version, _)| *version == VERSION).and_then(|(_, rest)| {
            let (host, rest) = rest.split_first_chunk()?;
            let ([shares], rest) = rest.split_first_chunk()?;
            let processors = *rest.first_chunk()?;
            Some(About { host: *host, shares_memory: *shares != 0, processors })
        });
        match about {
            Some(about) => Ok(about),
            None => {
                let theirs = fields.map_or(0, |(version, _)| version);
                let text = format!(
                    "its collectives are of version {theirs}, this rank's of {VERSION}; run the \
                     same Invar everywhere"
                );
                Err(Kind::Rank { rank, text }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(host: u8, shares_memory: bool) -> About {
        About { host: [host; 32], shares_memory, processors: [0; BITS_BYTES] }
    }

    fn bound(host: u8, processors: u8) -> About {
        let mut about = about(host, true);
        about.processors[1] = processors;
        about
    }

    #[test]
    fn ranks_that_are_bound_to_processors_of_their_own_are_no_crowd() {
        let is_crowded = |all: &[About]| is_crowded(all, &[1; 32]);
        assert!(!is_crowded(&[bound(1, 0b01), bound(1, 0b10)]));
        assert!(is_crowded(&[bound(1, 0b10), bound(1, 0b10)]), "two on one");
        assert!(!is_crowded(&[bound(1, 0b11), bound(1, 0b11)]));
        assert!(is_crowded(&[bound(1, 0b11), bound(1, 0b11), bound(1, 0b11)]));
        assert!(!is_crowded(&[bound(1, 0b01), bound(2, 0b01)]), "of another host");
    }

    #[test]
    fn ranks_of_a_host_are_counted_whether_they_share_memory_or_not() {
        let all = [about(1, true), about(2, true), about(1, false), about(1, true)];
        assert_eq!([0, 1, 2, 3].map(|rank| place_on_host(&all, rank)), [0, 0, 1, 2]);
    }

    #[test]
    fn ranks_of_a_host_are_a_node_unless_one_shares_no_memory() {
        let all =
            [about(1, true), about(2, true), about(1, true), about(1, false), about(1, false)];
        assert_eq!(nodes(&all), [vec![0, 2], vec![1], vec![3], vec![4]]);
    }

    #[test]
    fn each_device_has_a_ring_that_enters_a_node_elsewhere() {
        let nodes = [vec![0, 2, 4], vec![1, 3]];
        let rings: Vec<_> = (0..6).map(|channel| order(&nodes, channel)).collect();
        assert_eq!(rings[0], [0, 2, 4, 1, 3]);
        assert_eq!(rings[1], rings[0]);
        assert_eq!(rings[2], [2, 4, 0, 3, 1]);
        assert_eq!(rings[4], [4, 0, 2, 1, 3]);
    }

    #[test]
    fn what_a_rank_says_of_itself_is_understood_or_named() {
        let ours = about(7, true);
        assert!(About::parse(0, &ours.to_bytes()).unwrap() == ours);
        let mut newer = ours.to_bytes();
        newer[0] += 1;
        let error = About::parse(3, &newer).err().unwrap().to_string();
        let named = format!("rank 3: its collectives are of version {}", VERSION + 1);
        assert!(error.starts_with(&named), "{error}");
        assert!(About::parse(3, b"short").is_err());
    }
}
