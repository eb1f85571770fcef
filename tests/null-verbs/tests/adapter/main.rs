//! Tests the libibverbs adapter on the null libibverbs of this crate.

mod allocations;
mod conformance;

use std::os::unix::fs::symlink;

use invar_testkit::child;
use invar_verbs::{VerbsConfig, VerbsNic};

/// Runs `body` on two devices of the null libibverbs, in a process for RoCE and one for InfiniBand. `body`
/// is a closure, and its test function does nothing else.
fn on_devices<F: FnOnce([VerbsNic; 2])>(body: F) {
    if child::is_here() {
        let open = |name| VerbsNic::open(&VerbsConfig::new(name)).expect("a device");
        return body(["null0", "null1"].map(open));
    }
    let folder = tempfile::tempdir().unwrap();
    let built = std::env::current_exe().unwrap().with_file_name("libinvar_null_verbs.so");
    symlink(built, folder.path().join("libibverbs.so.1")).unwrap();
    for link in ["roce", "ib"] {
        child::start::<F, _>(|command| {
            command.env("LD_LIBRARY_PATH", folder.path());
            command.env("NULL_VERBS_DEVICES", "2").env("NULL_VERBS_LINK", link);
        });
    }
}
