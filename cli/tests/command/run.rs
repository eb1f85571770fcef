//! `invar run` gives a program the library.

use std::fs;

use tempfile::TempPath;

use super::{Run, invar, json, run};

/// A file that stands for the library. The loader tells of a file that is no library, and goes on without
/// it.
fn library(name: &str) -> TempPath {
    let path = tempfile::Builder::new().suffix(name).tempfile().unwrap().into_temp_path();
    fs::write(&path, b"\x7fELF\0ibv_get_device_list\0").unwrap();
    path
}

#[test]
fn a_missing_library_or_program_is_named() {
    let outcome = run(&["run", "--library", "/nowhere/x.so", "--", "true"]);
    assert_eq!(outcome.status, Some(2));
    assert_eq!(outcome.line(), "invar: --library /nowhere/x.so: no such file");
    let outcome = run(&["run", "--library", "/etc/passwd", "--", "true"]);
    assert_eq!(outcome.status, Some(2));
    assert_eq!(outcome.line(), "invar: --library /etc/passwd: it is no libibverbs");
    let there = library("there.so");
    let outcome =
        run(&["run", "--library", there.to_str().unwrap(), "--", "/nowhere/program", "-x"]);
    assert_eq!(outcome.status, Some(3));
    assert_eq!(outcome.line(), "invar: /nowhere/program: no such program");
}

#[test]
fn a_path_that_the_loader_would_split_is_refused() {
    let split = library("a b.so");
    let outcome = run(&["run", "--library", split.to_str().unwrap(), "--", "true"]);
    assert_eq!(outcome.status, Some(3));
    assert!(outcome.line().contains("no path with a space or colon"), "{}", outcome.line());
}

#[test]
fn the_program_gets_its_arguments_and_the_library_and_its_status_is_returned() {
    let there = library("env.so");
    let path = there.to_str().unwrap();
    let script = "echo \"$LD_PRELOAD\" \"$1\"; exit 7";
    let outcome = run(&["run", "--library", path, "--", "sh", "-c", script, "sh", "--an argument"]);
    assert_eq!(outcome.status, Some(7), "{}", outcome.stderr);
    let shown = there.canonicalize().unwrap();
    assert_eq!(outcome.stdout.trim_end(), format!("{} --an argument", shown.display()));
}

#[test]
fn the_program_sees_the_devices_that_the_command_was_told() {
    let there = library("devices.so");
    let path = there.to_str().unwrap();
    let script = ["sh", "-c", "echo \"$INVAR_SOFT_DEVICES\""];
    let with = |devices: &[&str]| {
        let arguments = [&["run", "--library", path], devices, &["--"], &script[..]].concat();
        let mut command = invar(&arguments);
        Run::start(command.env("INVAR_SOFT_DEVICES", "nowhere1")).wait()
    };
    let outcome = with(&["--devices", "lo"]);
    assert_eq!(outcome.ok().stdout, "lo\n");
    for (devices, by) in [
        (&["--devices", "lo,nowhere0"][..], "--devices: nowhere0"),
        (&[], "INVAR_SOFT_DEVICES: nowhere1"),
    ] {
        let outcome = with(devices);
        assert_eq!(outcome.status, Some(2), "{}", outcome.stdout);
        let says = format!("invar: {by} is none of the devices soft0 (");
        assert!(outcome.line().starts_with(&says), "{}", outcome.line());
        assert!(outcome.line().ends_with(" (lo)"), "{}", outcome.line());
    }
}

#[test]
fn perf_moves_right_bytes_through_rdma_devices_of_the_library() {
    // Cargo also builds the library for the tests, and puts it next to them.
    let library = std::env::current_exe().unwrap().with_file_name("libinvar_soft_verbs.so");
    let run = ["run", "--library", library.to_str().unwrap(), "--devices", "lo", "--"];
    let perf =
        [env!("CARGO_BIN_EXE_invar"), "perf", "-e", "1M", "-f", "300", "-n", "20", "--json", "-"];
    for flags in [
        &["--recvs", "4"][..],
        &["--qps", "4", "--bidirectional"],
        &["--adaptive-routing"],
        &["--op", "write"],
        &["--op", "send"],
        &["--op", "read"],
    ] {
        let mut command = invar(&[&run[..], &perf, flags].concat());
        let outcome = Run::start(command.env("INVAR_TRANSPORT", "ib")).wait();
        let result = json(&outcome.ok().stdout);
        assert_eq!(result["transport"], "ib", "{flags:?}: {result}");
        let rows = result["rows"].as_array().unwrap();
        assert!(rows.len() > 1 && rows.iter().all(|row| row["wrong"] == 0), "{flags:?}: {result}");
    }
}
