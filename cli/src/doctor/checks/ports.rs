//! The ports of RDMA devices: their links and the speed of those.

use std::collections::BTreeMap;

use invar_core::device::NameFilter;

use crate::doctor::host::Host;
use crate::doctor::rdma::{Fabric, RdmaDevice, RdmaPort};
use crate::doctor::report::{Finding, Report, Severity};

pub(super) fn check(host: &Host, report: &mut Report) {
    let devices = RdmaDevice::all(host);
    if devices.is_empty() {
        return report.well("no RDMA device");
    }
    filter(host, &devices, report);
    left_out(host, &devices, report);
    let devices = RdmaDevice::used(host);
    let ports = || devices.iter().flat_map(|device| &device.ports);
    let has_active = ports().any(RdmaPort::is_active);
    // The ports of a card are the functions of one PCI device, or several ports of one function.
    let card = |device: &RdmaDevice| {
        let address = host.sys.link_name(device.pci_file("").trim_end_matches('/'))?;
        Some(address.rsplit_once('.')?.0.to_owned())
    };
    let active = devices.iter().filter(|device| device.ports.iter().any(RdmaPort::is_active));
    let active_cards: Vec<String> = active.filter_map(card).collect();
    let is_asked_for = host.var("NCCL_IB_HCA").is_some_and(|list| !list.starts_with('^'));
    for device in &devices {
        let is_spare =
            !is_asked_for && card(device).is_some_and(|card| active_cards.contains(&card));
        for port in &device.ports {
            match port.state.as_str() {
                "" => report.unseen(format!("{}: /sys does not show its state", port.title)),
                "ACTIVE" => link(port, report),
                _ => report.find(down(port, has_active, is_spare)),
            }
        }
    }
    compare(host, &devices, report);
}

/// Names the ports that Invar and NCCL do not use: those that `NCCL_IB_HCA` leaves out, and those of a
/// network that is neither InfiniBand nor RoCE.
fn left_out(host: &Host, devices: &[RdmaDevice], report: &mut Report) {
    let taken = RdmaDevice::taken(host);
    let is_taken = |port: &RdmaPort| {
        taken.iter().flat_map(|device| &device.ports).any(|taken| taken.title == port.title)
    };
    for device in devices {
        for port in device.ports.iter().filter(|port| !is_taken(port)) {
            report.well(format!("{}: NCCL_IB_HCA leaves it out", port.title));
        }
    }
    for device in &taken {
        for port in device.ports.iter().filter(|port| !port.is_infiniband() && !port.is_roce()) {
            report.find(foreign(host, device, port));
        }
    }
}

fn foreign(host: &Host, device: &RdmaDevice, port: &RdmaPort) -> Finding {
    let driver = RdmaDevice::driver(host, &device.name);
    let without = RdmaDevice::leave_out(host, &[&device.name]);
    let (what, costs, mend) = match (port.fabric, driver.as_deref()) {
        (Fabric::Iwarp, _) => (
            "it speaks iWARP, neither InfiniBand nor RoCE",
            "connections over it fail",
            format!("{without}   # Invar and NCCL then use other devices, or TCP"),
        ),
        (_, Some("efa")) => (
            "it speaks Amazon's EFA, neither InfiniBand nor RoCE",
            "Invar, and NCCL without a plugin for EFA, do not use it",
            "export NCCL_NET_PLUGIN=ofi   # aws-ofi-nccl, which uses it in Invar's place"
                .to_owned(),
        ),
        _ => {
            ("its network is neither InfiniBand nor RoCE", "Invar and NCCL do not use it", without)
        }
    };
    Finding {
        severity: Severity::Note,
        id: "fabric-foreign",
        subject: port.title.clone(),
        what: what.to_owned(),
        costs: costs.to_owned(),
        mend,
    }
}

/// A port that carries nothing. `is_spare` says whether its card has an active port and nobody has asked for this
/// one: cards often have a second port that is not used.
fn down(port: &RdmaPort, has_active: bool, is_spare: bool) -> Finding {
    let RdmaPort { title, number, state, phys_state, .. } = port;
    let netdev = port.netdev().unwrap_or("INTERFACE");
    let has_link = matches!(state.as_str(), "INIT" | "ARMED");
    let (why, mend) = match (has_link, phys_state.as_str()) {
        (true, _) => (
            "it has a link, and no subnet manager has configured it".to_owned(),
            "systemctl start opensm   # on one host of the network, or on a switch".to_owned(),
        ),
        (_, "Disabled") if !port.is_infiniband() => {
            ("its interface is switched off".to_owned(), format!("ip link set {netdev} up"))
        }
        (_, "Disabled") => (
            "it is switched off".to_owned(),
            // Without -C and -P the command takes the first active port of the host.
            format!("ibportstate -C {} -P {number} -D 0 {number} enable", port.device()),
        ),
        (_, "") => ("it has no link".to_owned(), format!("ethtool {netdev}")),
        _ if port.is_infiniband() => (
            format!("it has no link ({phys_state}): look at cable and switch"),
            "iblinkinfo".to_owned(),
        ),
        _ => (
            format!("it has no link ({phys_state}): look at cable and switch"),
            format!("ethtool {netdev}"),
        ),
    };
    Finding {
        severity: match (has_active, is_spare && !has_link) {
            (false, _) => Severity::Bad,
            (true, false) => Severity::Warn,
            (true, true) => Severity::Note,
        },
        id: "port-down",
        subject: title.clone(),
        what: format!("the port is {state}: {why}"),
        costs: "Invar and NCCL leave this port out".to_owned(),
        mend,
    }
}

/// The link of an active port.
fn link(port: &RdmaPort, report: &mut Report) {
    let layer = if port.is_infiniband() { "InfiniBand" } else { "Ethernet" };
    let RdmaPort { title, rate, .. } = port;
    if port.is_infiniband() && rate.contains("(1X ") {
        return report.find(Finding {
            severity: Severity::Warn,
            id: "link-narrow",
            subject: title.clone(),
            what: format!("the link has one of its lanes: {rate}"),
            costs: "a quarter of the speed; the other lanes failed when the link came up"
                .to_owned(),
            mend: "iblinkinfo   # then clean or change the cable".to_owned(),
        });
    }
    report.well(format!("{title}: active, {layer}, {rate}"));
}

/// Finds ports that are slower than others of the same model.
fn compare(host: &Host, devices: &[RdmaDevice], report: &mut Report) {
    let mut best: BTreeMap<(String, String, Fabric), (f64, String)> = BTreeMap::new();
    let model = |device: &RdmaDevice| {
        let text = |file| host.sys.known(&device.pci_file(file));
        Some((text("vendor")?, text("device")?))
    };
    let active = || {
        devices.iter().filter_map(|device| Some((model(device)?, device))).flat_map(
            |((vendor, model), device)| {
                let ports = device.ports.iter().filter(|port| port.is_active());
                ports.filter_map(move |port| {
                    let key = (vendor.clone(), model.clone(), port.fabric);
                    Some((key, port, port.gbps()?))
                })
            },
        )
    };
    for (key, port, gbps) in active() {
        let entry = best.entry(key).or_insert((gbps, port.title.clone()));
        if gbps > entry.0 {
            *entry = (gbps, port.title.clone());
        }
    }
    for (key, port, gbps) in active() {
        let (most, other) = &best[&key];
        if gbps < *most {
            report.find(Finding {
                severity: Severity::Warn,
                id: "port-slow",
                subject: port.title.clone(),
                what: format!(
                    "{gbps} Gb/s, while {other}, on a card of the same model, has {most}"
                ),
                costs: "ranks that share the work wait for the slowest port".to_owned(),
                mend: match port.netdev() {
                    Some(netdev) => format!("ethtool {netdev}   # then the switch's port"),
                    None => "iblinkinfo   # then the cable and the switch's port".to_owned(),
                },
            });
        }
    }
}

/// Finds an `NCCL_IB_HCA` that fits no device.
fn filter(host: &Host, devices: &[RdmaDevice], report: &mut Report) {
    let Some(text) = host.var("NCCL_IB_HCA") else { return };
    // The check `settings` reports a list that has no meaning.
    let Ok(filter) = NameFilter::parse(text) else { return };
    let ports = || {
        let pairs = |device: &'_ RdmaDevice| {
            let name = device.name.clone();
            device.ports.iter().map(move |port| (name.clone(), port.number)).collect::<Vec<_>>()
        };
        devices.iter().flat_map(pairs)
    };
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let find = |what: String| Finding {
        severity: Severity::Bad,
        id: "hca-unknown",
        subject: "NCCL_IB_HCA".to_owned(),
        what,
        costs: "Invar and NCCL do not use the devices that you mean".to_owned(),
        mend: format!("export NCCL_IB_HCA={}", names.join(",")),
    };
    if filter.is_exclusion() && !ports().any(|(name, port)| filter.matches(&name, Some(port))) {
        return report.find(find(format!("{text} leaves out all of {}", names.join(", "))));
    }
    for entry in filter.entries() {
        if !ports().any(|(name, port)| filter.names(&entry, &name, Some(port))) {
            report.find(find(format!("{entry} is none of {}", names.join(", "))));
        }
    }
}
