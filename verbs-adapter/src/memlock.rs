//! How much memory this process may lock, which is as much as it can register.

use std::fs;
use std::sync::Once;

use invar_linux::env::memlock_limit_bytes;
use rustix::thread::{CapabilitySet, capabilities};

/// The first user namespace, as /proc names it (the kernel's `PROC_USER_INIT_INO`).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// The limit (`ulimit -l`), in bytes, where it binds this process.
///
/// The kernel asks for CAP_IPC_LOCK in the first user namespace (`ib_umem_get`): in another, as
/// that of a container without root, not even its root is exempt.
pub(crate) fn limit_bytes() -> Option<u64> {
    let is_capable =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    // Where /proc does not tell, few processes are in another.
    let is_first = || {
        let namespace = fs::read_link("/proc/self/ns/user");
        namespace.map_or(true, |namespace| namespace.as_os_str() == FIRST_USER_NAMESPACE)
    };
    if is_capable && is_first() { None } else { memlock_limit_bytes() }
}

/// Says once, before the first registration, that there is a limit. It may suffice.
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
