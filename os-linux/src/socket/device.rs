//! The devices of the socket transport: network interfaces.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use invar_core::socket::Layout;

use crate::interface::{self, Interface, NoInterface, Rules};

/// A network interface and the address by which peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketDevice {
    /// The interface, with its name and its addresses.
    pub interface: Interface,
    /// Address of the interface, with port 0 and with its scope.
    pub address: SocketAddr,
}

/// Lists the interfaces that the rules allow, the best first, or returns the reason why there is none.
pub fn devices(rules: &Rules<'_>) -> io::Result<Result<Vec<SocketDevice>, NoInterface>> {
    let interfaces = Interface::list()?;
    Ok(interface::find(&interfaces, rules).map(|found| {
        let device = |found: interface::Found<'_>| SocketDevice {
            interface: found.interface.clone(),
            address: found.addr,
        };
        found.into_iter().map(device).collect()
    }))
}

impl SocketDevice {
    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.interface.name
    }

    /// Returns the PCI directory of the interface in `sysfs`; `None` if the interface is not on a PCI
    /// bus.
    pub fn pci_path(&self, sysfs: &Path) -> Option<PathBuf> {
        fs::canonicalize(self.card(sysfs)).ok()
    }

    /// Returns the numbers of sockets and helper threads by `NCCL_SOCKET_NTHREADS` and
    /// `NCCL_NSOCKS_PERTHREAD`; `None` means automatic. [`Layout::choose`] has the rules.
    pub fn layout(
        &self,
        threads: Option<u32>,
        sockets_per_thread: Option<u32>,
        sysfs: &Path,
    ) -> Layout {
        let vendor = fs::read_to_string(self.card(sysfs).join("vendor")).ok();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Layout::choose(threads, sockets_per_thread, vendor.as_deref().map(str::trim), cpus)
    }

    fn card(&self, sysfs: &Path) -> PathBuf {
        self.interface.directory(sysfs).join("device")
    }
}
