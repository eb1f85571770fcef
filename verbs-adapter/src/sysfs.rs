//! Facts about RDMA devices that only sysfs knows. A container may not be able to read sysfs, so all
//! results are optional.

use std::fs;
use std::path::Path;

const CLASS: &str = "/sys/class/infiniband";

/// Returns the path of a device's PCI device in the tree `sysfs`; a software device has none.
pub(crate) fn pci_path(sysfs: &Path, device: &str) -> Option<String> {
    let link = sysfs.join("class/infiniband").join(device).join("device");
    fs::canonicalize(link).ok()?.into_os_string().into_string().ok()
}

/// Returns the RoCE version of an entry of the GID table.
pub(crate) fn gid_type(device: &str, port_num: u8, index: u8) -> Option<u8> {
    let path = format!("{CLASS}/{device}/ports/{port_num}/gid_attrs/types/{index}");
    match fs::read_to_string(path).ok()?.trim_end() {
        "IB/RoCE v1" => Some(1),
        "RoCE v2" => Some(2),
        _ => None,
    }
}
