//! The checks. Each looks at one part of the host, and tells what is wrong, what is well, and what it
//! cannot see.

mod buffers;
mod congestion;
mod dma;
mod firewall;
mod gids;
mod gpu;
mod hostname;
mod interfaces;
mod memlock;
mod mtu;
mod nccl;
mod pcie;
mod ports;
mod settings;
mod verbs;

use super::host::Host;
use super::report::Report;

/// A check of `invar doctor`, and how to run it.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// The part of the host that the check looks at.
    pub(crate) about: &'static str,
    run: fn(&Host, &mut Report),
}

impl Check {
    pub(crate) fn run(&self, host: &Host, report: &mut Report) {
        report.begin(self.name);
        (self.run)(host, report);
    }
}

const fn check(name: &'static str, about: &'static str, run: fn(&Host, &mut Report)) -> Check {
    Check { name, about, run }
}

/// All checks, in the order in which they run.
pub(crate) const CHECKS: [Check; 15] = [
    check("settings", "variables that are refused, unknown or without effect", settings::check),
    check("verbs", "libibverbs, its drivers, and /dev/infiniband", verbs::check),
    check("memlock", "the limit on locked memory", memlock::check),
    check("ports", "state and speed of RDMA ports, and NCCL_IB_HCA", ports::check),
    check("pcie", "width and speed of the RDMA devices' PCIe links", pcie::check),
    check("mtu", "path MTUs of RoCE ports", mtu::check),
    check("gids", "GID tables of RoCE ports, and NCCL_IB_GID_INDEX", gids::check),
    check("dma", "relaxed ordering, IOMMU, and redirection by PCIe bridges", dma::check),
    check("gpu", "how RDMA devices reach the memory of NVIDIA GPUs", gpu::check),
    check("interfaces", "the network interfaces that are chosen", interfaces::check),
    check("hostname", "the address that the host's name stands for", hostname::check),
    check("buffers", "the kernel's limits for UDP and TCP sockets", buffers::check),
    check("congestion", "TCP's congestion control", congestion::check),
    check("firewall", "rules of nftables that drop Invar's packets", firewall::check),
    check("nccl", "libnccl, and the network plugin that it loads", nccl::check),
];
