//! The limit on locked memory of this process, which also limits the memory that it can register.

use std::fs;
use std::sync::Once;

use invar_linux::env::memlock_limit_bytes;
use rustix::thread::{CapabilitySet, capabilities};

/// The initial user namespace, as /proc names it (the kernel's `PROC_USER_INIT_INO`).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Returns the limit (`ulimit -l`) in bytes if it applies to this process.
///
/// The kernel exempts processes with CAP_IPC_LOCK in the initial user namespace (`ib_umem_get`). In
/// another namespace, such as that of a rootless container, the limit applies even to root.
pub fn limit_bytes() -> Option<u64> {
    let is_capable =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    // If /proc does not tell, assume the initial namespace, because few processes are in another.
    let is_first = || {
        let namespace = fs::read_link("/proc/self/ns/user");
        namespace.map_or(true, |namespace| namespace.as_os_str() == FIRST_USER_NAMESPACE)
    };
    if is_capable && is_first() { None } else { memlock_limit_bytes() }
}

/// Warns about the limit once, before the first registration. The limit may still suffice.
pub(crate) fn warn() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        if let Some(bytes) = limit_bytes() {
            log::warn!(
                "this process may lock {} KiB of memory, and registering more will fail: allow it \
                 more (`ulimit -l unlimited`, `docker run --ulimit memlock=-1`)",
                bytes / 1024
            );
        }
    });
}
