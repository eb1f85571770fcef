//! The library has the symbols that programs and drivers look for.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use invar_testkit::skip::{PROGRAMS, skip};

use super::{Run, command, is_installed, library};

#[test]
fn the_symbols_and_their_versions_are_those_of_rdma_core() {
    const THEIRS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    if !Path::new(THEIRS).exists() || !is_installed("readelf", "binutils") {
        return skip(PROGRAMS, format!("compares with {THEIRS}, of Debian's libibverbs1"));
    }
    let symbols = |path: &Path, version: &str| {
        let Output { stdout, .. } =
            Command::new("readelf").args(["-W", "--dyn-syms"]).arg(path).output().unwrap();
        let text = String::from_utf8(stdout).unwrap();
        let names = text.lines().filter(|line| !line.contains(" UND ")).filter_map(|line| {
            let name = line.split_whitespace().find(|word| word.contains(version));
            name.map(|name| name.replace("@@", "@"))
        });
        names.collect::<Vec<_>>()
    };
    // Only programs older than rdma-core need those that are not default (`@`). Ours may not be the default,
    // because the library has private versions of several generations.
    let (ours, theirs) =
        (symbols(&library(), "@IBVERBS_"), symbols(Path::new(THEIRS), "@@IBVERBS_"));
    let missing: Vec<_> = theirs.iter().filter(|name| !ours.contains(name)).collect();
    assert!(theirs.len() > 100 && missing.is_empty(), "{missing:?}");
}

/// Symbols that drivers and programs of a generation of rdma-core import, by version.
const GENERATIONS: [&[(&str, &[&str])]; 3] = [
    &[("IBVERBS_PRIVATE_34", &["verbs_register_driver_34", "verbs_set_ops", "ibv_query_gid_type"])],
    &[("IBVERBS_PRIVATE_57", &["verbs_register_driver_57", "verbs_set_ops", "ibv_query_gid_type"])],
    &[
        (
            "IBVERBS_PRIVATE_59",
            &[
                "verbs_register_driver_59",
                "verbs_set_ops",
                "ibv_query_gid_type",
                "ibv_cmd_alloc_dmah",
                "ibv_cmd_create_cq_ex2",
                "ibv_cmd_free_dmah",
                "ibv_cmd_reg_mr_ex",
                "ibv_wr_opcode_str",
            ],
        ),
        ("IBVERBS_1.15", &["ibv_alloc_dmah", "ibv_dealloc_dmah", "ibv_reg_mr_ex"]),
        ("IBVERBS_1.16", &["ibv_dm_export_dmabuf_fd", "ibv_query_port_speed"]),
    ],
];

#[test]
fn a_program_that_needs_a_driver_of_any_generation_of_rdma_core_starts() {
    let folder = tempfile::tempdir().unwrap();
    let [map, theirs, source, program] =
        ["map", "libibverbs.so.1", "source.c", "program"].map(|name| folder.path().join(name));
    let compile = |arguments: &[&str], output: &Path| {
        let mut cc = Command::new("cc");
        cc.args(["-o", output.to_str().unwrap()]).arg(&source).args(arguments).output()
    };
    for generation in GENERATIONS {
        // A library that has no more than these symbols, to link to.
        let version = |(version, names): &(&str, &[&str])| {
            format!("{version} {{ global: {}; }};\n", names.join("; "))
        };
        fs::write(&map, generation.iter().map(version).collect::<String>()).unwrap();
        let names = || generation.iter().flat_map(|(_, names)| *names);
        let define = |name: &&str| format!("void {name}(void) {{}}\n");
        fs::write(&source, names().map(define).collect::<String>()).unwrap();
        let script = format!("-Wl,--version-script={}", map.display());
        let arguments = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &script];
        if !compile(&arguments, &theirs).is_ok_and(|output| output.status.success()) {
            return skip(PROGRAMS, "needs a C compiler (cc)");
        }
        let declare = |name: &&str| format!("extern void {name}(void);\n");
        let declared: String = names().map(declare).collect();
        let list = names().copied().collect::<Vec<_>>().join(", ");
        let text = format!(
            "{declared}void (*const used[])(void) = {{ {list} }};\n\
             int main(void) {{ return used[0] == 0; }}\n"
        );
        fs::write(&source, text).unwrap();
        let built = compile(&[theirs.to_str().unwrap()], &program).unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let mut started = command(&program, &[]);
        started.env("LD_BIND_NOW", "1");
        let (ok, text) = Run::start(started).outcome();
        assert!(ok, "{generation:?}: {text}");
    }
}
