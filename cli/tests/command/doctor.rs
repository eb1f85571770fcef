//! `invar doctor`.

use std::path::Path;
use std::process::Command;

use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::skip::{NAMESPACES, skip};
use invar_testkit::sysfs::Tree;
use invar_testkit::unused;
use serde_json::Value;

use crate::*;

/// The words for programs of all findings.
fn ids(outcome: &Outcome) -> Vec<String> {
    let report = json(&outcome.stdout);
    let is_well = report["is_well"].as_bool().expect("a truth value");
    assert_eq!(outcome.status, Some(if is_well { 0 } else { 1 }), "{}", outcome.stdout);
    let id = |finding: &Value| finding["id"].as_str().expect("a word").to_owned();
    report["findings"].as_array().expect("a list").iter().map(id).collect()
}

/// A tree with a RoCE device of the kernel.
fn tree(device: &str) -> Tree {
    let tree = Tree::empty();
    for (file, text) in [
        ("state", "4: ACTIVE"),
        ("link_layer", "Ethernet"),
        ("rate", "200 Gb/sec (4X HDR)"),
        ("gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001"),
        ("gid_attrs/types/0", "RoCE v2"),
        ("gid_attrs/ndevs/0", "lo"),
    ] {
        tree.file(&format!("sys/class/infiniband/{device}/ports/1/{file}"), text);
    }
    tree.file("sys/class/infiniband_verbs/uverbs0/ibdev", device);
    tree.file("dev/infiniband/uverbs0", "");
    tree
}

fn root(tree: &Tree) -> String {
    tree.root().display().to_string()
}

#[test]
fn the_exit_status_says_whether_this_host_is_well() {
    let outcome = run(&["doctor", "--json"]);
    ids(&outcome);
    let listed = json(&run(&["doctor", "--list", "--json"]).ok().stdout);
    let names: Vec<&Value> =
        listed.as_array().unwrap().iter().map(|check| &check["name"]).collect();
    let report = json(&outcome.stdout);
    assert_eq!(report["checks"].as_array().unwrap().iter().collect::<Vec<_>>(), names);
    let text = run(&["doctor", "--verbose"]);
    assert_eq!(text.status, outcome.status);
    assert!(text.stdout.lines().last().unwrap().starts_with("15 checks: "), "{}", text.stdout);
}

#[test]
fn a_refused_variable_is_a_finding_and_ends_no_check() {
    let args = ["doctor", "settings", "memlock", "--json"];
    let outcome = run_in(&[("INVAR_FIFO_DEPTH", "7")], &args);
    assert_eq!(ids(&outcome), ["setting-refused"]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(1), ""));
    assert!(outcome.stdout.contains("\"check\": \"memlock\""), "{}", outcome.stdout);
}

#[test]
fn a_device_that_libibverbs_does_not_list_is_found() {
    let fake = FakeCuda::new().with_null_verbs();
    let found = |device: &str| {
        let tree = tree(device);
        let mut command = invar(&["doctor", "verbs", "--json", "--root", &root(&tree)]);
        let _installed = fake.give_to(&mut command);
        ids(&Run::start(&mut command).wait())
    };
    assert_eq!(found("null0"), [""; 0]);
    assert_eq!(found("null1"), ["provider-missing"]);
}

#[test]
fn the_sysfs_of_the_settings_is_the_one_that_is_read() {
    let tree = tree("null0");
    tree.file("sys/class/infiniband/null0/ports/1/state", "1: DOWN");
    let sysfs = format!("{}/sys", root(&tree));
    let outcome = run_in(&[("INVAR_SYSFS", sysfs.as_str())], &["doctor", "ports", "--json"]);
    assert_eq!(ids(&outcome), ["port-down"]);
}

#[test]
fn files_that_never_end_do_not_keep_it_waiting() {
    let tree = tree("null0");
    tree.file("usr/lib/other", "");
    tree.file("proc/sys/net/core/other", "");
    for file in ["usr/lib/libnccl.so.2", "proc/sys/net/core/rmem_max", "dev/infiniband/uverbs1"] {
        let made = shell::clean(&mut Command::new("mkfifo")).arg(tree.root().join(file)).status();
        assert!(made.expect("mkfifo").success());
    }
    tree.file("sys/class/infiniband_verbs/uverbs1/ibdev", "null1");
    let outcome = run(&["doctor", "--json", "--root", &root(&tree)]);
    ids(&outcome);
    assert!(outcome.stdout.contains("net.core.rmem_max: '' is no number"), "{}", outcome.stdout);
}

/// `invar ARGS` as root of a user namespace of its own; `None` where the kernel forbids that.
fn unshared(flags: &str, shell_line: &str, args: &[&str]) -> Option<Outcome> {
    let mut probe = Command::new("unshare");
    let may = shell::clean(&mut probe).args([flags, "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        skip(NAMESPACES, format!("no `unshare {flags}` here"));
        return None;
    }
    let mut command = Command::new("unshare");
    shell::clean(&mut command).args([
        flags,
        "sh",
        "-c",
        &format!("{shell_line} exec \"$0\" \"$@\""),
    ]);
    command.arg(Path::new(env!("CARGO_BIN_EXE_invar"))).args(args);
    Some(Run::start(&mut command).wait())
}

#[test]
fn a_namespace_without_an_interface_that_is_up() {
    let args = ["doctor", "--json", "interfaces"];
    let Some(outcome) = unshared("-rn", "", &args) else { return };
    assert_eq!(ids(&outcome), ["interface-none"]);
    let Some(outcome) = unshared("-rn", "ip link set lo up || exit 9;", &args) else { return };
    // A host without iproute2.
    if outcome.status != Some(9) {
        assert_eq!(ids(&outcome), ["interface-loopback"]);
    }
}

#[test]
fn the_limit_on_locked_memory_holds_for_root_of_a_container() {
    let tree = tree("null0");
    let args = ["doctor", "--json", "memlock", "--root", &root(&tree)];
    let Some(outcome) = unshared("-r", "ulimit -l 64;", &args) else { return };
    assert_eq!(ids(&outcome), ["memlock-limit"]);
    assert!(outcome.stdout.contains("this process may lock 64 KiB"), "{}", outcome.stdout);
}

#[test]
fn a_peer_where_nobody_listens_is_found() {
    let addr = unused::address().to_string();
    let outcome = run(&["doctor", "--json", "--peer", &addr]);
    assert_eq!(ids(&outcome), ["peer-silent"]);
    assert_eq!(json(&outcome.stdout)["checks"], serde_json::json!(["peer"]));
    let outcome = run(&["doctor", "--json", "--peer", &addr, "settings"]);
    assert_eq!(json(&outcome.stdout)["checks"], serde_json::json!(["settings", "peer"]));
}

#[test]
fn a_server_of_one_device_offers_that_device_alone() {
    let devices = json(&run(&["devices", "--json"]).ok().stdout);
    let loopback = devices.as_array().unwrap().last().unwrap()["name"].as_str().unwrap().to_owned();
    let args = ["perf", "--server", "127.0.0.1:0", "--keep", "--nic", &loopback];
    let (server, addr) = server(&mut invar(&args));
    for _ in 0..2 {
        let outcome = run(&["doctor", "--json", "--peer", &addr]);
        outcome.ok();
        let report = json(&outcome.stdout);
        let well = report["well"].as_array().unwrap();
        let pairs = well.iter().map(|well| well["what"].as_str().unwrap());
        let pairs: Vec<&str> = pairs.filter(|what| what.contains(" to ")).collect();
        let [what] = pairs[..] else { panic!("{report}") };
        assert!(
            what.starts_with(&format!("{loopback} to {loopback} of {addr}: path MTU 8128, ")),
            "{what}"
        );
    }
    drop(server);
}

#[test]
fn settings_that_differ_between_the_ends_are_found() {
    let mut command = invar(&["perf", "--server", "127.0.0.1:0", "--keep"]);
    let (_server, addr) = server(command.env("NCCL_IB_TC", "106"));
    let outcome = run_in(&[("NCCL_IB_SL", "3")], &["doctor", "--json", "--peer", &addr]);
    let report = json(&outcome.stdout);
    let findings = report["findings"].as_array().unwrap().iter();
    let differ = findings.filter(|finding| finding["id"] == "setting-differs");
    let differ: Vec<&str> = differ.map(|finding| finding["what"].as_str().unwrap()).collect();
    let sl = "NCCL_IB_SL is 0 there, and 3 here";
    assert_eq!(differ, [sl, "NCCL_IB_TC is 106 there, and 0 here"]);
    assert!(outcome.stdout.contains(&format!("{addr}: its clock is ")), "{}", outcome.stdout);
}

#[test]
fn the_hosts_of_a_file_are_shown_side_by_side_the_worst_first() {
    let (_first, well) = server(&mut invar(&["perf", "--server", "127.0.0.1:0", "--keep"]));
    let (_second, other) = server(&mut invar(&["perf", "--server", "127.0.0.1:0", "--keep"]));
    let silent = unused::address().to_string();
    let file = Tree::empty();
    file.file("hosts", &format!("{well} slots=8\n# the second rack\n{silent}\n{other}\n"));
    let path = file.root().join("hosts").display().to_string();
    let outcome = run(&["doctor", "--json", "--hosts", &path]);
    assert_eq!(ids(&outcome).first().map(String::as_str), Some("peer-silent"));
    let report = json(&outcome.stdout);
    let rows = report["hosts"].as_array().unwrap();
    assert_eq!((&rows[0]["host"], &rows[0]["verdict"]), (&silent.into(), &"silent".into()));
    // Each device reaches one of each server, and is tried no more.
    let reached = |host: &str| {
        let row = |row: &&Value| row["host"] == host && row["verdict"] != "unreachable";
        let mut devices: Vec<&str> =
            rows.iter().filter(row).map(|row| row["device"].as_str().unwrap()).collect();
        devices.sort_unstable();
        devices
    };
    assert!(!reached(&well).is_empty(), "{report}");
    assert_eq!(reached(&well), reached(&other));
    assert!(reached(&well).windows(2).all(|pair| pair[0] != pair[1]), "{report}");
    assert_eq!(report["checks"], serde_json::json!(["peer"]));
    let text = run(&["doctor", "--hosts", &path]).stdout;
    let head: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["host", "result", "device", "peer's", "MTU", "us", "GB/s"]);
}
