//! The GID tables of RoCE ports.

use std::net::IpAddr;

use invar_linux::interface::{Interface, InterfaceAddress, is_link_local};

use crate::doctor::host::Host;
use crate::doctor::mend::sysctl;
use crate::doctor::rdma::{Gid, RdmaDevice, RdmaPort};
use crate::doctor::report::{Finding, Report, Severity};

pub(super) fn check(host: &Host, report: &mut Report) {
    let devices = RdmaDevice::used(host);
    let is_roce = |port: &&RdmaPort| port.is_roce() && port.is_active();
    let ports: Vec<&RdmaPort> =
        devices.iter().flat_map(|device| &device.ports).filter(is_roce).collect();
    if ports.is_empty() {
        return report.well("no active port of RoCE, which alone needs a GID of an address");
    }
    let interfaces = host.interfaces();
    let mut without_v2: Vec<&str> =
        ports.iter().filter(|port| lacks_v2(port)).map(|port| port.device()).collect();
    without_v2.dedup();
    for port in &ports {
        check_port(host, port, &without_v2, &interfaces, report);
    }
    for (at, port) in ports.iter().enumerate() {
        let other =
            ports[..at].iter().find(|other| share_a_subnet(host, [port, other], &interfaces));
        other.into_iter().for_each(|other| report.find(shared(port, other)));
    }
}

/// Whether two ports have addresses of one subnet on different interfaces, and the kernel answers there for
/// the address of either on the other.
fn share_a_subnet(host: &Host, ports: [&RdmaPort; 2], interfaces: &[Interface]) -> bool {
    let netdevs = ports.map(|port| port.netdev().unwrap_or_default());
    let ignore = |of: &str| host.proc.known(&format!("sys/net/ipv4/conf/{of}/arp_ignore"));
    let answers =
        |of: &str| [ignore("all"), ignore(of)].iter().all(|now| now.as_deref() == Some("0"));
    let addresses = ports.map(|port| {
        let ips = port.gids.iter().filter(|gid| gid.is_roce_v2).map(ip).filter(IpAddr::is_ipv4);
        let ips: Vec<IpAddr> = ips.collect();
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        addresses.filter(|address| ips.contains(&address.ip)).collect::<Vec<_>>()
    });
    let [ours, theirs] = addresses;
    let share = |ours: &InterfaceAddress| theirs.iter().any(|theirs| ours.shares_subnet(theirs.ip));
    netdevs[0] != netdevs[1] && ours.into_iter().any(share) && netdevs.into_iter().any(answers)
}

fn shared(port: &RdmaPort, other: &RdmaPort) -> Finding {
    Finding {
        severity: Severity::Warn,
        id: "gid-shared-subnet",
        subject: port.title.clone(),
        what: format!(
            "it and {} have addresses in one subnet, and the kernel answers ARP for both on either",
            other.title
        ),
        costs: "a peer may send to the wrong card, which drops the packets (error 12)".to_owned(),
        mend: format!(
            "{}; or a subnet for each device; then at the peers: ip neigh flush all",
            sysctl("net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
        ),
    }
}

/// The address that a GID stands for.
fn ip(gid: &Gid) -> IpAddr {
    gid.address.to_ipv4_mapped().map_or(IpAddr::V6(gid.address), IpAddr::V4)
}

/// Whether a port has GIDs of addresses, and none of them is of RoCE v2. The kernel makes a GID of each address,
/// and of each RoCE version that the driver knows.
fn lacks_v2(port: &RdmaPort) -> bool {
    let has_address = port.gids.iter().any(|gid| !is_link_local(&ip(gid)));
    has_address && port.gids.iter().all(|gid| !gid.is_roce_v2)
}

/// `without_v2` names all devices with a port that [`lacks_v2`].
fn check_port(
    host: &Host,
    port: &RdmaPort,
    without_v2: &[&str],
    interfaces: &[Interface],
    report: &mut Report,
) {
    let netdev = port.netdev().unwrap_or("INTERFACE");
    let find = |severity, id, what: String, costs: &str, mend: String| Finding {
        severity,
        id,
        subject: port.title.clone(),
        what,
        costs: costs.to_owned(),
        mend,
    };
    let add = format!("ip address add ADDRESS/LENGTH dev {netdev}");
    if port.gids.is_empty() {
        let what = "its GID table is empty: its interface has no address, or is in another network \
                    namespace";
        let costs = "Invar and NCCL do not use this port";
        return report.find(find(Severity::Bad, "gid-none", what.to_owned(), costs, add));
    }
    let v2: Vec<&Gid> = port.gids.iter().filter(|gid| gid.is_roce_v2).collect();
    if v2.is_empty() {
        let what = "none of its GIDs is of RoCE v2".to_owned();
        let costs = "RoCE v1 is not routed, and peers with RoCE v2 do not answer (error 12)";
        let mend = if lacks_v2(port) {
            format!(
                "{}   # the driver makes no GID of RoCE v2 of the addresses: update driver and \
                 firmware, or replace the card",
                RdmaDevice::leave_out(host, without_v2)
            )
        } else {
            format!("{add}   # the kernel makes a GID of each address")
        };
        report.find(find(Severity::Bad, "gid-no-roce-v2", what, costs, mend));
    } else if v2.iter().all(|gid| is_link_local(&ip(gid))) {
        let what = format!("all its GIDs of RoCE v2 are link-local, as {}", ip(v2[0]));
        let costs = "it reaches only peers of its own link, and none behind a router";
        report.find(find(Severity::Warn, "gid-link-local", what, costs, add));
    }
    let has_good = v2.iter().any(|gid| !is_link_local(&ip(gid)) && is_held(gid, interfaces));
    let strays = strays(port, &v2, has_good, interfaces);
    let mut is_well = has_good && strays.is_empty();
    strays.into_iter().for_each(|finding| report.find(finding));
    if let Some(index) = host.params().ib_gid_index {
        is_well &= chosen(host, port, index, interfaces, report);
    }
    if is_well {
        report.well(format!("{}: RoCE v2 at {}", port.title, listed(&v2)));
    }
}

/// Whether an interface of this network namespace has the GID's address.
fn is_held(gid: &Gid, interfaces: &[Interface]) -> bool {
    interfaces.iter().any(|interface| interface.holds(ip(gid)))
}

/// Finds GIDs of RoCE v2 whose address this network namespace does not have. If the port also has a good
/// GID, Invar takes that one. A device shows the GIDs of all namespaces, so others may be there on purpose.
fn strays(port: &RdmaPort, v2: &[&Gid], has_good: bool, interfaces: &[Interface]) -> Vec<Finding> {
    let is_stray = |gid: &&&Gid| !is_link_local(&ip(gid)) && !is_held(gid, interfaces);
    let is_here = |gid: &&Gid| interfaces.iter().any(|interface| interface.name == gid.netdev);
    let strays = v2.iter().filter(is_stray).copied();
    let (stale, foreign): (Vec<&Gid>, Vec<&Gid>) = strays.partition(is_here);
    let costs = match has_good {
        true => "Invar takes another GID; programs that choose one of these end with error 12",
        false => "connections end with error 12 after half a minute",
    };
    let find = |id, with_good, gids: &[&Gid], why: &str, mend: String| {
        let netdev = gids.first()?.netdev.as_str();
        let netdev = if netdev.is_empty() { "its interface" } else { netdev };
        Some(Finding {
            severity: if has_good { with_good } else { Severity::Bad },
            id,
            subject: port.title.clone(),
            what: format!("it has GIDs {}, but {netdev} {why}", listed(gids)),
            costs: costs.to_owned(),
            mend,
        })
    };
    // The kernel makes the table anew when the interface goes up.
    let netdev = stale.first().map_or("INTERFACE", |gid| gid.netdev.as_str());
    let again = format!(
        "ip link set {netdev} down && ip link set {netdev} up   # this drops the interface's static \
         routes; do not log in over it"
    );
    let share = "docker run --network=host …   # Kubernetes: hostNetwork, or an interface of the \
                 device by multus";
    let why = "no longer has these addresses";
    let stale = find("gid-stale", Severity::Warn, &stale, why, again);
    let why = "is not in this network namespace";
    let foreign = find("gid-foreign", Severity::Note, &foreign, why, share.to_owned());
    stale.into_iter().chain(foreign).collect()
}

/// GIDs as `[3] 10.0.0.1, [4] 10.0.0.2`.
fn listed(gids: &[&Gid]) -> String {
    let one = |gid: &&Gid| format!("[{}] {}", gid.index, ip(gid));
    gids.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Checks the entry that `NCCL_IB_GID_INDEX` chooses, and returns whether it is a good one.
fn chosen(
    host: &Host,
    port: &RdmaPort,
    index: u8,
    interfaces: &[Interface],
    report: &mut Report,
) -> bool {
    let entry = port.gids.iter().find(|gid| gid.index == index);
    let (severity, id, what) = match entry {
        None => (Severity::Bad, "gid-index-empty", format!("{index} is an empty entry")),
        Some(gid) if !gid.is_roce_v2 => {
            (Severity::Warn, "gid-index-v1", format!("{index} is {} of RoCE v1", ip(gid)))
        }
        Some(gid) if is_link_local(&ip(gid)) => {
            (Severity::Warn, "gid-index-link-local", format!("{index} is link-local, {}", ip(gid)))
        }
        Some(gid) if !is_held(gid, interfaces) => {
            let what = format!("{index} is {}, which no interface here has,", ip(gid));
            (Severity::Bad, "gid-index-stray", what)
        }
        Some(_) => return true,
    };
    report.find(Finding {
        severity,
        id,
        subject: "NCCL_IB_GID_INDEX".to_owned(),
        what: format!("{what} of {}", port.title),
        costs: "the port is left out, or its connections end with error 12".to_owned(),
        mend: format!(
            "{}   # Invar then chooses an entry of RoCE v2",
            host.unset("NCCL_IB_GID_INDEX")
        ),
    });
    false
}
