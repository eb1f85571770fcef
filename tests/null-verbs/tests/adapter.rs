//! Tests the libibverbs adapter on the null libibverbs of this crate.

mod adapter {
    mod allocations;
    mod conformance;
}

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use invar_verbs::{VerbsConfig, VerbsNic};

/// This variable is set in the child process that finds the null libibverbs as its libibverbs.
const CHILD: &str = "INVAR_TEST_NULL_VERBS";

/// Runs `body` on two devices of the null libibverbs. The test named `test` runs again in a child
/// process, once for RoCE and once for InfiniBand.
fn on_devices(test: &str, body: impl FnOnce([VerbsNic; 2])) {
    if env::var_os(CHILD).is_some() {
        let open = |name| VerbsNic::open(&VerbsConfig::new(name)).expect("a device");
        return body(["null0", "null1"].map(open));
    }
    let program = env::current_exe().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{}-{}",
        std::process::id(),
        test.replace("::", "-")
    ));
    fs::create_dir(&folder).unwrap();
    let built = program.with_file_name("libinvar_null_verbs.so");
    symlink(built, folder.join("libibverbs.so.1")).unwrap();
    for link in ["roce", "ib"] {
        let mut command = Command::new(&program);
        command.args([test, "--exact", "--nocapture"]);
        command.env(CHILD, "1").env("LD_LIBRARY_PATH", &folder);
        command.env("NULL_VERBS_DEVICES", "2").env("NULL_VERBS_LINK", link);
        let output = command.output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("test result: ok. 1 passed"), "{link}: {}\n{text}", output.status);
    }
    fs::remove_dir_all(folder).unwrap();
}
