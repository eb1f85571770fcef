//! The distance between two PCI devices.

use core::fmt;

/// The connection between two PCI devices, nearest first. The names are those of `NCCL_NET_GDR_LEVEL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PciDistance {
    /// The two are functions of one device.
    Loc,
    /// One PCIe switch connects them.
    Pix,
    /// Several PCIe switches connect them, and no CPU.
    Pxb,
    /// The host bridge of a CPU (of a NUMA node) connects them.
    Phb,
    /// The link between CPUs connects them.
    Sys,
}

/// A PCI device as sysfs describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciPlace<'a> {
    /// Target of the link `/sys/bus/pci/devices/ADDRESS`.
    pub path: &'a str,
    /// Content of the device's `numa_node`; `None` if the machine has only one node.
    pub numa_node: Option<u32>,
}

impl PciDistance {
    /// The distance between two devices (NCCL 2.5's `topo.cc pciDistance`, with today's levels).
    ///
    /// ```text
    ///   /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:3d:00.0
    ///                root       port         switch, up   switch, down the device
    /// ```
    ///
    /// Two devices below one switch have paths that part at its downstream ports. If two paths part
    /// higher up, more lies between the devices.
    pub fn between(a: PciPlace<'_>, b: PciPlace<'_>) -> PciDistance {
        let shared = steps(a.path).zip(steps(b.path)).take_while(|(a, b)| a == b).count();
        let below = |place: PciPlace<'_>| steps(place.path).count() - shared;
        match (shared, below(a).max(below(b))) {
            (_, 0) => PciDistance::Loc,
            // The paths do not even share a root complex.
            (0, _) if a.numa_node == b.numa_node && a.numa_node.is_some() => PciDistance::Phb,
            (0, _) => PciDistance::Sys,
            (_, 1) if same_device(a.path, b.path) => PciDistance::Loc,
            (1, _) => PciDistance::Phb,
            (_, 1 | 2) => PciDistance::Pix,
            _ => PciDistance::Pxb,
        }
    }

    /// The name of the distance in `NCCL_NET_GDR_LEVEL`.
    pub const fn as_str(self) -> &'static str {
        match self {
            PciDistance::Loc => "LOC",
            PciDistance::Pix => "PIX",
            PciDistance::Pxb => "PXB",
            PciDistance::Phb => "PHB",
            PciDistance::Sys => "SYS",
        }
    }
}

impl fmt::Display for PciDistance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The root complex, the bridges below it, and the device itself.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let path = path.strip_prefix("/sys/devices/").unwrap_or(path);
    path.split('/').filter(|step| !step.is_empty())
}

/// Returns whether the two addresses differ at most in their function.
fn same_device(a: &str, b: &str) -> bool {
    matches!((a.rsplit_once('.'), b.rsplit_once('.')), (Some((a, _)), Some((b, _))) if a == b)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn between(a: &str, b: &str, numa: [Option<u32>; 2]) -> PciDistance {
        let [a, b] =
            [(a, numa[0]), (b, numa[1])].map(|(path, numa_node)| PciPlace { path, numa_node });
        assert_eq!(PciDistance::between(a, b), PciDistance::between(b, a));
        PciDistance::between(a, b)
    }

    const GPU: &str = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3d:00.0";

    #[test]
    fn the_nearest_bridge_in_common_says_how_far() {
        let same_node = [Some(0), Some(0)];
        for (other, distance) in [
            // Another port of the switch.
            ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:3e:00.0", PciDistance::Pix),
            // Behind a second switch, below the first.
            (
                "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:3e:00.0/0000:3f:00.0/\
                 0000:40:00.0",
                PciDistance::Pxb,
            ),
            // Another port of the CPU, in the same root complex and in another one.
            ("pci0000:3a/0000:3a:02.0/0000:5e:00.0", PciDistance::Phb),
            ("pci0000:5d/0000:5d:00.0/0000:5e:00.0", PciDistance::Phb),
            // The other function of the same device.
            ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3d:00.1", PciDistance::Loc),
        ] {
            let other = std::format!("/sys/devices/{other}");
            assert_eq!(between(GPU, &other, same_node), distance, "{other}");
        }
        assert_eq!(between(GPU, GPU, same_node), PciDistance::Loc);
    }

    #[test]
    fn root_complexes_of_other_or_unknown_cpus_are_farthest() {
        let other = "/sys/devices/pci0000:d7/0000:d7:00.0/0000:d8:00.0";
        assert_eq!(between(GPU, other, [Some(0), Some(1)]), PciDistance::Sys);
        assert_eq!(between(GPU, other, [None, None]), PciDistance::Sys);
        assert_eq!(between(GPU, "/sys/devices/virtual/net/lo", [Some(0), None]), PciDistance::Sys);
    }

    #[test]
    fn nearer_is_less() {
        use PciDistance::{Loc, Phb, Pix, Pxb, Sys};
        assert!([Loc, Pix, Pxb, Phb, Sys].is_sorted());
    }
}
