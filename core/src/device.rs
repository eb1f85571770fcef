//! Rules about devices that need no system call: filters of device names, link speeds, ports that share
//! a card, and distances between devices.

mod distance;
mod link;
mod name_filter;
mod pci;

pub use distance::{PciDistance, PciPlace};
pub use link::{LinkField, LinkRate, UnknownLinkCode};
pub use name_filter::{NameEntry, NameFilter, NameFilterError};
pub use pci::{PciPath, real_port};

use crate::nic::Access;

/// Access flags of the memory that a user registers (`net_ib.cc ncclIbRegMrDmaBuf`).
///
/// With relaxed ordering PCIe writes may overtake each other. GPUs behind some CPUs need this for full
/// speed. `NCCL_IB_PCI_RELAXED_ORDERING` is 0 for never, 1 for always, and 2 for "if available".
/// `available` says whether libibverbs has `ibv_reg_mr_iova2`; without it the flag is refused. Like
/// NCCL, this function then leaves the flag out even for 1.
pub fn data_access(relaxed_ordering: u8, available: bool) -> Access {
    let base = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    if relaxed_ordering != 0 && available { base | Access::RELAXED_ORDERING } else { base }
}
