//! How much memory this process may lock, which is as much as it can register.

use std::sync::Once;

use invar_linux::env::memlock_limit_bytes;
use rustix::thread::{CapabilitySet, capabilities};

/// The limit (`ulimit -l`), in bytes, where it binds this process.
pub(crate) fn limit_bytes() -> Option<u64> {
    let is_exempt =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if is_exempt { None } else { memlock_limit_bytes() }
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
