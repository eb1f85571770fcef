//! The path MTUs of RoCE ports.

use crate::doctor::host::Host;
use crate::doctor::mend::set_mtu;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

/// The largest path MTU of RoCE, and an MTU of an interface that has room for it.
const MOST: (u32, u32) = (4096, 4200);

pub(super) fn check(host: &Host, report: &mut Report) {
    let devices = RdmaDevice::used(host);
    if devices.is_empty() {
        return report.well("no RDMA device to use");
    }
    let (interfaces, active) = (host.interfaces(), host.system.path_mtus());
    for device in &devices {
        for port in device.ports.iter().filter(|port| port.is_active() && port.is_roce()) {
            let title = &port.title;
            let netdev = port.netdev().unwrap_or_default();
            let interface = interfaces.iter().find(|interface| interface.name == netdev);
            let Some(interface) = interface else {
                report.unseen(format!("{title}: its network interface is not in this namespace"));
                continue;
            };
            let find = |severity, id, what, costs: String, mend| Finding {
                severity,
                id,
                subject: title.clone(),
                what,
                costs,
                mend,
            };
            let mtu = interface.mtu;
            let set = set_mtu(netdev, MOST.1, "and at the switch and all peers");
            let Some(allowed) = interface.path_mtu().map(|mtu| mtu.bytes()) else {
                let what = format!("the MTU of {netdev}, {mtu}, is below RoCE's smallest");
                report.find(find(
                    Severity::Bad,
                    "mtu-tiny",
                    what,
                    "no packet fits".to_owned(),
                    set,
                ));
                continue;
            };
            match active.get(&(device.name.clone(), port.number)) {
                Some(now) if *now < allowed => {
                    let what = format!(
                        "its path MTU is {now}, and the MTU of {netdev}, {mtu}, has room for {allowed}"
                    );
                    let costs = format!("{} times as many packets as needed", allowed / now);
                    let mend = format!(
                        "ip link set {netdev} down && ip link set {netdev} up   # the driver then \
                         reads the MTU again; this drops the interface's static routes, so do not \
                         log in over it"
                    );
                    report.find(find(Severity::Warn, "path-mtu-low", what, costs, mend));
                }
                _ if allowed < MOST.0 => {
                    let what =
                        format!("the MTU of {netdev}, {mtu}, allows a path MTU of {allowed} only");
                    let costs =
                        format!("{} times as many packets as with {}", MOST.0 / allowed, MOST.0);
                    report.find(find(Severity::Note, "mtu-small", what, costs, set));
                }
                Some(now) => report.well(format!("{title}: path MTU {now}, the largest")),
                None => report.unseen(format!("{title}: libibverbs does not tell its path MTU")),
            }
        }
    }
}
