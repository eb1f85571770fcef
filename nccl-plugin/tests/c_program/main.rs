//! Tests the plugin from C: the layouts of a C compiler, and `tests/c/drive.c`. That program opens the
//! shared library by its name, in two processes, and makes the calls of NCCL. The RDMA devices are those
//! of the null libibverbs, `tests/null-verbs`, with both ends in one process, or those of `invar run`.

mod collnet;
mod gpu_log;

use std::env;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use invar_testkit::shell;
use invar_testkit::skip::{PROGRAMS, skip};
use nccl_net_invar::abi::{
    Absent, CommConfig, Description, Net, QpWork, SocketWork, TailV11, V6, V7, V8, V9, V10, V11,
    V12, Version,
};

/// The versions of the plugin interface.
const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;

/// Numbers the built programs, so that no two tests share a file name.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether a program that a test needs exists; prints a message if it does not.
fn is_there(program: &str) -> bool {
    shell::default_signals();
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        skip(PROGRAMS, format!("{program} is missing"));
    }
    there
}

/// Builds a program of `tests/c` for one version.
fn compile(source: &str, version: u32) -> PathBuf {
    // Each build has its own file, because a running program cannot be overwritten.
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

/// Cargo also builds the libraries for the tests, and puts them next to the tests.
fn library(name: &str) -> PathBuf {
    env::current_exe().unwrap().with_file_name(name)
}

/// Returns a directory with the libraries under the names by which programs open them: the plugin, and
/// the null libibverbs if `transport` is `ib`.
fn library_path(transport: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib").join(transport);
    fs::create_dir_all(&directory).unwrap();
    let libraries = [
        ("libnccl_net_invar.so", "libnccl-net-invar.so"),
        ("libinvar_null_verbs.so", "libibverbs.so.1"),
    ];
    let wanted = if transport == "ib" { 2 } else { 1 };
    for (built, name) in &libraries[..wanted] {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let link = directory.join(format!("{name}.{}.{number}", std::process::id()));
        std::os::unix::fs::symlink(library(built), &link).unwrap();
        fs::rename(link, directory.join(name)).unwrap();
    }
    directory
}

/// The RDMA devices are those of the libibverbs of `invar run`.
const SOFT_VERBS: &str = "soft-verbs";

/// Runs `drive` over a transport, optionally as the argument of another program. `lanes` is the number
/// of queue pairs; over TCP, more than one means that many threads with two sockets each.
fn drive(before: &[&str], program: &Path, transport: &str, lanes: u32) {
    let mut line: Vec<&str> = before.to_vec();
    line.extend([program.to_str().unwrap(), "libnccl-net-invar.so"]);
    if transport == "ib" {
        // The devices of the null libibverbs do not reach another process.
        line.push("threads");
    }
    let mut command = Command::new(line[0]);
    shell::clean(&mut command).args(&line[1..]);
    command.env("LD_LIBRARY_PATH", library_path(transport));
    command.env("NULL_VERBS_STRICT", "1");
    command.env("NCCL_SOCKET_IFNAME", "lo");
    command.env("INVAR_TRANSPORT", if transport == SOFT_VERBS { "ib" } else { transport });
    if transport == SOFT_VERBS {
        command.env("LD_PRELOAD", library("libinvar_soft_verbs.so"));
        command.env("INVAR_SOFT_DEVICES", "lo").env("NCCL_IB_HCA", "soft");
    }
    command.env("NCCL_IB_QPS_PER_CONNECTION", lanes.to_string());
    if lanes > 1 {
        command.env("NCCL_SOCKET_NTHREADS", lanes.to_string());
        command.env("NCCL_NSOCKS_PERTHREAD", "2");
    }
    // Some runs disable relaxed ordering, because the program checks the log for it.
    command.env("NCCL_IB_PCI_RELAXED_ORDERING", if lanes > 1 { "0" } else { "2" });
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} over {transport}: {}\n{text}", output.status);
    assert_eq!(output.stdout, b"ok\n");
}

/// Converts a Rust field name to NCCL's spelling.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().map(str::to_owned);
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    first.into_iter().chain(words.map(capital)).collect()
}

/// Lists the offsets of a structure's fields, in the format of `layout.c`.
macro_rules! fields {
    ($lines:ident, $type:ty as $name:literal: $($field:ident)*) => { $(
        let field = camel(stringify!($field));
        $lines.push(format!("{}.{field} {}", $name, offset_of!($type, $field)));
    )* };
}
pub(crate) use fields;

/// Lists our layout of a version, in the format of `layout.c`.
macro_rules! layout {
    ($version:ty, $tail:ty: $($property:ident)*; $($tail_lines:expr)?) => {{
        type Properties = <$version as Version>::Properties;
        let mut lines = vec![format!("properties_t {}", size_of::<Properties>())];
        fields!(lines, Properties as "properties_t": name pci_path guid ptr_support speed port
            latency max_comms max_recvs $($property)*);
        lines.push(format!("net_t {}", size_of::<Net<$version>>()));
        fields!(lines, Net<$version> as "net_t": name init devices get_properties listen connect
            accept reg_mr reg_mr_dma_buf dereg_mr isend irecv iflush test close_send close_recv
            close_listen);
        let absent = ["getDeviceMr", "irecvConsumed", "makeVDevice"].into_iter().zip(0..);
        let tail = offset_of!(Net<$version>, tail);
        for (name, i) in absent.take(size_of::<$tail>() / size_of::<Absent>()) {
            lines.push(format!("net_t.{name} {}", tail + i * size_of::<Absent>()));
        }
        $( lines.extend($tail_lines(tail)); )?
        lines
    }};
}

/// Lists the end of v11's table, which begins at `tail`.
fn tail_v11(tail: usize) -> [String; 2] {
    assert_eq!(offset_of!(TailV11<4>, absent), 0);
    assert_eq!(offset_of!(TailV11<4>, make_v_device), 2 * size_of::<Absent>());
    let finalize = offset_of!(TailV11<4>, finalize);
    let attributes = offset_of!(TailV11<4>, set_net_attr);
    [
        format!("net_t.finalize {}", tail + finalize),
        format!("net_t.setNetAttr {}", tail + attributes),
    ]
}

/// Lists the structures besides the table that versions since v10 have.
fn beside_the_table() -> Vec<String> {
    let mut lines = vec![format!("config_t {}", size_of::<CommConfig>())];
    fields!(lines, CommConfig as "config_t": traffic_class);
    type Qp = Description<QpWork>;
    lines.push(format!("qp_description_t {}", size_of::<Qp>()));
    lines.push(format!("qp_description_t.type {}", offset_of!(Qp, kind)));
    lines.push(format!("qp_description_t.qp.device {}", offset_of!(Qp, about.device)));
    lines.push(format!("qp_description_t.qp.wr_id {}", offset_of!(Qp, about.wr_id)));
    lines.push(format!("qp_description_t.qp.opcode {}", offset_of!(Qp, about.opcode)));
    lines.push(format!("qp_description_t.qp.qpNum {}", offset_of!(Qp, about.qp_num)));
    lines.push(format!("qp_description_t.qp.length {}", offset_of!(Qp, about.length)));
    type Socket = Description<SocketWork>;
    lines.push(format!("socket_description_t {}", size_of::<Socket>()));
    lines.push(format!("socket_description_t.type {}", offset_of!(Socket, kind)));
    lines.push(format!("socket_description_t.sock.fd {}", offset_of!(Socket, about.fd)));
    lines.push(format!("socket_description_t.sock.op {}", offset_of!(Socket, about.op)));
    lines.push(format!("socket_description_t.sock.length {}", offset_of!(Socket, about.length)));
    lines
}

#[test]
fn layouts_are_those_of_a_c_compiler() {
    if !is_there("gcc") {
        return;
    }
    for version in VERSIONS {
        let mut ours = match version {
            6 => layout!(V6, (): ;),
            7 => layout!(V7, [Absent; 2]: net_device_type net_device_version;),
            8 => layout!(V8, [Absent; 2]: net_device_type net_device_version reg_is_global;),
            9 => layout!(V9, [Absent; 3]: net_device_type net_device_version reg_is_global
                force_flush v_props max_p2p_bytes max_coll_bytes;),
            10 => layout!(V10, [Absent; 3]: net_device_type net_device_version reg_is_global
                force_flush v_props max_p2p_bytes max_coll_bytes;),
            11 => layout!(V11, [Absent; 3]: net_device_type net_device_version reg_is_global
                force_flush v_props max_p2p_bytes max_coll_bytes max_multi_request_size; tail_v11),
            _ => layout!(V12, [Absent; 3]: net_device_type net_device_version reg_is_global
                force_flush v_props max_p2p_bytes max_coll_bytes max_multi_request_size rail_id
                plane_id; tail_v11),
        };
        if version >= 10 {
            ours.extend(beside_the_table());
        }
        ours.extend(collnet::layout(version));
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
        for transport in ["soft", "socket", "ib", SOFT_VERBS] {
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
        let program = compile("drive", version);
        drive(&[], &program, "ib", 4);
        drive(&[], &program, SOFT_VERBS, 4);
    }
}

#[test]
fn messages_go_over_several_sockets_and_threads() {
    if !is_there("gcc") {
        return;
    }
    for version in [6, 12] {
        drive(&[], &compile("drive", version), "socket", 2);
    }
}

/// Returns the output of `listen` over a transport.
fn listen(transport: &str, arguments: &[&str], set: &[(&str, &str)]) -> String {
    let mut command = Command::new(compile("listen", 9));
    shell::clean(&mut command).arg("libnccl-net-invar.so").args(arguments);
    command.env("LD_LIBRARY_PATH", library_path(transport));
    command.env("NCCL_SOCKET_IFNAME", "lo").env("INVAR_TRANSPORT", transport);
    let output = command.envs(set.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_panic_is_a_code_and_a_warning_and_the_next_call_works() {
    if !is_there("gcc") {
        return;
    }
    let printed = listen("soft", &["panic"], &[]);
    let lines: Vec<&str> = printed.lines().collect();
    let [warning, failed, works] = lines[..] else { panic!("{printed}") };
    let shape = "NET/Invar : a defect of this plugin: it panicked (standard error says where): ";
    assert!(warning.starts_with(shape) && warning.len() > shape.len(), "{printed}");
    assert_eq!((failed, works), ("listen: 3", "listen: 0"));
}

#[test]
fn more_threads_and_sockets_than_there_can_be_are_warned_of_and_cut() {
    if !is_there("gcc") {
        return;
    }
    let too_many = [("NCCL_SOCKET_NTHREADS", "17"), ("NCCL_NSOCKS_PERTHREAD", "65")];
    assert_eq!(
        listen("socket", &[], &too_many),
        "NET/Invar : NCCL_SOCKET_NTHREADS=17 is more than 16 threads: 16 are used\n\
         NET/Invar : NCCL_NSOCKS_PERTHREAD=65 on 16 threads is more than 64 sockets: 4 on each \
         are used\n\
         listen: 0\n"
    );
}

#[test]
fn what_a_user_should_hear_of_settings_is_warned_of_once() {
    if !is_there("gcc") {
        return;
    }
    let set = [("INVAR_WIRE", "nccl-2.14"), ("NCCL_IB_TIMOUT", "3"), ("NCCL_IB_FIFO_TC", "1")];
    let printed = listen("ib", &[], &set);
    let lines: Vec<&str> = printed.lines().collect();
    let [wire, unknown, works] = lines[..] else { panic!("{printed}") };
    assert!(wire.starts_with("NET/Invar : INVAR_WIRE=nccl-2.14: that wire has no auth"), "{wire}");
    assert!(unknown.ends_with(": is NCCL_IB_TIMEOUT meant?"), "{unknown}");
    assert_eq!(works, "listen: 0");
}

/// The command that finds leaks and invalid accesses of a program.
const VALGRIND: &[&str] = &[
    "valgrind",
    "--quiet",
    // Valgrind runs one thread at a time, so a spinning thread must let the other have its turn.
    "--fair-sched=try",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect",
    "--error-exitcode=9",
];

#[test]
fn nothing_is_leaked_and_no_access_is_invalid() {
    if !is_there("gcc") || !is_there("valgrind") {
        return;
    }
    drive(VALGRIND, &compile("drive", 6), "soft", 1);
    let program = compile("drive", 12);
    for (transport, lanes) in [("ib", 4), ("socket", 1), ("socket", 2)] {
        drive(VALGRIND, &program, transport, lanes);
    }
}
