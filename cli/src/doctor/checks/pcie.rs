//! The PCIe links of RDMA devices.

use std::path::Path;

use crate::doctor::host::{Folder, Host};
use crate::doctor::rdma::{RdmaDevice, RdmaPort};
use crate::doctor::report::{Finding, Report, Severity};

/// A link, or the most that one of its ends can do.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PcieLink {
    /// Gigatransfers a second.
    speed: f64,
    lanes: f64,
}

impl PcieLink {
    fn parse(speed: &str, lanes: &str) -> Option<PcieLink> {
        // The kernel writes `16.0 GT/s PCIe`, or `Unknown` for a virtual function.
        let speed = speed.split_whitespace().next()?.parse().ok()?;
        let lanes = lanes.parse().ok()?;
        let is_known = |number: f64| number > 0.0 && number < 255.0;
        (is_known(speed) && is_known(lanes)).then_some(PcieLink { speed, lanes })
    }

    /// The fastest link that both ends can do.
    fn both(self, other: PcieLink) -> PcieLink {
        PcieLink { speed: self.speed.min(other.speed), lanes: self.lanes.min(other.lanes) }
    }

    /// Gigabits a second without the line code: 8b/10b up to 5 GT/s, else 128b/130b.
    fn gbps(self) -> f64 {
        let code = if self.speed <= 5.0 { 0.8 } else { 128.0 / 130.0 };
        self.speed * self.lanes * code
    }
}

impl std::fmt::Display for PcieLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "x{} at {} GT/s ({:.0} Gb/s)", self.lanes, self.speed, self.gbps())
    }
}

pub(super) fn check(host: &Host, report: &mut Report) {
    let devices = RdmaDevice::used(host);
    if devices.is_empty() {
        return report.well("no RDMA device to use");
    }
    for device in &devices {
        if device.is_software(host) {
            report.well(format!("{}: a device in software, without PCIe", device.name));
        } else {
            check_device(host, device, report);
        }
    }
}

fn check_device(host: &Host, device: &RdmaDevice, report: &mut Report) {
    let read = |folder: &Folder, which: &str| {
        let text = |file: &str| folder.known(&format!("{which}_link_{file}"));
        PcieLink::parse(&text("speed")?, &text("width")?)
    };
    let name = &device.name;
    // The link in /sys leads to the card, whose folder is in that of its slot.
    let link = host.sys.path(&format!("class/infiniband/{name}/device"));
    let directory = link.canonicalize().unwrap_or(link);
    let folder = Folder::new(&directory);
    let (Some(now), Some(card)) = (read(&folder, "current"), read(&folder, "max")) else {
        return report.unseen(format!(
            "{name}: /sys shows no PCIe link, as for a virtual function; look on the host that has \
             the card"
        ));
    };
    let address = last_part(&directory);
    let slot = directory.parent().and_then(|parent| read(&Folder::new(parent), "max"));
    let able = slot.map_or(card, |slot| card.both(slot));
    let ports: f64 =
        device.ports.iter().filter(|port| port.is_active()).filter_map(RdmaPort::gbps).sum();
    let costs = |gbps: f64| match ports > gbps {
        true => format!("at most {gbps:.0} Gb/s each way, of the {ports:.0} Gb/s of its ports"),
        false => format!("at most {gbps:.0} Gb/s each way"),
    };
    let look = format!(
        "lspci -vv -s {address} | grep -E 'LnkCap|LnkSta'   # then seat the card anew, \
                        and look at the BIOS"
    );
    let find = |severity, id, what, mend| Finding {
        severity,
        id,
        subject: name.clone(),
        what,
        costs: costs(now.gbps()),
        mend,
    };
    if now.speed < able.speed || now.lanes < able.lanes {
        let what = format!("its PCIe link runs {now}; card and slot can do {able}");
        report.find(find(Severity::Warn, "pcie-degraded", what, look));
    } else if ports > now.gbps() {
        let what = match slot {
            Some(slot) if slot.both(card) != card => {
                format!("it is in a slot with {slot}; the card can do {card}")
            }
            _ => format!("its PCIe link, {now}, is slower than its ports"),
        };
        let mend = format!("lspci -tv   # then move the card {address} to a faster slot");
        report.find(find(Severity::Warn, "pcie-slot-slow", what, mend));
    } else {
        report.well(format!("{name}: its PCIe link runs {now}, as fast as card and slot can"));
    }
}

fn last_part(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_the_kernel_writes_them() {
        let link = PcieLink::parse("16.0 GT/s PCIe", "16").unwrap();
        assert_eq!(link.to_string(), "x16 at 16 GT/s (252 Gb/s)");
        assert_eq!(PcieLink::parse("2.5 GT/s PCIe", "8").unwrap().gbps(), 16.0);
        for (speed, lanes) in [("Unknown", "16"), ("16.0 GT/s PCIe", "0"), ("", ""), ("8.0", "255")]
        {
            assert_eq!(PcieLink::parse(speed, lanes), None, "{speed} {lanes}");
        }
    }
}
