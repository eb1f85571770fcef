//! Rules of nftables that drop Invar's packets.

use std::ops::RangeInclusive;

use invar_core::param::{PortRange, TransportChoice, Wire};
use invar_core::roce;
use invar_linux::interface::is_link_local;

use crate::doctor::host::Host;
use crate::doctor::nft::{Dropping, Packets, Ruleset};
use crate::doctor::rdma::{RdmaDevice, RdmaPort};
use crate::doctor::report::{Finding, Report, Severity};

/// Where the kernel filters packets from other hosts, and to them.
const HOOKS: [&str; 3] = ["prerouting", "input", "output"];
/// The check looks at the first so many ports of a range that is set: Invar takes the first free one.
const PORTS_MAX: usize = 64;

/// Ports that other hosts must reach.
struct Ports {
    protocol: &'static str,
    id: &'static str,
    subject: String,
    range: PortRange,
    /// A range to choose if the system picks the ports.
    example: &'static str,
    is_needed: bool,
    costs: &'static str,
}

pub(super) fn check(host: &Host, report: &mut Report) {
    let rules = host.system.packet_filter().and_then(|text| Ruleset::parse(&text));
    let rules = match rules {
        Ok(rules) => rules,
        Err(why) => return report.unseen(format!("the rules of nftables: {why}")),
    };
    let mut is_well = true;
    for ports in all_ports(host) {
        for hook in HOOKS {
            let found = dropped(host, &rules, hook, &ports);
            is_well &= found.is_none();
            found.into_iter().for_each(|finding| report.find(finding));
        }
    }
    if is_well {
        report.well("no rule of nftables drops the packets of Invar, as far as the check can tell");
    }
}

/// The ports that Invar and the kernel's RDMA devices in software use. Packets of RDMA cards do not pass the
/// kernel's filter.
fn all_ports(host: &Host) -> Vec<Ports> {
    let params = host.params();
    let roce_port = PortRange::only(roce::UDP_PORT);
    let udp = |subject: &str, range, chosen: &[TransportChoice], costs| Ports {
        protocol: "udp",
        id: "firewall-udp",
        subject: subject.to_owned(),
        range,
        example: "21000-21100",
        is_needed: chosen.contains(&params.transport),
        costs,
    };
    let mut all = Vec::new();
    let is_rxe = |device: &&RdmaDevice| {
        device.is_software(host) && device.ports.iter().any(RdmaPort::is_roce)
    };
    if let Some(device) = RdmaDevice::used(host).iter().find(is_rxe) {
        let costs = "connections over this device fail with error 12";
        let chosen = [TransportChoice::Auto, TransportChoice::Ib];
        all.push(udp(&device.name, roce_port, &chosen, costs));
    }
    let soft_port = match params.wire {
        Wire::Nccl214 if params.soft_port.is_any() => roce_port,
        _ => params.soft_port,
    };
    let costs = "connections over a software NIC fail with error 12";
    all.push(udp("INVAR_SOFT_PORT", soft_port, &[TransportChoice::Soft], costs));
    all.push(Ports {
        protocol: "tcp",
        id: "firewall-tcp",
        subject: "INVAR_PORT_RANGE".to_owned(),
        range: params.port_range,
        example: "20000-20100",
        is_needed: true,
        costs: "connections with other hosts time out: those over NICs begin with TCP too",
    });
    all
}

fn dropped(host: &Host, rules: &Ruleset, hook: &str, of: &Ports) -> Option<Finding> {
    let Ports { protocol, id, subject, range, example, is_needed, costs } = of;
    let is_ipv6 = is_ipv6_only(host);
    let packets = |ports| Packets { protocol, is_ipv6, ports };
    let (at, dropping) = if range.is_any() {
        let dropping = rules.dropping(hook, &packets(picked(host)));
        ("every port that the system picks".to_owned(), dropping?)
    } else {
        let found = |port| Some((port, rules.dropping(hook, &packets(port..=port))?));
        let mut unsure = None;
        let sure = range.ports().take(PORTS_MAX).filter_map(found).find_map(|found| {
            if found.1.is_sure {
                return Some(found);
            }
            unsure.get_or_insert(found);
            None
        });
        let (port, dropping) = sure.or(unsure)?;
        (format!("port {port}"), dropping)
    };
    let Dropping { chain, by, is_sure } = dropping;
    // firewalld writes its table anew, and would lose a rule of nft. Its zones are of the hook input.
    let is_firewalld = chain.split(' ').nth(1) == Some("firewalld") && hook == "input";
    let accept = |ports: &str| match is_firewalld {
        true => format!(
            "firewall-cmd --permanent --add-port={ports}/{protocol} && firewall-cmd --reload   # with \
             --zone=ZONE, unless the interface is in the default zone"
        ),
        false => format!(
            "nft insert rule {chain} {protocol} dport {ports} accept   # for ever: a line in /etc/nftables.conf"
        ),
    };
    let (drops, unless) = match is_sure {
        true => ("drops", ""),
        false => ("may drop", "; earlier rules may accept some of them"),
    };
    Some(Finding {
        // An administrator may let the hosts of the cluster pass.
        severity: if *is_needed && is_sure { Severity::Bad } else { Severity::Note },
        id,
        subject: subject.clone(),
        what: format!(
            "nftables' chain {chain} at the hook {hook} {drops} {} to {at}: {by}{unless}",
            protocol.to_uppercase()
        ),
        costs: (*costs).to_owned(),
        mend: match range.is_any() {
            true => format!("export {subject}={example}; {}", accept(example)),
            false => accept(&range.to_string()),
        },
    })
}

/// Whether other hosts reach this one over IPv6 alone.
fn is_ipv6_only(host: &Host) -> bool {
    let interfaces = host.interfaces();
    let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
    let mut others =
        addresses.filter(|address| !is_link_local(&address.ip) && !address.ip.is_loopback());
    others.clone().next().is_some() && others.all(|address| address.ip.is_ipv6())
}

/// The ports from which the system picks.
fn picked(host: &Host) -> RangeInclusive<u16> {
    let text = host.proc.known("sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ports: Vec<u16> = text.split_whitespace().filter_map(|port| port.parse().ok()).collect();
    match ports[..] {
        [first, last] => first..=last,
        _ => 32768..=60999,
    }
}
