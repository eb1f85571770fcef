//! Brings the ranks of a launch to one place.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use invar_core::param::PortRange;
use invar_core::rendezvous::UniqueId;
use invar_linux::interface::resolve;
use invar_linux::pmi::Client;
use invar_linux::rendezvous::secret_of;

use super::description::MeetingPoint;
use super::{Launch, Launcher, Meeting};
use crate::connect::{first_interface, over_first_interface};
use crate::device::interfaces;
use crate::error::Kind;
use crate::{Error, Hub, Settings};

/// The ports from which a job takes one by its identity, unless `INVAR_PORT_RANGE` names others. They are
/// below the ports that Linux gives out by itself.
const PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;
/// Time between two questions for a name that is not known yet.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// The key under which rank 0 tells the others where they meet.
const KEY: &str = "invar-rendezvous";

pub(super) fn meet(launch: &Launch, settings: &Settings) -> Result<Meeting, Error> {
    settings.usable()?;
    match &launch.place {
        MeetingPoint::Pmi { descriptor } => over_pmi(launch, *descriptor, settings),
        MeetingPoint::Host { hosts, job, is_secret } => {
            let port = port_of(job, settings.tcp_ports());
            // The secret of the program's settings goes before that of the environment.
            let word =
                settings.secret_of_ranks().map(str::to_owned).or_else(|| launch.word.clone());
            let is_public = word.is_none() && !is_secret;
            let word = word.unwrap_or_else(|| format!("{} {job}", launch.launcher));
            let mut addr = address(launch, hosts, settings)?;
            addr.set_port(port);
            let hub = match launch.rank {
                0 => Some(listen(launch, port, &word, settings)?),
                _ => None,
            };
            let id = UniqueId::new(addr, &secret_of(&word));
            Ok(Meeting { id, is_public, _hub: hub })
        }
    }
}

/// Rank 0 makes up a secret, and the launcher carries it to the others.
fn over_pmi(launch: &Launch, descriptor: i32, settings: &Settings) -> Result<Meeting, Error> {
    let within = settings.connect_within();
    let failed = |error| Error::io(format_args!("PMI_FD={descriptor}"), error);
    let mut client = Client::open(descriptor, within).map_err(failed)?;
    let mut hub = None;
    if launch.rank == 0 {
        let addr = first_interface(settings)?.address;
        let made = Hub::listen(addr, settings.tcp_ports(), launch.nranks, None, within)?;
        client.put(KEY, &made.id().hex().to_string()).map_err(failed)?;
        hub = Some(made);
    }
    client.barrier().map_err(failed)?;
    let text = client.get(KEY).map_err(failed)?;
    client.finalize().map_err(failed)?;
    let id = UniqueId::from_hex(&text).map_err(Kind::UniqueId)?;
    let id = UniqueId::new(over_first_interface(settings, id.addr())?, &id.secret());
    Ok(Meeting { id, is_public: false, _hub: hub })
}

/// Rank 0 listens at all addresses, since its host may have several names.
fn listen(launch: &Launch, port: u16, word: &str, settings: &Settings) -> Result<Hub, Error> {
    let hub = |ip: IpAddr| {
        let addr = SocketAddr::new(ip, port);
        let (ports, within) = (settings.tcp_ports(), settings.connect_within());
        Hub::listen(addr, ports, launch.nranks, Some(secret_of(word)), within)
    };
    // A host may have one family only.
    hub(Ipv6Addr::UNSPECIFIED.into())
        .or_else(|failed| hub(Ipv4Addr::UNSPECIFIED.into()).map_err(|_| failed))
}

/// The address of rank 0 for this rank, with its scope and any port.
fn address(launch: &Launch, hosts: &[String], settings: &Settings) -> Result<SocketAddr, Error> {
    let interfaces = interfaces()?;
    // Open MPI does not tell where rank 0 is, but where mpirun is.
    let hint = match launch.launcher {
        Launcher::OpenMpi => " (mpirun -x MASTER_ADDR=HOST names another host for rank 0)",
        _ => "",
    };
    let found = addresses(hosts, settings.connect_within())
        .map_err(|error| Error::io(format_args!("rank 0's host{hint}"), error))?;
    let holds = |ip: IpAddr| interfaces.iter().any(|on| on.holds(ip));
    // One address of rank 0's host may also exist on this host, such as that of a container bridge. So this host
    // is rank 0's host only if it has all the addresses.
    let is_own = |addr: &SocketAddr| addr.ip().is_loopback() || holds(addr.ip());
    let is_here = launch.rank == 0 || found.iter().all(|(_, addr)| is_own(addr));
    let ours = found.iter().find(|(_, addr)| is_here && holds(addr.ip()));
    if let Some((host, addr)) = ours {
        let is_local = addr.ip().is_loopback();
        // Some distributions give a host's own name an address on loopback.
        let is_asked = host == "localhost" || host.parse() == Ok(addr.ip());
        return match is_local && !is_asked {
            true => Ok(first_interface(settings)?.address),
            false => Ok(*addr),
        };
    }
    if launch.rank == 0 {
        let text = format!(
            "the ranks of {} meet on {}, and this host, with rank 0, has no such address{hint}",
            launch.launcher,
            hosts.join(" or ")
        );
        return Err(Kind::Usage(text).into());
    }
    let is_near = |ip: IpAddr| {
        let mut addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        addresses.any(|addr| addr.shares_subnet(ip))
    };
    // An address that this host has too, such as that of a container bridge, leads to this host.
    let mut others = found.iter().filter(|(_, addr)| !holds(addr.ip()));
    let near = others.clone().find(|(_, addr)| is_near(addr.ip()));
    let (_, addr) =
        near.or(others.next()).or(found.first()).expect("a name that was found has an address");
    Ok(*addr)
}

/// All addresses of the hosts, each with its host. Asks again while no name is known: a pod gets its name
/// when it starts.
fn addresses(hosts: &[String], within: Duration) -> io::Result<Vec<(String, SocketAddr)>> {
    let start = Instant::now();
    loop {
        let (mut found, mut last) = (Vec::new(), None);
        for host in hosts {
            match resolve(host, Some(0)) {
                Ok(addresses) => {
                    found.extend(addresses.into_iter().map(|addr| (host.clone(), addr)));
                }
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if found.is_empty() => {
                let is_final = error.kind() == io::ErrorKind::InvalidInput;
                if is_final || start.elapsed() + ASK_EVERY > within {
                    return Err(error);
                }
            }
            _ => return Ok(found),
        }
        thread::sleep(ASK_EVERY);
    }
}

/// The port of a job: all its ranks get the same, and two jobs seldom do.
fn port_of(job: &str, range: PortRange) -> u16 {
    let ports = if range.is_any() { PORTS } else { range.ports() };
    // FNV-1a: the same on every host, unlike the hashes of the standard library.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ports.start() + (hash % ports.len() as u64) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_on_a_port_in_the_range() {
        let range = PortRange::parse("7000-7009").unwrap();
        let ports: Vec<u16> = (0..100).map(|job| port_of(&job.to_string(), range)).collect();
        assert!(ports.iter().all(|port| (7000..=7009).contains(port)));
        assert!(ports.iter().any(|port| *port != ports[0]));
        assert_eq!(port_of("4711 0", PortRange::ANY), port_of("4711 0", PortRange::ANY));
        assert!(PORTS.contains(&port_of("4711 0", PortRange::ANY)));
    }

    #[test]
    fn a_secret_of_the_program_goes_before_that_of_the_environment() {
        let id = |settings: &Settings, rank| {
            let set = [
                ("RANK", rank),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("INVAR_COLL_SECRET", "of the environment"),
            ];
            let value = |name: &str| set.iter().find(|(other, _)| *other == name);
            let launch =
                Launch::from_lookup(|name| value(name).map(|(_, value)| (*value).to_owned()));
            launch.unwrap().unwrap().meet(settings).unwrap().id.as_bytes().to_owned()
        };
        let of_program = |name: &str| (name == "INVAR_COLL_SECRET").then(|| "mine".to_owned());
        let [none, own] = [Settings::default(), Settings::from_lookup(of_program).unwrap()];
        assert_eq!(id(&none, "1"), id(&none, "1"));
        assert_ne!(id(&none, "1"), id(&own, "1"));
        let other = Settings::default().coll_secret("another");
        assert_ne!(id(&other, "1"), id(&own, "1"));
    }

    #[test]
    fn a_link_local_address_of_rank_0_keeps_the_link_that_it_names() {
        let mut interfaces = interfaces().unwrap().into_iter();
        let lo = interfaces.find(|interface| interface.loopback).unwrap();
        let place = MeetingPoint::Host {
            hosts: vec![format!("fe80::9%{}", lo.name)],
            job: "7".into(),
            is_secret: false,
        };
        let launcher = Launcher::Torchrun;
        let launch = Launch { launcher, rank: 1, nranks: 2, place, word: None };
        let addr = launch.meet(&Settings::default()).unwrap().id.addr();
        assert_eq!(addr.to_string(), format!("[fe80::9%{}]:{}", lo.index, addr.port()));
    }

    #[test]
    fn a_rank_0_on_another_host_than_mpirun_says_how_to_name_its_host() {
        let failure = |host: &str| {
            let place = MeetingPoint::Host {
                hosts: vec![host.to_owned()],
                job: "7".into(),
                is_secret: false,
            };
            let launcher = Launcher::OpenMpi;
            let launch = Launch { launcher, rank: 0, nranks: 2, place, word: None };
            let settings = Settings::default().connect_timeout(Duration::from_millis(1));
            launch.meet(&settings).unwrap_err().to_string()
        };
        // An address for documentation, and a name that is too long for DNS.
        for host in ["198.51.100.77", &"x".repeat(64)] {
            let text = failure(host);
            assert!(text.contains(host) && text.contains("mpirun -x MASTER_ADDR=HOST"), "{text}");
        }
    }

    #[test]
    fn ranks_that_a_launcher_started_meet() {
        let settings = Settings::default();
        let rank = |rank: &'static str| {
            let settings = settings.clone();
            thread::spawn(move || {
                let set = [
                    ("RANK", rank),
                    ("WORLD_SIZE", "2"),
                    ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", "29500"),
                    ("TORCHELASTIC_RUN_ID", "ranks_that_a_launcher_started_meet"),
                ];
                let value = |name: &str| {
                    let pair = set.iter().find(|(other, _)| *other == name);
                    pair.map(|(_, value)| (*value).to_owned())
                };
                let launch = Launch::from_lookup(value).unwrap().unwrap();
                let meeting = launch.meet(&settings).unwrap();
                assert!(meeting.is_public);
                let ranks =
                    crate::Communicator::join(&meeting.id, launch.rank, launch.nranks, &settings);
                let mut sum = [1_u32 + launch.rank];
                ranks.unwrap().all_reduce_in_place(&mut sum, crate::RedOp::Sum).unwrap();
                sum[0]
            })
        };
        let ranks = ["1", "0"].map(rank);
        assert_eq!(ranks.map(|rank| rank.join().unwrap()), [3, 3]);
    }
}
