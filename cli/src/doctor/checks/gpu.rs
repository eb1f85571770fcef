//! The ways by which RDMA devices reach the memory of NVIDIA GPUs.

use invar_core::device::PciDistance;
use invar_cuda::Sysfs;

use crate::doctor::host::Host;
use crate::doctor::pci;
use crate::doctor::rdma::RdmaDevice;
use crate::doctor::report::{Finding, Report, Severity};

/// Drivers of RDMA cards that register DMA-BUFs, and the first kernel in which each does so, the oldest first.
const DMABUF: [(&str, (u32, u32)); 4] =
    [("mlx5_core", (5, 12)), ("ice", (6, 3)), ("i40e", (6, 3)), ("bnxt_en", (6, 6))];
/// No older kernel of kernel.org lets any driver register DMA-BUFs.
const DMABUF_SINCE: (u32, u32) = DMABUF[0].1;

const PEERMEM: &str =
    "modprobe nvidia-peermem   # needs MLNX_OFED, DOCA-OFED or a kernel with peer memory";
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
    gpudirect(host, &version, &devices, report);
    distances(host, &gpus, &devices, report);
}

/// Finds hosts with neither nvidia-peermem nor DMA-BUF.
fn gpudirect(host: &Host, version: &str, devices: &[String], report: &mut Report) {
    if let Some(peermem) = Sysfs::new(host.sys.path("")).peermem() {
        return report.well(format!("{} {} is loaded", peermem.module, peermem.version));
    }
    let kernel = host.proc.known("sys/kernel/osrelease").unwrap_or_default();
    let (why, mend) = if !host.params().dmabuf_enable {
        let unset = host.unset("NCCL_DMABUF_ENABLE");
        ("NCCL_DMABUF_ENABLE=0".to_owned(), format!("{unset}   # or modprobe nvidia-peermem"))
    } else if !version.contains("Open Kernel Module") {
        let mend =
            format!("{PEERMEM}; or install NVIDIA's open kernel module, which exports DMA-BUFs");
        ("NVIDIA's closed kernel module exports no DMA-BUF".to_owned(), mend)
    } else if numbers(&kernel) < Some(DMABUF_SINCE) {
        let why = format!("Linux {kernel} lets no RDMA device register a DMA-BUF");
        let (major, minor) = DMABUF_SINCE;
        (why, format!("{PEERMEM}; or install Linux {major}.{minor} or later"))
    } else {
        return devices.iter().for_each(|device| dmabuf(host, device, &kernel, report));
    };
    report.find(Finding {
        severity: Severity::Warn,
        id: "gpudirect-none",
        subject: String::new(),
        what: format!("nvidia-peermem is not loaded, and {why}"),
        costs: STAGED.to_owned(),
        mend,
    });
}

/// Tells whether a device's driver registers DMA-BUFs. A distributor's kernel may have a newer driver than its
/// number says.
fn dmabuf(host: &Host, device: &str, kernel: &str, report: &mut Report) {
    let driver = RdmaDevice::driver(host, device).unwrap_or_default();
    match DMABUF.iter().find(|(name, _)| driver.split('.').next() == Some(*name)) {
        Some((_, since)) if numbers(kernel) >= Some(*since) => report.well(format!(
            "{device}: NVIDIA's open kernel module exports DMA-BUFs, and the driver {driver} registers them"
        )),
        Some((_, (major, minor))) => report.unseen(format!(
            "{device}: the driver {driver} registers DMA-BUFs since Linux {major}.{minor}, and this is {kernel}; \
             `invar devices` tries it"
        )),
        None => report.unseen(format!(
            "{device}: whether its driver registers DMA-BUFs; `invar devices` tries it"
        )),
    }
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
