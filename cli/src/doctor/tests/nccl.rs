//! NCCL's library and its plugins.

use crate::doctor::stand_in::StandIn;

const OURS: &str = "libnccl-net-invar.so";

fn path(host: &StandIn, file: &str) -> String {
    host.tree.root().join(file).canonicalize().unwrap().display().to_string()
}

/// A host where the loader looks in `/opt/invar` before all others.
fn with(files: &[&str]) -> StandIn {
    let mut host = StandIn::plain();
    files.iter().for_each(|file| host.tree.file(file, ""));
    host.set("LD_LIBRARY_PATH", "/opt/invar:");
    host
}

#[test]
fn a_plugin_that_is_named_and_missing() {
    let mut host = with(&[]);
    host.set("NCCL_NET_PLUGIN", "invar");
    assert_eq!(host.findings(), ["bad plugin-missing NCCL_NET_PLUGIN"]);
    // A user of a package has no checkout of Invar.
    assert!(host.mend("plugin-missing").starts_with("eval \"$(invar env)\""));
    host.set("NCCL_NET_PLUGIN", "/opt/none.so");
    assert_eq!(host.findings(), ["bad plugin-missing NCCL_NET_PLUGIN"]);
    let report = host.examine();
    let finding = report.finding("plugin-missing");
    assert_eq!(finding.what, "/opt/none.so: there is no such file");
    assert!(finding.costs.starts_with("NCCL uses a network of"));
    host.env.remove("NCCL_NET_PLUGIN");
    host.set("NCCL_NET", "Invar");
    assert_eq!(host.examine().finding("plugin-missing").costs, "NCCL does not start");
    assert_eq!(host.findings(), ["bad plugin-missing NCCL_NET_PLUGIN"]);
}

#[test]
fn a_plugin_that_is_there_and_not_named() {
    let mut host = with(&["opt/invar/libnccl-net-invar.so"]);
    let plugin = path(&host, "opt/invar/libnccl-net-invar.so");
    assert_eq!(host.findings(), [format!("warn plugin-not-named {plugin}")]);
    assert_eq!(host.mend("plugin-not-named"), "export NCCL_NET_PLUGIN=invar NCCL_NET=Invar");
    host.set("NCCL_NET_PLUGIN", "invar");
    assert_eq!(host.findings(), ["note net-not-named NCCL_NET"]);
    host.set("NCCL_NET", "invar");
    assert_eq!(host.findings(), [""; 0]);
    host.set("NCCL_NET_PLUGIN", "/opt/invar/libnccl-net-invar.so");
    assert_eq!(host.findings(), [""; 0]);
    host.set("NCCL_NET", "Socket");
    assert_eq!(host.findings(), ["bad net-other NCCL_NET"]);
    host.set("NCCL_NET_PLUGIN", "none");
    assert_eq!(host.findings(), ["warn plugin-off NCCL_NET_PLUGIN"]);
}

#[test]
fn a_plugin_that_hides_another() {
    let mut host = with(&["opt/invar/libnccl-net-invar.so", "usr/lib/libnccl-net-invar.so"]);
    host.set("NCCL_NET_PLUGIN", "invar");
    host.set("NCCL_NET", "Invar");
    let old = path(&host, "usr/lib/libnccl-net-invar.so");
    assert_eq!(host.findings(), [format!("warn plugin-shadowed {old}")]);
    // A link to the first one is the first one.
    host.remove(&format!("usr/lib/{OURS}"));
    host.tree.link(&format!("usr/lib/{OURS}"), &format!("opt/invar/{OURS}"));
    assert_eq!(host.findings(), [""; 0]);
}

#[test]
fn a_plugin_of_others_that_is_loaded_in_its_place() {
    let files = [
        "opt/invar/libnccl-net-invar.so",
        "opt/hpcx/libnccl-net.so",
        "opt/hpcx/libnccl-net-ofi.so",
    ];
    let mut host = with(&files);
    host.tree.file("etc/ld.so.conf", "# nothing\ninclude /etc/ld.so.conf.d/*.conf");
    host.tree.file("etc/ld.so.conf.d/hpcx.conf", "/opt/hpcx");
    let other = path(&host, "opt/hpcx/libnccl-net.so");
    assert_eq!(host.findings(), [format!("warn plugin-other {other}")]);
    // RHEL writes a relative path.
    host.tree.file("etc/ld.so.conf", "include ld.so.conf.d/*.conf");
    assert_eq!(host.findings(), [format!("warn plugin-other {other}")]);
    host.set("NCCL_NET_PLUGIN", "ofi");
    assert_eq!(host.findings(), ["note plugin-other NCCL_NET_PLUGIN"]);
}

#[test]
fn libraries_of_nccl_that_are_old_or_hidden() {
    let mut host = StandIn::plain();
    host.tree.file("usr/lib/libnccl.so.2.12.7", "");
    host.tree.link("usr/lib/libnccl.so.2", "usr/lib/libnccl.so.2.12.7");
    let old = path(&host, "usr/lib") + "/libnccl.so.2";
    assert_eq!(host.findings(), [format!("bad nccl-old {old}")]);
    host.tree.file("opt/nccl/libnccl.so.2", "NCCL version 2.21.5+cuda12.4");
    host.set("LD_LIBRARY_PATH", "/opt/nccl");
    assert_eq!(host.findings(), [format!("note nccl-shadowed {old}")]);
    let what = host.what("nccl-shadowed");
    assert!(
        what.starts_with("NCCL 2.12.7, which ") && what.ends_with(" (NCCL 2.21.5) hides"),
        "{what}"
    );
}

#[test]
fn a_configuration_that_includes_itself_ends() {
    let host = StandIn::plain();
    host.tree.file("etc/ld.so.conf", "include /etc/ld.so.conf\ninclude /etc/ld.so.conf");
    assert_eq!(host.findings(), [""; 0]);
}
