//! Tests the lines about GPUs and RDMA devices that the plugin logs when it starts.

use std::env;
use std::process::Command;

use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::shell;
use invar_testkit::sysfs::Tree;

use crate::{compile, is_there};

/// Makes a device that registers DMA-BUFs.
fn fake() -> FakeCuda {
    FakeCuda::new().with_null_verbs().set("NULL_VERBS_DMA_BUF", "yes")
}

/// Makes a machine with a GPU near that device.
fn near() -> Tree {
    Tree::new("null0", "null1")
}

/// Checks that the log at level INFO (3) has these lines, behind the name of the network.
fn check(fake: FakeCuda, sysfs: &Tree, lines: &[&str]) {
    if !is_there("gcc") {
        return;
    }
    let fake = fake.set("INVAR_SYSFS", sysfs.root().display().to_string());
    let plugin = env::current_exe().unwrap().with_file_name("libnccl_net_invar.so");
    let mut command = Command::new(compile("log", 9));
    let _installed =
        fake.set("INVAR_TRANSPORT", "ib").give_to(shell::clean(&mut command).arg(plugin));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    for line in lines {
        let line = format!("3 NET/Invar : {line}");
        assert!(text.lines().any(|logged| logged.starts_with(&line)), "{line}\nis not in\n{text}");
    }
}

#[test]
fn a_nic_that_reaches_gpus_by_dma_buf() {
    let lines = [
        "null0 reaches GPU memory by DMA-BUF",
        "null0 and GPU 0 (Fake GPU 0): GPUDirect by DMA-BUF: GPU and NIC are PIX apart, and both \
         have it; flush by a READ: the GPU may see the NIC's writes too late",
    ];
    check(fake(), &near(), &lines);
}

#[test]
fn a_nic_without_dma_bufs_beside_a_module() {
    let sysfs = near();
    sysfs.file("module/nvidia_peermem/version", "550.54");
    let lines = [
        "null0 reaches GPU memory by peer memory",
        "null0 and GPU 0 (Fake GPU 0): GPUDirect by peer memory: GPU and NIC are PIX apart, \
         nvidia-peermem 550.54 is loaded, the NIC's driver or the kernel registers no DMA-BUF; ",
    ];
    check(fake().set("NULL_VERBS_DMA_BUF", "EOPNOTSUPP"), &sysfs, &lines);
}

#[test]
fn a_nic_that_has_both() {
    let sysfs = near();
    sysfs.file("module/nvidia_peermem/version", "550.54");
    let lines = [
        "null0 reaches GPU memory by DMA-BUF and by peer memory",
        "null0 and GPU 0 (Fake GPU 0): GPUDirect by DMA-BUF: ",
    ];
    check(fake(), &sysfs, &lines);
}

#[test]
fn a_nic_that_has_neither() {
    let lines = [
        "null0 does not reach GPU memory: its driver or the kernel registers no DMA-BUF, and \
         nvidia-peermem is not loaded (modprobe nvidia-peermem)",
        "null0 and GPU 0 (Fake GPU 0): staging: the NIC's driver or the kernel registers no \
         DMA-BUF, and nvidia-peermem is not loaded (modprobe nvidia-peermem); no flush: ",
    ];
    check(fake().set("NULL_VERBS_DMA_BUF", "EPROTONOSUPPORT"), &near(), &lines);
}

#[test]
fn why_memory_of_a_gpu_is_staged() {
    for (name, value, why) in [
        (
            "FAKE_CUDA_ATTRIBUTES",
            "124=0",
            "the GPU's driver exports no DMA-BUF, and nvidia-peermem is not loaded",
        ),
        ("NCCL_DMABUF_ENABLE", "0", "NCCL_DMABUF_ENABLE=0, and nvidia-peermem is not loaded"),
        ("FAKE_CUDA_ATTRIBUTES", "116=0", "Fake GPU 0 does not let PCI devices reach its memory"),
    ] {
        let line = format!("null0 and GPU 0 (Fake GPU 0): staging: {why}");
        check(fake().set(name, value), &near(), &[&line]);
    }
}

#[test]
fn nics_at_each_distance_from_each_gpu() {
    let sysfs = near();
    let fake = fake().set("NULL_VERBS_DEVICES", "2");
    let lines = [
        "null0 and GPU 0 (Fake GPU 0): GPUDirect by DMA-BUF: GPU and NIC are PIX apart",
        "null1 and GPU 0 (Fake GPU 0): staging: GPU and NIC are SYS apart, beyond \
         NCCL_NET_GDR_LEVEL=PXB",
        "null0 and GPU 1 (Fake GPU 1): staging: sysfs does not tell how far apart GPU and NIC \
         are; NCCL_NET_GDR_LEVEL=SYS allows any distance",
    ];
    check(fake.set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0"), &sysfs, &lines);
}

#[test]
fn how_each_gpu_is_flushed() {
    for (name, value, flush) in [
        ("FAKE_CUDA_ATTRIBUTES", "117=1", "flush by the driver: the GPU may see the NIC's writes"),
        ("NCCL_GDR_FLUSH_DISABLE", "1", "no flush: NCCL_GDR_FLUSH_DISABLE=1"),
    ] {
        let line = format!(
            "null0 and GPU 0 (Fake GPU 0): GPUDirect by DMA-BUF: GPU and NIC are PIX apart, and \
             both have it; {flush}"
        );
        check(fake().set(name, value), &near(), &[&line]);
    }
}

#[test]
fn a_host_whose_driver_does_not_start() {
    let lines = ["no GPUs: cuInit failed: CUDA_ERROR_NO_DEVICE (100)", "null0 reaches GPU memory"];
    check(fake().set("FAKE_CUDA_FAIL", "cuInit=100"), &near(), &lines);
}
