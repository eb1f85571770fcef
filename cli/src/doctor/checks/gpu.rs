//! The ways by which RDMA devices reach the memory of NVIDIA GPUs.

use invar_core::device::PciDistance;
use invar_cuda::Sysfs;

use crate::doctor::host::Host;
use crate::doctor::pci;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

const STAGED: &str = "messages of GPU memory pass through host memory, at a part of the speed";

pub(super) fn check(host: &Host, report: &mut Report) {
    let gpus = pci::nvidia_gpus(host);
    if gpus.is_empty() {
        return report.well("no NVIDIA GPU");
    }
    let find = |severity, id, subject: &str, what: String, costs: &str, mend: &str| Finding {
        severity,
        id,
        subject: subject.to_owned(),
        what,
        costs: costs.to_owned(),
        mend: mend.to_owned(),
    };
    let costs = "no program of this host uses the GPUs";
    let Some(version) = host.proc.known("driver/nvidia/version") else {
        let what = format!("the kernel's driver of {} is not loaded", gpus.join(", "));
        return report.find(find(
            Severity::Warn,
            "gpu-no-driver",
            "nvidia",
            what,
            costs,
            "modprobe nvidia",
        ));
    };
    if !host.dev.has("nvidiactl") {
        let mend = if host.is_container() {
            "docker run --gpus all …"
        } else {
            "nvidia-modprobe -c 0 -u"
        };
        let (severity, what) =
            (Severity::Note, "there is no such file, by which programs reach GPUs");
        return report.find(find(
            severity,
            "gpu-no-file",
            "/dev/nvidiactl",
            what.to_owned(),
            costs,
            mend,
        ));
    }
    let devices = RdmaDevice::names_used(host);
    if devices.is_empty() {
        return report.well("GPUs, and no RDMA device to use with them");
    }
    gpudirect(host, &version, report);
    distances(host, &gpus, &devices, report);
}

/// Finds a kernel that has neither of the two ways.
fn gpudirect(host: &Host, version: &str, report: &mut Report) {
    if let Some(peermem) = Sysfs::new(host.sys.path("")).peermem() {
        return report.well(format!("{} {} is loaded", peermem.module, peermem.version));
    }
    let is_open = version.contains("Open Kernel Module");
    let kernel = host.proc.known("sys/kernel/osrelease").unwrap_or_default();
    // Kernels since 5.12 let RDMA devices register DMA-BUFs.
    let is_new = numbers(&kernel) >= Some((5, 12));
    let is_allowed = host.params().dmabuf_enable;
    if is_open && is_new && is_allowed {
        return report
            .well("NVIDIA's open kernel module exports DMA-BUFs, and the kernel takes them");
    }
    let why = if !is_allowed {
        "NCCL_DMABUF_ENABLE=0".to_owned()
    } else if !is_open {
        "NVIDIA's closed kernel module exports no DMA-BUF".to_owned()
    } else {
        format!("Linux {kernel} lets no RDMA device register a DMA-BUF")
    };
    report.find(Finding {
        severity: Severity::Warn,
        id: "gpudirect-none",
        subject: String::new(),
        what: format!("nvidia-peermem is not loaded, and {why}"),
        costs: STAGED.to_owned(),
        mend: match is_allowed {
            true => "modprobe nvidia-peermem".to_owned(),
            false => {
                format!("{}   # or modprobe nvidia-peermem", host.unset("NCCL_DMABUF_ENABLE"))
            }
        },
    });
}

/// Finds GPUs with no RDMA device near enough.
fn distances(host: &Host, gpus: &[String], devices: &[String], report: &mut Report) {
    let (sysfs, level) = (Sysfs::new(host.sys.path("")), host.params().net_gdr_level);
    for gpu in gpus {
        let Some(place) = sysfs.pci_device(gpu) else { continue };
        let distance = |device: &String| {
            let device = sysfs.rdma_device(device)?;
            Some(PciDistance::between(place.place(), device.place()))
        };
        match devices.iter().filter_map(distance).min() {
            Some(nearest) if nearest > level => report.find(Finding {
                severity: Severity::Note,
                id: "gpu-far",
                subject: gpu.clone(),
                what: format!(
                    "the nearest RDMA device is {nearest} away, beyond NCCL_NET_GDR_LEVEL={level}"
                ),
                costs: STAGED.to_owned(),
                mend: format!("export NCCL_NET_GDR_LEVEL={nearest}   # then measure both"),
            }),
            Some(nearest) => report.well(format!("{gpu}: an RDMA device is {nearest} away")),
            None => report.unseen(format!("{gpu}: /sys does not show where the RDMA devices are")),
        }
    }
}

/// The first two numbers of a kernel's release.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
