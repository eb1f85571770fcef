//! `invar env`. Stand-ins for the plugin and for NCCL are compiled here.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::*;

const PLUGIN: &str = "libnccl-net-invar.so";
const NCCL: &str = "libnccl.so.2";

/// A directory with stand-ins for libraries.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        // The name must be quoted for a shell.
        Folder(TempDir::with_prefix("it's a folder").expect("a directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Compiles a shared library.
    fn library(&self, name: &str, source: &str) -> PathBuf {
        let (code, library) = (self.path().join(format!("{name}.c")), self.path().join(name));
        fs::write(&code, source).expect("a file");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code);
        assert!(compiler.status().expect("a C compiler").success());
        library
    }

    fn plugin(&self) -> PathBuf {
        self.library(PLUGIN, "int ncclNetPlugin_v6, ncclNetPlugin_v9;")
    }

    fn nccl(&self, version: u32) -> PathBuf {
        let source = format!("int ncclGetVersion(int *v) {{ *v = {version}; return 0; }}");
        self.library(NCCL, &source)
    }
}

/// `invar env ARGS` on a host without a Python environment.
fn invar_env(args: &[&str]) -> Command {
    let mut command = invar(&["env"]);
    command.args(args);
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
}

fn variables(plugin: &Path, nccl: &Path, loader_path: &Path) -> serde_json::Value {
    let mut command = invar_env(&["--json", "--plugin"]);
    command.arg(plugin).arg("--nccl").arg(nccl).env("LD_LIBRARY_PATH", loader_path);
    json(&Run::start(&mut command).wait().ok().stdout)
}

#[test]
fn an_old_nccl_gets_the_directory_and_a_later_one_the_path() {
    let folder = Folder::new();
    let (plugin, nccl) = (folder.plugin(), folder.nccl(21403));
    let shown = variables(&plugin, &nccl, Path::new("/none"));
    assert_eq!([&shown["nccl"]["version"], &shown["environment"]["NCCL_NET"]], ["2.14.3", "Invar"]);
    assert_eq!(shown["plugin"]["interfaces"], serde_json::json!([6, 9]));
    assert_eq!(shown["environment"]["NCCL_NET_PLUGIN"], "invar");
    let expected = format!("{}:/none", folder.path().display());
    assert_eq!(shown["environment"]["LD_LIBRARY_PATH"], expected);

    folder.nccl(22807);
    let shown = variables(&plugin, folder.path(), Path::new("/none"));
    assert_eq!(shown["environment"]["NCCL_NET_PLUGIN"], plugin.display().to_string());
    assert!(shown["environment"].get("LD_LIBRARY_PATH").is_none());
}

#[test]
fn a_plugin_that_the_loader_finds_needs_only_its_name() {
    let folder = Folder::new();
    let (plugin, nccl) = (folder.plugin(), folder.nccl(21403));
    let shown = variables(&plugin, &nccl, folder.path());
    assert_eq!(shown["plugin"]["loader_finds_it"], true);
    assert!(shown["environment"].get("LD_LIBRARY_PATH").is_none());
    // Another plugin of that name is not this one.
    let other = Folder::new();
    other.plugin();
    let shown = variables(&plugin, &nccl, other.path());
    assert_eq!(shown["plugin"]["loader_finds_it"], false);
}

#[test]
fn a_shell_evaluates_the_lines() {
    let folder = Folder::new();
    let plugin = folder.plugin();
    let mut command = invar_env(&["--plugin"]);
    let lines = Run::start(command.arg(&plugin)).wait().ok().stdout.clone();
    let mut shell =
        bare(Command::new("sh"), &["-c", "eval \"$1\"; echo $NCCL_NET_PLUGIN; echo \"$P\""]);
    // The name `P` stands for the variable below, since the shell itself needs no library.
    let lines = lines.replace("LD_LIBRARY_PATH=", "P=");
    let outcome = Run::start(shell.args(["sh", &lines])).wait();
    assert_eq!(outcome.ok().stdout, format!("invar\n{}\n", folder.path().display()));
}

#[test]
fn a_host_without_the_plugin_gets_an_error_that_names_the_ways_out() {
    let folder = Folder::new();
    let command = folder.path().join("invar");
    fs::copy(env!("CARGO_BIN_EXE_invar"), &command).expect("a copy of the command");
    // The loader stops its search at a file that is no library, so an installed plugin does not count.
    let broken = folder.path().join("broken");
    fs::create_dir(&broken).expect("a directory");
    fs::write(broken.join(PLUGIN), "no library").expect("a file");
    let mut command = bare(Command::new(command), &["env"]);
    let outcome = Run::start(command.env("LD_LIBRARY_PATH", broken)).wait();
    outcome.ended(FAILED, PLUGIN);
    outcome.ended(FAILED, "--plugin");
}

#[test]
fn what_is_no_plugin_or_no_nccl_that_invar_serves_is_refused() {
    let folder = Folder::new();
    let (plugin, nccl) = (folder.plugin(), folder.nccl(21312));
    let refusal = |plugin: &Path, nccl: &Path| {
        let mut command = invar_env(&["--plugin"]);
        Run::start(command.arg(plugin).arg("--nccl").arg(nccl)).wait().line().to_owned()
    };
    let line = refusal(&plugin, &nccl);
    assert!(line.contains("is NCCL 2.13.12") && line.contains("2.14"), "{line}");
    assert!(refusal(&plugin, &plugin).contains("ncclGetVersion"));
    assert!(refusal(&nccl, &nccl).contains("is no network plugin"));
    let code = folder.path().join(format!("{PLUGIN}.c"));
    assert!(refusal(&code, &nccl).contains(&format!("{}: ", code.display())));
    assert!(refusal(&plugin, &folder.path().join("none")).contains("no such file"));
    assert!(refusal(&folder.path().join("none"), &nccl).contains("--plugin"));
}
