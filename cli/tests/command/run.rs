//! `invar run` gives a program the library.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use invar_testkit::skip::{PROGRAMS, skip};
use tempfile::TempDir;

use super::{FAILED, Run, USAGE, bare, invar, json, run, run_in};

/// A file that stands for the library, in a folder as packages have it. The loader tells of a file that is no
/// library, and goes on without it.
fn library(name: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("lib/invar").join(name);
    write_library(&path);
    (folder, path.into_os_string().into_string().unwrap())
}

fn write_library(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, b"\x7fELF\0ibv_get_device_list\0").unwrap();
}

/// The library itself. Cargo also builds it for the tests, and puts it next to them.
fn built() -> String {
    let path = std::env::current_exe().unwrap().with_file_name("libinvar_soft_verbs.so");
    path.into_os_string().into_string().unwrap()
}

#[test]
fn a_missing_library_or_program_is_named() {
    let outcome = run(&["run", "--library", "/nowhere/x.so", "--", "true"]);
    outcome.ended(USAGE, "invar: --library /nowhere/x.so: no such file\n");
    let outcome = run(&["run", "--library", "/etc/passwd", "--", "true"]);
    outcome.ended(USAGE, "invar: --library /etc/passwd: it is no libibverbs\n");
    let (_folder, there) = library("libibverbs.so");
    let outcome = run(&["run", "--library", &there, "--", "/nowhere/program", "-x"]);
    outcome.ended(FAILED, "invar: /nowhere/program: no such program\n");
}

#[test]
fn a_command_without_the_library_says_where_it_looks_and_how_to_build_it() {
    // A link, and so on one file system: a copy that others may still write does not start.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let prefix = folder.path().canonicalize().unwrap();
    fs::create_dir(prefix.join("bin")).unwrap();
    let program = prefix.join("bin/invar");
    fs::hard_link(env!("CARGO_BIN_EXE_invar"), &program).unwrap();
    let mut command = bare(Command::new(program), &["run", "--", "true"]);
    command.env("XDG_RUNTIME_DIR", &prefix);
    let outcome = Run::start(&mut command).wait();
    let places = ["bin/libinvar_soft_verbs.so", "lib/invar/libibverbs.so"];
    let places = places.map(|place| prefix.join(place));
    let [built, installed] = places.each_ref().map(|place| place.display());
    let says = format!("invar: Invar's libibverbs is neither {built} nor {installed}: ");
    outcome.ended(FAILED, &says);
    outcome.ended(FAILED, "`cargo build --release -p invar-soft-verbs`");
    for place in &places {
        write_library(place);
        Run::start(&mut command).wait().ok();
        fs::remove_file(place).unwrap();
    }
}

#[test]
fn a_path_that_the_loader_would_split_is_refused() {
    for name in ["a b.so", "a:b.so", "a;b.so"] {
        let (_folder, split) = library(name);
        let outcome = run(&["run", "--library", &split, "--", "true"]);
        outcome.ended(FAILED, "the loader takes no path with a space, colon or semicolon");
    }
}

#[test]
fn the_program_gets_its_arguments_and_the_library_and_its_status_is_returned() {
    let (_folder, path) = library("libibverbs.so");
    let script = "echo \"$LD_PRELOAD\" \"$1\"; exit 7";
    let outcome =
        run(&["run", "--library", &path, "--", "sh", "-c", script, "sh", "--an argument"]);
    assert_eq!(outcome.status, Some(7), "{}", outcome.stderr);
    assert_eq!(outcome.stdout.trim_end(), format!("{path} --an argument"));
}

#[test]
fn what_the_user_tells_the_loader_and_a_sanitizer_holds_too() {
    let (_folder, path) = library("libibverbs.so");
    let folder = path.strip_suffix("/libibverbs.so").unwrap();
    let script = "echo \"$LD_LIBRARY_PATH\" \"$ASAN_OPTIONS\"";
    let mut command = invar(&["run", "--library", &path, "--", "sh", "-c", script]);
    let ours = "verify_asan_link_order=0";
    for (theirs, options) in [("", ""), ("/nowhere", "detect_leaks=0")] {
        command.env("LD_LIBRARY_PATH", theirs).env("ASAN_OPTIONS", options);
        let shown = match theirs {
            "" => format!("{folder} {ours}\n"),
            _ => format!("{folder}:{theirs} {options}:{ours}\n"),
        };
        assert_eq!(Run::start(&mut command).wait().ok().stdout, shown);
    }
}

#[test]
fn a_library_of_any_name_is_found_as_libibverbs_in_a_folder_of_this_user_alone() {
    let (_folder, path) = library("other.so");
    let runtime = tempfile::tempdir().unwrap();
    let script = "readlink \"${LD_LIBRARY_PATH%%:*}/libibverbs.so\"";
    let mut command = invar(&["run", "--library", &path, "--", "sh", "-c", script]);
    command.env("XDG_RUNTIME_DIR", runtime.path());
    // The second run finds the link of the first one.
    for _ in 0..2 {
        assert_eq!(Run::start(&mut command).wait().ok().stdout, format!("{path}\n"));
    }
    let folder = runtime.path().join("invar");
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    Run::start(&mut command).wait().ended(FAILED, "no folder of this user alone\n");
}

/// A program that loads libibverbs as NCCL does, and prints the number of devices.
const LOADS_ITSELF: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *library = dlopen("libibverbs.so", RTLD_NOW);
    if (!library) library = dlopen("libibverbs.so.1", RTLD_NOW);
    if (!library) return 1;
    void *(*list)(int *) = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
    int count = -1;
    if (!list || list != dlsym(RTLD_DEFAULT, "ibv_get_device_list") || !list(&count)) return 2;
    printf("%d\n", count);
    return 0;
}
"#;

/// Fails unless the program, compiled with these flags, finds the device.
fn assert_loads_itself(flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["source.c", "program"].map(|name| folder.path().join(name));
    fs::write(&source, LOADS_ITSELF).unwrap();
    let mut cc = Command::new("cc");
    let compiled = cc.args(flags).arg("-o").args([&program, &source]).arg("-ldl").output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        return skip(PROGRAMS, format!("needs a C compiler (cc) that knows {flags:?}"));
    }
    let library = built();
    let start = ["run", "--library", &library, "--devices", "lo", "--", program.to_str().unwrap()];
    // The test of leaks stops the process, which a debugger or a container may forbid.
    let mut command = invar(&start);
    let outcome = Run::start(command.env("ASAN_OPTIONS", "detect_leaks=0")).wait();
    assert_eq!(outcome.ok().stdout, "1\n", "{}", outcome.stderr);
}

#[test]
fn a_program_that_loads_libibverbs_itself_finds_the_devices() {
    assert_loads_itself(&[]);
}

#[test]
fn a_program_with_address_sanitizer_starts_and_finds_the_devices() {
    assert_loads_itself(&["-fsanitize=address"]);
}

#[test]
fn the_program_sees_the_devices_that_the_command_was_told() {
    let (_folder, path) = library("libibverbs.so");
    let script = ["sh", "-c", "echo \"$INVAR_SOFT_DEVICES\""];
    let with = |devices: &[&str]| {
        let arguments = [&["run", "--library", &path], devices, &["--"], &script[..]].concat();
        run_in(&[("INVAR_SOFT_DEVICES", "nowhere1")], &arguments)
    };
    let outcome = with(&["--devices", "lo"]);
    assert_eq!(outcome.ok().stdout, "lo\n");
    for (devices, by) in [
        (&["--devices", "lo,nowhere0"][..], "--devices: nowhere0"),
        (&[], "INVAR_SOFT_DEVICES: nowhere1"),
    ] {
        let outcome = with(devices);
        outcome.ended(USAGE, &format!("invar: {by} is none of the devices soft0 ("));
        outcome.ended(USAGE, " (lo)\n");
    }
}

#[test]
fn perf_moves_right_bytes_through_rdma_devices_of_the_library() {
    let library = built();
    let run = ["run", "--library", &library, "--devices", "lo", "--"];
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
        let args = [&run[..], &perf, flags].concat();
        let outcome = run_in(&[("INVAR_TRANSPORT", "ib")], &args);
        let result = json(&outcome.ok().stdout);
        assert_eq!(result["transport"], "ib", "{flags:?}: {result}");
        let rows = result["rows"].as_array().unwrap();
        assert!(rows.len() > 1 && rows.iter().all(|row| row["wrong"] == 0), "{flags:?}: {result}");
    }
}
