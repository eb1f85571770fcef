//! The network interfaces that Invar and NCCL choose.

use invar_core::device::NameFilter;
use invar_linux::interface::{Found, Interface, Rules, find};

use crate::doctor::host::Host;
use crate::doctor::report::{Finding, Report, Severity};

/// The beginnings of names that container engines, hypervisors and network plugins give to interfaces.
/// Such an interface leads to this host's guests only.
const VIRTUAL: [&str; 12] = [
    "docker", "virbr", "veth", "vnet", "cni", "flannel", "cali", "lxc", "lxd", "podman", "kube",
    "ifb",
];

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
    let mut is_well = true;
    let good: Vec<&str> =
        found.iter().map(|f| f.interface.name.as_str()).filter(|n| !is_virtual(n)).collect();
    let first = found[0].interface;
    for (at, Found { interface, addr }) in found.iter().enumerate() {
        let name = &interface.name;
        let found = |severity, id, what: String, costs: &str, mend| Finding {
            severity,
            id,
            subject: name.clone(),
            what,
            costs: costs.to_owned(),
            mend,
        };
        if interface.loopback && at == 0 {
            is_well = false;
            let what = format!("Invar and NCCL choose loopback ({})", addr.ip());
            let costs = "no other host reaches this one";
            let mend = match set {
                Some(_) => host.unset("NCCL_SOCKET_IFNAME"),
                None => "ip address add ADDRESS/LENGTH dev INTERFACE && ip link set INTERFACE up"
                    .to_owned(),
            };
            // A user who names loopback wants it.
            let severity = if set.is_some() { Severity::Note } else { Severity::Warn };
            report.find(found(severity, "interface-loopback", what, costs, mend));
        } else if is_virtual(name) {
            is_well = false;
            let (id, what) = match at {
                0 => (
                    "interface-virtual",
                    "Invar and NCCL choose this interface first, and it leads to guests of this host only",
                ),
                _ => (
                    "interface-virtual-too",
                    "NCCL and Invar also use this interface, which leads to guests of this host only",
                ),
            };
            let costs = "connections to other hosts fail, or wait until they time out";
            let names = if good.is_empty() {
                "INTERFACE".to_owned()
            } else {
                format!("'={}'", good.join(","))
            };
            let mend = format!("export NCCL_SOCKET_IFNAME={names}");
            report.find(found(Severity::Warn, id, format!("{what} ({})", addr.ip()), costs, mend));
        }
    }
    if is_well {
        let listed: Vec<String> =
            found.iter().map(|f| format!("{} ({})", f.interface.name, f.addr.ip())).collect();
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

fn is_virtual(name: &str) -> bool {
    VIRTUAL.iter().any(|prefix| name.starts_with(prefix)) || is_of_docker(name)
}

/// Whether this is a bridge that Docker made for a network: `br-` and 12 hexadecimal digits. Other bridges
/// `br-…` may have the host's own address.
fn is_of_docker(name: &str) -> bool {
    let id = name.strip_prefix("br-");
    id.is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
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
