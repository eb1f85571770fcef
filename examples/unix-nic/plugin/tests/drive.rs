//! Opens the shared library from C as NCCL does, and moves messages between two processes.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use invar_testkit::shell;
use invar_testkit::skip::{PROGRAMS, skip};

/// The versions of the plugin interface.
const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;
const LIBRARY: &str = "libnccl-net-unix.so";

#[test]
fn every_version_moves_messages_over_the_provided_nic() {
    shell::default_signals();
    if Command::new("gcc").arg("--version").output().is_err() {
        return skip(PROGRAMS, "gcc is missing");
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Cargo builds the library for the test, and puts it next to the test.
    let built = env::current_exe().unwrap().with_file_name("libnccl_net_unix.so");
    let _ = fs::remove_file(directory.join(LIBRARY));
    std::os::unix::fs::symlink(built, directory.join(LIBRARY)).unwrap();
    // The program that also tests the plugin with Invar's own devices.
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../nccl-plugin/tests/c/drive.c");
    for version in VERSIONS {
        let program = directory.join(format!("drive-v{version}"));
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-O1", "-w", &format!("-DAPI={version}"), source, "-ldl", "-o"]);
        assert!(gcc.arg(&program).status().unwrap().success(), "{gcc:?}");
        let mut drive = Command::new(&program);
        shell::clean(&mut drive).arg(LIBRARY).env("LD_LIBRARY_PATH", directory);
        drive.env("NCCL_SOCKET_IFNAME", "lo").env("INVAR_TRANSPORT", "custom");
        drive.env("NCCL_IB_QPS_PER_CONNECTION", "2");
        let output = drive.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "version {version}: {}\n{text}", output.status);
        assert_eq!(output.stdout, b"ok\n");
    }
}
