//! Hindrances to the NICs' access to memory: strict ordering, IOMMU, and redirected transfers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::doctor::host::Host;
use crate::doctor::pci;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

/// The kernel's parameter by which the IOMMU leaves addresses as they are.
const PASSTHROUGH: &str =
    if cfg!(target_arch = "x86_64") { "iommu=pt" } else { "iommu.passthrough=1" };

pub(super) fn check(host: &Host, report: &mut Report) {
    let devices = RdmaDevice::names_used(host);
    if devices.is_empty() {
        return report.well("no RDMA device to use");
    }
    relaxed_ordering(host, report);
    let gpus = pci::nvidia_gpus(host);
    for device in &devices {
        iommu(host, device, !gpus.is_empty(), report);
    }
    if !gpus.is_empty() {
        redirections(host, &devices, &gpus, report);
    }
}

fn relaxed_ordering(host: &Host, report: &mut Report) {
    let costs =
        "on some hosts, as those with AMD CPUs, a NIC writes to memory at a part of its speed";
    let find = |id, subject: &str, what: &str, mend: &str| Finding {
        severity: Severity::Note,
        id,
        subject: subject.to_owned(),
        what: what.to_owned(),
        costs: costs.to_owned(),
        mend: mend.to_owned(),
    };
    if host.params().ib_pci_relaxed_ordering == 0 {
        let (variable, what) =
            ("NCCL_IB_PCI_RELAXED_ORDERING", "0 asks for strict ordering on PCIe");
        report.find(find("ordering-strict", variable, what, &host.unset(variable)));
    } else if !host.system.has_relaxed_ordering() {
        let what = "libibverbs is too old for relaxed ordering on PCIe (it lacks ibv_reg_mr_iova2)";
        let mend = "apt-get install libibverbs1   # rdma-core 28 or later";
        report.find(find("ordering-absent", "", what, mend));
    } else {
        report.well("memory is registered with relaxed ordering on PCIe, if the device has it");
    }
}

fn iommu(host: &Host, device: &str, has_gpus: bool, report: &mut Report) {
    let kind = host.sys.known(&format!("class/infiniband/{device}/device/iommu_group/type"));
    match kind.as_deref() {
        Some(kind) if kind.starts_with("DMA") => report.find(Finding {
            severity: if has_gpus { Severity::Warn } else { Severity::Note },
            id: "iommu-translates",
            subject: device.to_owned(),
            what: format!("the IOMMU translates the addresses of this device (domain {kind})"),
            costs: match has_gpus {
                true => {
                    "registration and transfers take longer, and transfers to GPUs pass the CPU"
                }
                false => "registration and transfers take longer",
            }
            .to_owned(),
            mend: format!(
                "grubby --update-kernel=ALL --args={PASSTHROUGH}   # Debian, Ubuntu: in GRUB_CMDLINE_LINUX of \
                 /etc/default/grub, then update-grub; then reboot"
            ),
        }),
        _ => report.well(format!("{device}: no IOMMU translates its addresses")),
    }
}

/// Finds switch ports that send transfers between GPUs and RDMA devices by way of the CPU.
fn redirections(host: &Host, devices: &[String], gpus: &[String], report: &mut Report) {
    let links = devices.iter().map(|device| format!("class/infiniband/{device}/device"));
    let links = links.chain(gpus.iter().map(|gpu| format!("bus/pci/devices/{gpu}")));
    let bridges: BTreeMap<PathBuf, Option<bool>> = links
        .flat_map(|link| pci::switch_ports(host, &link))
        .map(|bridge| (bridge.clone(), pci::redirects(&bridge)))
        .collect();
    let address = |bridge: &PathBuf| {
        bridge.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let redirecting: Vec<String> = bridges
        .iter()
        .filter(|(_, does)| **does == Some(true))
        .map(|(bridge, _)| address(bridge))
        .collect();
    if bridges.values().any(Option::is_none) {
        report.unseen("whether PCIe switches redirect transfers (ACS): only root sees that");
    } else if redirecting.is_empty() {
        report.well("no PCIe switch above GPUs and RDMA devices redirects transfers (ACS)");
    }
    for bridge in redirecting {
        report.find(Finding {
            severity: Severity::Warn,
            id: "acs-redirects",
            what: "this port of a PCIe switch redirects transfers between GPU and NIC to the CPU (ACS)"
                .to_owned(),
            costs: "GPUDirect runs at a part of its speed".to_owned(),
            mend: format!(
                "setpci -s {bridge} ECAP_ACS+6.w=0000   # or switch ACS off in the BIOS; not if virtual \
                 machines have devices below this port, since ACS isolates them"
            ),
            subject: bridge,
        });
    }
}
