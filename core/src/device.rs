//! Rules about devices that take no call to the system: which names a user means, how fast a
//! link is, which ports share one card, how far apart devices are.

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
/// Relaxed ordering lets PCIe writes overtake each other, which GPUs behind some CPUs need for
/// full speed. `NCCL_IB_PCI_RELAXED_ORDERING` is 0 for never, 1 for always, 2 where it can be
/// had; `available` says whether libibverbs has `ibv_reg_mr_iova2`, without which the flag is
/// refused. NCCL leaves it out for 1 as well where it is not available, and so does this.
pub fn data_access(relaxed_ordering: u8, available: bool) -> Access {
    let base = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    if relaxed_ordering != 0 && available { base | Access::RELAXED_ORDERING } else { base }
}
