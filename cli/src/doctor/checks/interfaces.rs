//! The network interfaces that Invar and NCCL choose.

use invar_core::device::NameFilter;
use invar_linux::interface::{Found, Interface, Rules, find};

use crate::doctor::host::Host;
use crate::doctor::mend::and_others;
use crate::doctor::netdev;
use crate::doctor::report::{Finding, Report, Severity};

pub(super) fn check(host: &Host, report: &mut Report) {
    let interfaces = match host.system.interfaces() {
        Ok(interfaces) => interfaces,
        Err(error) => return report.unseen(format!("the kernel lists no interfaces: {error}")),
    };
    let params = host.params();
    let set = host.var("NCCL_SOCKET_IFNAME");
    let (names, family) = (params.socket_ifname, params.socket_family);
    let found = match find(&interfaces, &Rules { names, family, comm_id: None }) {
        Ok(found) => found,
        Err(error) => return report.find(none(host, set, &interfaces, &error.to_string())),
    };
    let (detours, direct): (Vec<Found>, Vec<Found>) =
        found.iter().copied().partition(|found| is_detour(&found.interface.name));
    let first = found[0].interface;
    if first.loopback {
        report.find(Finding {
            // A user who names loopback wants it.
            severity: if set.is_some() { Severity::Note } else { Severity::Warn },
            id: "interface-loopback",
            subject: first.name.clone(),
            what: format!("Invar and NCCL choose loopback ({})", found[0].addr.ip()),
            costs: "no other host reaches this one".to_owned(),
            mend: match set {
                Some(_) => host.unset("NCCL_SOCKET_IFNAME"),
                None => "ip address add ADDRESS/LENGTH dev INTERFACE && ip link set INTERFACE up"
                    .to_owned(),
            },
        });
    }
    let good = direct.iter().map(|found| found.interface).filter(|interface| !interface.loopback);
    let good: Vec<&str> = good.map(|interface| interface.name.as_str()).collect();
    let good = match good.is_empty() {
        true => "INTERFACE".to_owned(),
        false => format!("'={}'", good.join(",")),
    };
    let (chosen, others) = detours.split_at(usize::from(is_detour(&first.name)));
    // A user who names such an interface wants it.
    let is_named = set.is_some_and(|list| !list.starts_with('^'));
    let mut find = |id, how: &str, found: &[Found]| {
        let (lead, costs) = consequence(found);
        let listed: Vec<String> = found.iter().map(with_address).collect();
        let names: Vec<String> = found.iter().map(|found| found.interface.name.clone()).collect();
        report.find(Finding {
            severity: if is_named { Severity::Note } else { Severity::Warn },
            id,
            subject: and_others(&names),
            what: format!("Invar and NCCL {how} {lead}: {}", and_others(&listed)),
            costs: costs.to_owned(),
            mend: format!("export NCCL_SOCKET_IFNAME={good}"),
        });
    };
    if !chosen.is_empty() {
        find("interface-virtual", "first choose an interface that leads", chosen);
    }
    // A host of Kubernetes has an interface for each of its containers.
    if !others.is_empty() {
        find("interface-virtual-too", "also use interfaces that lead", others);
    }
    if detours.is_empty() && !first.loopback {
        let listed: Vec<String> = found.iter().map(with_address).collect();
        report.well(format!("interfaces, the first before the others: {}", listed.join(", ")));
    }
    if !first.loopback && interfaces.iter().all(|interface| !interface.loopback || !interface.up) {
        report.find(Finding {
            severity: Severity::Warn,
            id: "loopback-down",
            subject: "lo".to_owned(),
            what: "loopback is down".to_owned(),
            costs: "`invar perf` and ranks of one host do not reach each other at 127.0.0.1"
                .to_owned(),
            mend: "ip link set lo up".to_owned(),
        });
    }
}

/// Whether the way over an interface leads to no other host, or there by a tunnel.
fn is_detour(name: &str) -> bool {
    netdev::is_of_guests(name) || netdev::is_tunnel(name)
}

/// Where these interfaces lead, and what that costs.
fn consequence(found: &[Found<'_>]) -> (&'static str, &'static str) {
    let of_guests =
        found.iter().filter(|found| netdev::is_of_guests(&found.interface.name)).count();
    match of_guests {
        0 => (
            "into a tunnel",
            "messages to other hosts take the slow way through the tunnel, or do not arrive",
        ),
        some if some < found.len() => (
            "into a tunnel, or to guests of this host only",
            "messages to other hosts take the slow way through a tunnel, or connections to them fail, or wait \
             until they time out",
        ),
        _ => (
            "to guests of this host only",
            "connections to other hosts fail, or wait until they time out",
        ),
    }
}

fn with_address(found: &Found<'_>) -> String {
    format!("{} ({})", found.interface.name, found.addr.ip())
}

fn none(host: &Host, set: Option<&str>, interfaces: &[Interface], error: &str) -> Finding {
    let named = |text: &str| {
        let filter = NameFilter::parse(text).unwrap_or_default();
        interfaces.iter().find(|interface| filter.matches(&interface.name, None))
    };
    let mend = match set {
        Some(text) => match named(text) {
            Some(interface) => {
                format!("ip link set {} up   # and give it an address", interface.name)
            }
            None => host.unset("NCCL_SOCKET_IFNAME"),
        },
        None => {
            "ip link set INTERFACE up && ip address add ADDRESS/LENGTH dev INTERFACE".to_owned()
        }
    };
    Finding {
        severity: Severity::Bad,
        id: "interface-none",
        subject: if set.is_some() { "NCCL_SOCKET_IFNAME".to_owned() } else { String::new() },
        what: error.to_owned(),
        costs: "Invar and NCCL do not start: every transport needs TCP".to_owned(),
        mend,
    }
}
