//! Tests collNet from C: `tests/c/collnet.c`, with a process for each rank.
//!
//! Each version runs with another number of ranks over each transport. With `INVAR_TEST_COLLNET=full` this run also
//! has 64 MiB for each reduction of each type, and for each operation on blocks. Each version then runs with all other
//! numbers of ranks too, with short messages.

use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use invar_testkit::namespaces::Hosts;
use invar_testkit::shell;
use invar_testkit::wait::until;
use nccl_net_invar::abi::{
    Blocks, CollNet, FinalTail, SgeV8, SgeV9, V6, V7, V8, V9, V10, V11, V12,
};

use crate::{VALGRIND, VERSIONS, camel, compile, fields, is_there, library_path};

const FULL: &str = "INVAR_TEST_COLLNET";
/// The oldest version, one in the middle, and the newest.
const SOME_VERSIONS: [u32; 3] = [6, 9, 12];

/// Lists our layout of a version, in the format of `layout.c`.
macro_rules! layout {
    ($version:ty) => {{
        let mut lines = vec![format!("collnet_t {}", size_of::<CollNet<$version>>())];
        fields!(lines, CollNet<$version> as "collnet_t": name init devices get_properties listen
            connect reduce_support reg_mr reg_mr_dma_buf dereg_mr iallreduce iflush test close_coll
            close_listen);
        (lines, offset_of!(CollNet<$version>, blocks), offset_of!(CollNet<$version>, tail))
    }};
}

/// Lists the layout of the collectives on blocks, which begin at `at`, and of a part of their window.
macro_rules! blocks {
    ($sge:ty, $at:expr) => {{
        type B = Blocks<$sge>;
        let mut lines = vec![
            format!("collnet_t.iallgather {}", $at + offset_of!(B, iallgather)),
            format!("collnet_t.ireducescatter {}", $at + offset_of!(B, ireducescatter)),
            format!("sge_t {}", size_of::<$sge>()),
        ];
        fields!(lines, $sge as "sge_t": mhandle address size);
        lines
    }};
}

/// Lists our layout of collNet's structures.
pub(crate) fn layout(version: u32) -> Vec<String> {
    let (mut lines, blocks, tail) = match version {
        6 => layout!(V6),
        7 => layout!(V7),
        8 => layout!(V8),
        9 => layout!(V9),
        10 => layout!(V10),
        11 => layout!(V11),
        _ => layout!(V12),
    };
    match version {
        ..8 => {}
        8 => lines.extend(blocks!(SgeV8, blocks)),
        _ => lines.extend(blocks!(SgeV9, blocks)),
    }
    if version >= 9 {
        // In v9 and v10 the function is the whole tail.
        let first = offset_of!(FinalTail<4>, make_v_device);
        lines.push(format!("collnet_t.makeVDevice {}", tail + first));
    }
    if version >= 11 {
        lines.push(format!("collnet_t.finalize {}", tail + offset_of!(FinalTail<4>, finalize)));
    }
    lines
}

/// The ranks share memory. Its devices are those of TCP.
const SHARED_MEMORY: &str = "shm";

/// Prepares `collnet` over a transport, optionally as the argument of another program.
fn command(before: &[&str], program: &Path, transport: &str, arguments: &[&str]) -> Command {
    let line: Vec<&str> = [before, &[program.to_str().unwrap()]].concat();
    let mut command = Command::new(line[0]);
    shell::clean(&mut command).args(&line[1..]).arg("libnccl-net-invar.so").args(arguments);
    command.env("NCCL_SOCKET_IFNAME", "lo").env("NCCL_COLLNET_ENABLE", "1");
    let devices = match transport {
        SHARED_MEMORY => "socket",
        // All ranks are on this host, and their data shall go over the transport.
        _ => {
            command.env("NCCL_SHM_DISABLE", "1");
            transport
        }
    };
    command.env("LD_LIBRARY_PATH", library_path(devices)).env("INVAR_TRANSPORT", devices);
    command
}

fn check(before: &[&str], program: &Path, transport: &str, arguments: &[&str]) {
    let mut command = command(before, program, transport, arguments);
    is_right(&command.output().unwrap(), &format!("{arguments:?} over {transport}"));
}

fn is_right(output: &Output, what: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    assert_eq!(output.stdout, b"ok\n");
}

#[test]
fn every_version_reduces_and_gathers_as_a_naive_program_does() {
    if !is_there("gcc") {
        return;
    }
    let is_full = env::var(FULL).is_ok_and(|asked| asked == "full");
    for version in VERSIONS {
        let program = compile("collnet", version);
        for ranks in 2..=8 {
            for (i, transport) in ["soft", "socket", SHARED_MEMORY].into_iter().enumerate() {
                // Each version and each number of ranks has a turn over each transport.
                let is_its_turn = (version + ranks + 3 * i as u32).is_multiple_of(7);
                if is_full || is_its_turn {
                    let ranks = ranks.to_string();
                    let extent = if is_full && is_its_turn { "full" } else { "brief" };
                    check(&[], &program, transport, &[&ranks, extent]);
                }
            }
        }
    }
    if is_full {
        check(&[], &compile("collnet", 12), "socket", &["2", "big"]);
    }
}

/// Checks a mode that concerns one of three ranks: the rank for the software NIC, for TCP, and for shared memory.
fn check_rank(before: &[&str], mode: &str, [soft, socket, shm]: [&str; 3]) {
    if !is_there("gcc") {
        return;
    }
    let program = compile("collnet", 12);
    for (transport, rank) in [("soft", soft), ("socket", socket), (SHARED_MEMORY, shm)] {
        check(before, &program, transport, &["3", mode, rank]);
    }
}

#[test]
fn ranks_hear_of_one_that_is_killed_or_closes_its_comm() {
    if !is_there("gcc") {
        return;
    }
    for program in SOME_VERSIONS.map(|version| compile("collnet", version)) {
        for transport in ["soft", "socket"] {
            for lost in ["0", "2"] {
                check(&[], &program, transport, &["3", "kill", lost]);
                check(&[], &program, transport, &["3", "close", lost]);
            }
        }
    }
}

#[test]
fn memory_is_deregistered_and_freed_while_a_rank_has_not_come_to_its_collective() {
    check_rank(&[], "free", ["0", "2", "1"]);
}

#[test]
fn a_stopped_rank_is_named_by_the_others_and_all_go_on_after_it() {
    check_rank(&["env", "INVAR_STALL_MS=300"], "stop", ["1", "2", "1"]);
}

#[test]
fn collectives_outlive_a_pulled_cable_and_metrics_count_their_links() {
    let hosts = if is_there("gcc") { Hosts::or_skip(1500) } else { None };
    let Some(hosts) = hosts else { return };
    let folder = tempfile::tempdir().unwrap();
    let (over, metrics) = (folder.path().join("over"), folder.path().join("metrics.prom"));
    let program = compile("collnet", 12);
    let mut command = command(&[], &program, "soft", &["2", "until", over.to_str().unwrap()]);
    command.env("COLLNET_NETNS", format!("{},{}", hosts.name(0), hosts.name(1)));
    command.env("NCCL_SOCKET_IFNAME", "v0").env("NCCL_IB_TIMEOUT", "13");
    command.env("XDG_RUNTIME_DIR", folder.path());
    command.env("INVAR_METRICS", format!("file:{}", metrics.display()));
    let ranks = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The largest value of a metric of a connection of the software NIC.
    let value = |name: &str| {
        let text = fs::read_to_string(&metrics).unwrap_or_default();
        let lines = text.lines().filter(|line| {
            line.starts_with(&format!("{name}{{")) && line.contains("device=\"soft")
        });
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.fold(0.0, f64::max)
    };
    until("sent bytes", || (value("invar_sent_bytes_total") > 1e6).then_some(()));
    until("a recovery", || {
        hosts.ip(0, "link set v0 down").unwrap();
        // The link is down for longer than a queue pair retries.
        thread::sleep(Duration::from_millis(900));
        hosts.ip(0, "link set v0 up").unwrap();
        thread::sleep(Duration::from_millis(2500));
        (value("invar_recoveries_total") > 0.0).then_some(())
    });
    let before = value("invar_sent_bytes_total");
    until("more sent bytes", || (value("invar_sent_bytes_total") > before).then_some(()));
    fs::write(&over, "").unwrap();
    is_right(&ranks.wait_with_output().unwrap(), "a pulled cable");
}

#[test]
fn without_nccls_switch_there_is_no_collnet() {
    if !is_there("gcc") {
        return;
    }
    for version in [6, 12] {
        let mut command = Command::new(compile("collnet", version));
        shell::clean(&mut command).args(["libnccl-net-invar.so", "1", "off"]);
        command.env("LD_LIBRARY_PATH", library_path("socket")).env("NCCL_SOCKET_IFNAME", "lo");
        let output = command.env("INVAR_TRANSPORT", "socket").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.stdout.as_slice(), &*text), (&b"ok\n"[..], ""));
    }
}

#[test]
fn collnet_leaks_nothing_and_makes_no_invalid_access() {
    if !is_there("gcc") || !is_there("valgrind") {
        return;
    }
    for program in SOME_VERSIONS.map(|version| compile("collnet", version)) {
        check(VALGRIND, &program, "soft", &["2", "close", "1"]);
    }
    check(VALGRIND, &compile("collnet", 12), "socket", &["2", "brief"]);
}
