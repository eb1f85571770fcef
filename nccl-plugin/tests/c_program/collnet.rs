//! Tests collNet from C: `tests/c/collnet.c`, with a process for each rank.
//!
//! Each version runs with another number of ranks. With `INVAR_TEST_COLLNET=full` each runs with all
//! numbers of ranks, and with long messages of all types.

use std::env;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Output};

use invar_testkit::shell;
use nccl_net_invar::abi::{
    Absent, Blocks, CollNet, CollNetVersion, FinalTail, SgeV8, SgeV9, V6, V7, V8, V9, V10, V11, V12,
};

use crate::{VERSIONS, camel, compile, fields, is_there, library_path};

const FULL: &str = "INVAR_TEST_COLLNET";

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
        assert_eq!(size_of::<<V9 as CollNetVersion>::Tail>(), size_of::<Absent>());
        lines.push(format!("collnet_t.makeVDevice {}", tail + offset_of!(FinalTail, absent)));
    }
    if version >= 11 {
        lines.push(format!("collnet_t.finalize {}", tail + offset_of!(FinalTail, finalize)));
    }
    lines
}

/// Runs `collnet` over a transport, optionally as the argument of another program.
fn run(before: &[&str], program: &Path, transport: &str, arguments: &[&str]) -> Output {
    let line: Vec<&str> = [before, &[program.to_str().unwrap()]].concat();
    let mut command = Command::new(line[0]);
    shell::clean(&mut command).args(&line[1..]).arg("libnccl-net-invar.so").args(arguments);
    command.env("LD_LIBRARY_PATH", library_path(transport));
    command.env("NCCL_SOCKET_IFNAME", "lo").env("INVAR_TRANSPORT", transport);
    // All ranks are on this host, and their data shall go over the transport.
    command.env("NCCL_SHM_DISABLE", "1").env("NCCL_COLLNET_ENABLE", "1");
    command.output().unwrap()
}

fn check(before: &[&str], program: &Path, transport: &str, arguments: &[&str]) {
    let output = run(before, program, transport, arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?} over {transport}: {}\n{text}", output.status);
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
            for (i, transport) in ["soft", "socket"].into_iter().enumerate() {
                // Each version and each number of ranks runs once over each transport.
                let is_its_turn = (version + ranks + 3 * i as u32).is_multiple_of(7);
                if is_full || is_its_turn {
                    let ranks = ranks.to_string();
                    let extent = if is_full { "full" } else { "brief" };
                    check(&[], &program, transport, &[&ranks, extent]);
                }
            }
        }
    }
    if is_full {
        check(&[], &compile("collnet", 12), "socket", &["2", "big"]);
    }
}

#[test]
fn ranks_hear_of_one_that_is_killed_or_closes_its_comm() {
    if !is_there("gcc") {
        return;
    }
    let program = compile("collnet", 12);
    for transport in ["soft", "socket"] {
        for lost in ["0", "2"] {
            check(&[], &program, transport, &["3", "kill", lost]);
            check(&[], &program, transport, &["3", "close", lost]);
        }
    }
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
    let valgrind = [
        "valgrind",
        "--quiet",
        // Valgrind runs one thread at a time, so a spinning thread must let the other have its turn.
        "--fair-sched=try",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect",
        "--error-exitcode=9",
    ];
    let program = compile("collnet", 12);
    check(&valgrind, &program, "socket", &["2", "brief"]);
    check(&valgrind, &program, "soft", &["2", "close", "1"]);
}
