//! Hosts with one fault each. Every test compares all findings, so a check that finds too much fails
//! the tests of others.

mod gpu;
mod nccl;
mod network;
mod rdma;

use super::stand_in::StandIn;
use super::*;

#[test]
fn well_hosts_have_no_findings() {
    for host in [StandIn::plain(), StandIn::rdma()] {
        let report = host.examine();
        assert_eq!(report.short(), [""; 0]);
        assert!(report.is_well());
        let [well, unseen] = report.lines();
        assert!(well.len() >= CHECKS.len() && unseen.is_empty(), "{well:?} {unseen:?}");
    }
}

#[test]
fn a_host_with_a_gpu_beside_its_card_is_well() {
    let host = StandIn::rdma();
    host.gpu("pci0000:3a/0000:3a:00.0/0000:3b:01.0/0000:3d:00.0");
    host.tree.file("sys/module/nvidia_peermem/version", "550.54.15");
    let report = host.examine();
    assert_eq!(report.short(), [""; 0]);
    let [_, unseen] = report.lines();
    assert_eq!(unseen, ["whether PCIe switches redirect transfers (ACS): only root sees that"]);
}

#[test]
fn every_finding_says_what_it_costs_and_how_to_mend_it() {
    let mut host = StandIn::rdma();
    host.port(1, "state", "1: DOWN");
    host.facts.memlock = Some(65536);
    host.set("INVAR_TRANSPRT", "ib");
    let text = host.examine().as_text(false);
    let blocks: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(blocks.len(), 4, "{text}");
    for block in &blocks[..3] {
        let lines: Vec<&str> = block.lines().collect();
        assert!(lines[0].starts_with("bad   ") || lines[0].starts_with("warn  "), "{block}");
        assert!(lines[1].starts_with("      costs: ") && lines[1].len() > 20, "{block}");
        assert!(lines[2].starts_with("      mend:  ") && lines[2].len() > 20, "{block}");
    }
    assert!(
        blocks[0]
            .starts_with("bad   RLIMIT_MEMLOCK: this process may lock 64 KiB of memory [memlock]")
    );
    assert!(blocks[3].starts_with("15 checks: 1 bad, 2 warn, 0 note, "), "{text}");
    assert!(!text.contains("\nwell "));
    assert!(
        host.examine()
            .as_text(true)
            .contains("\nwell  mlx5_0 port 1: active, Ethernet, 100 Gb/sec")
    );
}

#[test]
fn the_json_names_each_finding_in_words_for_programs() {
    let mut host = StandIn::rdma();
    host.port(1, "state", "1: DOWN");
    host.remove("proc/sys/net/core/wmem_max");
    host.set("NCCL_IB_SPLIT_DATA_ON_QPS", "0");
    let json: serde_json::Value =
        serde_json::from_str(&host.examine().as_json("node7").unwrap()).unwrap();
    assert_eq!((&json["version"], &json["host"]), (&1.into(), &"node7".into()));
    assert_eq!(json["is_well"], false);
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 2);
    let finding = findings[0].as_object().unwrap();
    let mut fields: Vec<&str> = finding.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["check", "costs", "id", "mend", "severity", "subject", "what"]);
    let word = |name: &str| finding[name].as_str().unwrap();
    assert_eq!(
        [word("check"), word("severity"), word("id"), word("subject")],
        ["ports", "warn", "port-down", "mlx5_1 port 1"]
    );
    assert_eq!(findings[1]["severity"], "note");
    assert_eq!(json["unseen"][0]["check"], "buffers");
    assert!(json["unseen"][0]["what"].as_str().unwrap().starts_with("net.core.wmem_max: "));
    assert!(json["well"].as_array().unwrap().len() > 10);
}

#[test]
fn notes_leave_a_host_well() {
    let mut host = StandIn::plain();
    host.set("NCCL_IB_SPLIT_DATA_ON_QPS", "0");
    assert!(host.examine().is_well());
    host.set("NCCL_IB_TIMOUT", "22");
    assert!(!host.examine().is_well());
}

#[test]
fn checks_run_by_name_in_the_order_of_the_list() {
    let names = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        chosen(&names).map(|checks| checks.iter().map(|check| check.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&["nccl", "gids"]).unwrap(), ["gids", "nccl"]);
    assert_eq!(names(&[]).unwrap().len(), CHECKS.len());
    let refused = names(&["gids", "gid"]).unwrap_err().to_string();
    assert!(
        refused.starts_with("gid: there is no such check; there is settings, verbs, "),
        "{refused}"
    );
}

#[test]
fn settings_that_are_refused_or_unknown_are_found() {
    let mut host = StandIn::plain();
    host.set("INVAR_FIFO_DEPTH", "7");
    assert_eq!(host.findings(), ["bad setting-refused INVAR_FIFO_DEPTH"]);
    assert!(host.what("setting-refused").contains("power of two"));
    // One does not hide the others.
    host.set("NCCL_IB_TIMOUT", "3");
    host.set("NCCL_IB_QPS_PER_CONNECTION", "many");
    assert_eq!(
        host.findings(),
        [
            "bad setting-refused NCCL_IB_QPS_PER_CONNECTION",
            "bad setting-refused INVAR_FIFO_DEPTH",
            "warn setting-unknown NCCL_IB_TIMOUT",
        ]
    );
    let mut host = StandIn::plain();
    host.set("NCCL_IB_TIMOUT", "22");
    host.set("INVAR_WIRE", "nccl-2.14");
    host.set("NCCL_SOCKET_INLINE", "1");
    host.set("INVAR_EMPTY", "");
    assert_eq!(
        host.findings(),
        [
            "warn wire-without-proof INVAR_WIRE",
            "warn setting-unknown NCCL_IB_TIMOUT",
            "note setting-nccl-only NCCL_SOCKET_INLINE"
        ]
    );
    let what = host.what("setting-unknown");
    assert!(what.starts_with("set, and neither Invar nor NCCL reads a variable of that name"));
    assert!(what.ends_with("is NCCL_IB_TIMEOUT meant?"), "{what}");
}

#[test]
fn variables_of_nccls_files_count_after_those_of_the_environment() {
    let mut host = StandIn::plain();
    host.set("HOME", "/home/me");
    host.set("NCCL_IB_TIMEOUT", "20");
    let user = "# mine\nNCCL_IB_TIMEOUT=999\nNCCL_IB_TIMOUT=22\n";
    host.tree.file("home/me/.nccl.conf", user);
    host.tree.file("etc/nccl.conf", "NCCL_IB_TIMOUT=23\nNCCL_SOCKET_INLINE=1\n#NCCL_X=1\n");
    assert_eq!(
        host.findings(),
        ["warn setting-unknown NCCL_IB_TIMOUT", "note setting-nccl-only NCCL_SOCKET_INLINE"]
    );
    let report = host.examine();
    let mend = &report.finding("setting-unknown").mend;
    assert!(mend.starts_with("sed -i '/^NCCL_IB_TIMOUT=/d' /home/me/.nccl.conf "), "{mend}");
    let mend = &report.finding("setting-nccl-only").mend;
    assert_eq!(mend, "sed -i '/^NCCL_SOCKET_INLINE=/d' /etc/nccl.conf");
    assert!(report.lines()[0][0].starts_with("/home/me/.nccl.conf sets NCCL_IB_TIMOUT, "));
    // This file takes the place of the user's.
    host.set("NCCL_CONF_FILE", "/opt/nccl.conf");
    host.tree.file("opt/nccl.conf", "NCCL_IB_TIMEUOT=1\n");
    assert_eq!(host.findings().len(), 3);
}

#[test]
fn a_relative_file_of_nccl_is_below_the_root_that_is_given() {
    let mut host = StandIn::plain();
    host.set("NCCL_CONF_FILE", "job/nccl.conf");
    host.tree.file("job/nccl.conf", "NCCL_IB_TIMOUT=22\n");
    assert_eq!(host.findings(), ["warn setting-unknown NCCL_IB_TIMOUT"]);
    let mend = host.mend("setting-unknown");
    assert!(mend.starts_with("sed -i '/^NCCL_IB_TIMOUT=/d' /job/nccl.conf "), "{mend}");
}
