//! The plugin as C programs see it: the layouts of a C compiler, and `tests/c/drive.c`, which
//! opens the shared library by its name, in two processes, and makes the calls that NCCL makes.
//! RDMA devices are those of the null libibverbs, `tests/null-verbs`, with both ends in one process.

mod plugin {
    mod gpu_log;
}

use std::env;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nccl_net_invar::abi::{Net, V6, V7, V8, V9, V10, V11, V12, Version};

/// Versions of the interface.
const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;

/// For names of files that no two tests share.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether a program that a test needs is there; says so where it is not.
fn is_there(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("SKIPPED: {program} is missing");
    }
    there
}

/// Builds a program of `tests/c` for one version.
fn compile(source: &str, version: u32) -> PathBuf {
    // A program that runs cannot be written over.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{source}-v{version}-{number}");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{source}.c"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    gcc.arg(format!("-DAPI={version}")).arg(source).arg("-o").arg(&program).arg("-ldl");
    assert!(gcc.status().unwrap().success(), "{gcc:?}");
    program
}

/// A directory of libraries under the names by which programs open them: the plugin, and where
/// `transport` is `ib` the null libibverbs.
fn library_path(transport: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib").join(transport);
    fs::create_dir_all(&directory).unwrap();
    // Cargo builds them for the tests, too, and puts them beside them.
    let tests = env::current_exe().unwrap();
    let libraries = [
        ("libnccl_net_invar.so", "libnccl-net-invar.so"),
        ("libinvar_null_verbs.so", "libibverbs.so.1"),
    ];
    let wanted = if transport == "ib" { 2 } else { 1 };
    for (built, name) in &libraries[..wanted] {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let link = directory.join(format!("{name}.{}.{number}", std::process::id()));
        std::os::unix::fs::symlink(tests.with_file_name(built), &link).unwrap();
        fs::rename(link, directory.join(name)).unwrap();
    }
    directory
}

/// Runs `drive` over a transport, perhaps as the argument of another program.
fn drive(before: &[&str], program: &Path, transport: &str, queue_pairs: u32) {
    let mut line: Vec<&str> = before.to_vec();
    line.extend([program.to_str().unwrap(), "libnccl-net-invar.so"]);
    if transport == "ib" {
        // The null libibverbs does not leave a process.
        line.push("threads");
    }
    let mut command = Command::new(line[0]);
    command.args(&line[1..]);
    command.env("LD_LIBRARY_PATH", library_path(transport));
    command.env("NULL_VERBS_STRICT", "1");
    command.env("NCCL_SOCKET_IFNAME", "lo");
    command.env("INVAR_TRANSPORT", transport);
    command.env("NCCL_IB_QPS_PER_CONNECTION", queue_pairs.to_string());
    // Off in some of the runs: the program knows what is to be logged.
    command.env("NCCL_IB_PCI_RELAXED_ORDERING", if queue_pairs > 1 { "0" } else { "2" });
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} over {transport}: {}\n{text}", output.status);
    assert_eq!(output.stdout, b"ok\n");
}

/// What `layout.c` prints of a version, from our side. The fields' names are NCCL's, in our case.
macro_rules! layout {
    ($version:ty: $($field:ident)*; $($function:ident).*) => {{
        type Properties = <$version as Version>::Properties;
        let camel = |name: &str| -> String {
            let mut words = name.split('_');
            let first = words.next().map(str::to_owned);
            let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
            first.into_iter().chain(words.map(capital)).collect()
        };
        let mut lines = vec![format!("properties_t {}", size_of::<Properties>())];
        $(
            let (name, offset) = (camel(stringify!($field)), offset_of!(Properties, $field));
            lines.push(format!("properties_t.{name} {offset}"));
        )*
        lines.push(format!("net_t {}", size_of::<Net<$version>>()));
        let last = camel(stringify!($($function).*).trim_start_matches("tail."));
        lines.push(format!("net_t.{last} {}", offset_of!(Net<$version>, $($function).*)));
        lines
    }};
}

#[test]
fn layouts_are_those_of_a_c_compiler() {
    if !is_there("gcc") {
        return;
    }
    for version in VERSIONS {
        let ours = match version {
            6 => layout!(V6: guid ptr_support speed max_recvs; close_listen),
            7 => layout!(V7: guid ptr_support speed max_recvs net_device_version; close_listen),
            8 => layout!(V8: guid ptr_support speed max_recvs net_device_version
                reg_is_global; close_listen),
            9 => layout!(V9: guid ptr_support speed max_recvs net_device_version
                reg_is_global force_flush v_props max_p2p_bytes max_coll_bytes; close_listen),
            10 => layout!(V10: guid ptr_support speed max_recvs net_device_version
                reg_is_global force_flush v_props max_p2p_bytes max_coll_bytes; close_listen),
            11 => layout!(V11: guid ptr_support speed max_recvs net_device_version
                reg_is_global force_flush v_props max_p2p_bytes max_coll_bytes
                max_multi_request_size; tail.finalize),
            _ => layout!(V12: guid ptr_support speed max_recvs net_device_version
                reg_is_global force_flush v_props max_p2p_bytes max_coll_bytes
                max_multi_request_size rail_id plane_id; tail.finalize),
        };
        let output = Command::new(compile("layout", version)).output().unwrap();
        let theirs = String::from_utf8(output.stdout).unwrap();
        assert_eq!(theirs.lines().collect::<Vec<_>>(), ours, "version {version}");
    }
}

#[test]
fn every_version_moves_messages_over_every_transport() {
    if !is_there("gcc") {
        return;
    }
    for version in VERSIONS {
        let program = compile("drive", version);
        for transport in ["soft", "socket", "ib"] {
            drive(&[], &program, transport, 1);
        }
    }
}

#[test]
fn messages_go_over_four_queue_pairs() {
    if !is_there("gcc") {
        return;
    }
    drive(&[], &compile("drive", 9), "soft", 4);
    for version in VERSIONS {
        drive(&[], &compile("drive", version), "ib", 4);
    }
}

#[test]
fn nothing_is_leaked_and_no_access_is_invalid() {
    if !is_there("gcc") || !is_there("valgrind") {
        return;
    }
    let valgrind = [
        "valgrind",
        "--quiet",
        // It runs one thread at a time: the other is to have its turn, though this one spins.
        "--fair-sched=try",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
        "--error-exitcode=9",
    ];
    for version in [6, 12] {
        let program = compile("drive", version);
        drive(&valgrind, &program, "soft", 1);
        drive(&valgrind, &program, "ib", 4);
    }
    drive(&valgrind, &compile("drive", 12), "socket", 1);
}
