//! libibverbs, its drivers, and the files by which programs reach RDMA devices.

use std::io;

use crate::doctor::host::{Host, Libibverbs};
use crate::doctor::mend::and_others;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

/// The PCI class of InfiniBand controllers.
const INFINIBAND_CLASS: &str = "0x0207";
/// PCI vendors of RDMA cards, and the kernel modules of their RDMA devices.
const VENDORS: [(&str, &str); 1] = [("0x15b3", "mlx5_ib")];
/// The PCI class of Ethernet controllers.
const ETHERNET_CLASS: &str = "0x0200";

const UNUSED: &str =
    "Invar and NCCL do not use the RDMA devices; messages go over TCP, many times slower";
const ONE: &str = "Invar and NCCL do not use this device";
const SOME: &str = "Invar and NCCL use the other devices only";
const INSTALL: &str =
    "apt-get install libibverbs1 ibverbs-providers   # Fedora, RHEL: dnf install libibverbs";

pub(super) fn check(host: &Host, report: &mut Report) {
    if host.rdma_devices().is_empty() {
        return without_devices(host, report);
    }
    let devices = RdmaDevice::names_used(host);
    if devices.is_empty() {
        return report.well("no RDMA device to use; the check `ports` says why");
    }
    let names = devices.join(", ");
    if host.params().ib_disable {
        report.find(Finding {
            severity: Severity::Note,
            id: "rdma-disabled",
            subject: "NCCL_IB_DISABLE".to_owned(),
            what: format!("1 hides {names}"),
            costs: UNUSED.to_owned(),
            mend: host.unset("NCCL_IB_DISABLE"),
        });
    }
    let closed = files(host, &devices, report);
    match host.system.libibverbs() {
        Libibverbs::Missing(error) => report.find(Finding {
            severity: Severity::Bad,
            id: "libibverbs-missing",
            subject: String::new(),
            what: format!("the kernel has {names}, but {error}"),
            costs: UNUSED.to_owned(),
            mend: INSTALL.to_owned(),
        }),
        // The missing files are the reason.
        Libibverbs::Failed(_) if !closed.is_empty() => {}
        Libibverbs::Failed(error) => report.find(Finding {
            severity: Severity::Bad,
            id: "libibverbs-fails",
            subject: String::new(),
            what: format!("libibverbs lists no device: {error}"),
            costs: UNUSED.to_owned(),
            mend: "modprobe ib_uverbs".to_owned(),
        }),
        Libibverbs::Lists(listed) => {
            for device in devices.iter().filter(|device| !closed.contains(device)) {
                if listed.contains(device) {
                    report.well(format!("libibverbs lists {device}"));
                } else {
                    report.find(provider_missing(host, device));
                }
            }
        }
    }
}

/// Checks the character devices, and returns the RDMA devices that this process cannot open.
fn files(host: &Host, devices: &[String], report: &mut Report) -> Vec<String> {
    let names = devices.join(", ");
    let mut find = |severity, id, subject: &str, what: String, costs: &str, mend: &str| {
        report.find(Finding {
            severity,
            id,
            subject: subject.to_owned(),
            what,
            costs: costs.to_owned(),
            mend: mend.to_owned(),
        });
    };
    let container = "docker run --device=/dev/infiniband --ulimit memlock=-1 …   # Kubernetes: the \
                     RDMA device plugin";
    let load = if host.is_container() { container } else { "modprobe ib_uverbs" };
    let class = host.sys.names("class/infiniband_verbs");
    let has_uverbs = class.iter().any(|name| name.starts_with("uverbs"));
    if !has_uverbs {
        let what = format!("the kernel has {names}, but its module ib_uverbs is not loaded");
        find(Severity::Bad, "uverbs-missing", "", what, UNUSED, "modprobe ib_uverbs");
        return devices.to_vec();
    }
    if !host.dev.has("infiniband") {
        let what = format!("the kernel has {names}, but there is no such folder");
        find(Severity::Bad, "dev-infiniband-missing", "/dev/infiniband", what, UNUSED, load);
        return devices.to_vec();
    }
    // A file of a device that does not fit may be closed to us.
    let fitting: Vec<String> =
        RdmaDevice::fitting(host).into_iter().map(|device| device.name).collect();
    let files = RdmaDevice::files(host).into_iter().filter(|(name, _)| fitting.contains(name));
    let path = |name: &str| format!("infiniband/{name}");
    let (there, missing): (Vec<_>, Vec<_>) = files.partition(|(_, name)| host.dev.has(&path(name)));
    let (mut closed, names): (Vec<String>, Vec<String>) = missing.into_iter().unzip();
    if !names.is_empty() {
        let paths: Vec<String> = names.iter().map(|name| format!("/dev/{}", path(name))).collect();
        let what = format!("there is no file by which programs reach {}", and_others(&closed));
        // A container may have some devices of its host on purpose.
        let (severity, costs) = match (there.is_empty(), host.is_container()) {
            (true, _) => (Severity::Bad, UNUSED),
            (false, false) => (Severity::Bad, SOME),
            (false, true) => (Severity::Note, SOME),
        };
        let mend = match host.is_container() {
            true => container.to_owned(),
            // The kernel made each file with its device. udev makes none.
            false => format!(
                "for f in {}; do mknod -m 666 /dev/infiniband/$f c $(tr : ' ' < \
                 /sys/class/infiniband_verbs/$f/dev); done   # or reboot",
                names.join(" ")
            ),
        };
        find(severity, "uverbs-file-missing", &and_others(&paths), what, costs, &mend);
    }
    let opened: Vec<io::Result<()>> =
        there.iter().map(|(_, name)| host.system.open(&host.dev.path(&path(name)))).collect();
    let is_share = host.is_container() && opened.iter().any(Result::is_ok);
    let severity = if is_share { Severity::Note } else { Severity::Bad };
    for ((device, name), opened) in there.into_iter().zip(opened) {
        let Err(error) = opened else { continue };
        let file = format!("/dev/{}", path(&name));
        let what = format!("this process may not open {device}: {error}");
        let mend = if host.is_container() {
            container.to_owned()
        } else {
            format!("chmod a+rw {file}   # for ever: a rule of udev with MODE=\"0666\"")
        };
        find(severity, "uverbs-refused", &file, what, ONE, &mend);
        closed.push(device);
    }
    closed.retain(|device| devices.contains(device));
    if closed.is_empty() {
        report.well(
            "/dev/infiniband has a file for each RDMA device to use, and this process may open it",
        );
    }
    closed
}

fn provider_missing(host: &Host, device: &str) -> Finding {
    let driver = RdmaDevice::driver(host, device);
    let of = driver.map_or(String::new(), |driver| format!(" of the driver {driver}"));
    Finding {
        severity: Severity::Bad,
        id: "provider-missing",
        subject: device.to_owned(),
        what: format!("libibverbs does not list this device{of}: it lacks the device's provider"),
        costs: ONE.to_owned(),
        mend: "apt-get install ibverbs-providers   # Fedora, RHEL: dnf install libibverbs"
            .to_owned(),
    }
}

/// A host without RDMA devices is well, unless it has a card for them.
fn without_devices(host: &Host, report: &mut Report) {
    let mut cards = 0;
    for address in host.sys.names("bus/pci/devices") {
        let text = |file: &str| {
            host.sys.known(&format!("bus/pci/devices/{address}/{file}")).unwrap_or_default()
        };
        let (class, vendor) = (text("class"), text("vendor"));
        let known = VENDORS.iter().find(|(id, _)| *id == vendor);
        let is_infiniband = class.starts_with(INFINIBAND_CLASS);
        let may_be = known.is_some() && class.starts_with(ETHERNET_CLASS);
        if !is_infiniband && !may_be {
            continue;
        }
        cards += 1;
        let module = known.map_or("THE_CARDS_MODULE", |(_, module)| module);
        report.find(Finding {
            // An Ethernet card may be without RDMA on purpose.
            severity: if is_infiniband { Severity::Bad } else { Severity::Warn },
            id: "rdma-driver-missing",
            subject: address,
            what: "this card can do RDMA, but the kernel has no RDMA device for it".to_owned(),
            costs: UNUSED.to_owned(),
            mend: format!("modprobe {module}"),
        });
    }
    if cards == 0 {
        report.well("no RDMA card: Invar uses TCP, or its software NIC");
    }
}
