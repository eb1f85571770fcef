//! Builds the binaries without the paths of this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::dependencies::BINARIES;
use crate::shell;

/// The profile in the workspace's `Cargo.toml`, and the folder that cargo builds it in.
const PROFILE: &str = "distribution";
/// A larger plugin would be a mistake: it is loaded into every process of a job.
const PLUGIN_BYTES_MAX: usize = 5_000_000;

/// The stripped binaries.
pub(crate) struct Binaries {
    pub(crate) command: Vec<u8>,
    pub(crate) plugin: Vec<u8>,
    /// The native module of the Python package.
    pub(crate) module: Vec<u8>,
    /// The `libibverbs.so.1` of `invar run`.
    pub(crate) verbs: Vec<u8>,
}

/// The directory in which cargo builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let args = ["metadata", "--no-deps", "--locked", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&shell::read(shell::cargo(&args)?)?)?;
    let target =
        metadata["target_directory"].as_str().context("cargo names no target directory")?;
    Ok(target.into())
}

/// Builds the binaries, and checks them.
pub(crate) fn run(target: &Path) -> Result<Binaries> {
    let replaced = replaced_paths(target)?;
    let option = |prefix: &str| {
        let pairs = replaced.iter().map(|(path, name)| format!("{prefix}{path}={name}"));
        pairs.collect::<Vec<_>>()
    };
    let mut command = shell::cargo(&["build", "--locked", "--profile", PROFILE])?;
    for package in BINARIES {
        command.args(["--package", package]);
    }
    command.arg("--target-dir").arg(target);
    // Cargo's settings may name another target, and the packages are for this host.
    let host = host_target(&shell::read(shell::command("rustc", &["--version", "--verbose"])?)?)?;
    if let Ok(wanted) = env::var("CARGO_BUILD_TARGET") {
        ensure!(wanted == host, "CARGO_BUILD_TARGET={wanted}: packages are built for {host} only");
    }
    command.args(["--target", &host]);
    // The variable separates flags by this character. It replaces the user's own flags.
    command.env("CARGO_ENCODED_RUSTFLAGS", option("--remap-path-prefix=").join("\u{1f}"));
    // A dependency tunes its C for the processor that compiles it. At its own level 3 the C is larger and no faster.
    let for_all = ["-mtune=generic", "-O2"].map(str::to_owned);
    let flags = [option("-ffile-prefix-map="), for_all.to_vec()].concat();
    command.env("CFLAGS", flags.join(" "));
    shell::read(command)?;
    let read = |name: &str| {
        let path = target.join(&host).join(PROFILE).join(name);
        fs::read(&path).with_context(|| path.display().to_string())
    };
    let binaries = Binaries {
        command: read("invar")?,
        plugin: read("libnccl_net_invar.so")?,
        module: read("libinvar_python.so")?,
        verbs: read("libinvar_soft_verbs.so")?,
    };
    check("the command", &binaries.command, &replaced)?;
    check("the plugin", &binaries.plugin, &replaced)?;
    check("the Python module", &binaries.module, &replaced)?;
    check("libibverbs", &binaries.verbs, &replaced)?;
    let bytes = binaries.plugin.len();
    ensure!(bytes < PLUGIN_BYTES_MAX, "the plugin has {bytes} bytes, more than {PLUGIN_BYTES_MAX}");
    Ok(binaries)
}

/// The target of this host, from the answer of `rustc -vV`.
fn host_target(answer: &str) -> Result<String> {
    let host = answer.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

/// The paths of this machine and their names in the binaries. Of several that fit, the last one holds.
fn replaced_paths(target: &Path) -> Result<Vec<(String, String)>> {
    let home = shell::cargo_home()?;
    let sysroot = shell::read(shell::command("rustc", &["--print", "sysroot"])?)?;
    let text = |path: &Path| {
        path.to_str().map(str::to_owned).with_context(|| format!("{}: no UTF-8", path.display()))
    };
    let mut replaced = vec![
        (text(&home)?, "/cargo".to_owned()),
        (sysroot.trim().to_owned(), "/rust".to_owned()),
        (text(&shell::root()?)?, "/invar".to_owned()),
        (text(target)?, "/target".to_owned()),
    ];
    // Each registry has a folder whose name depends on cargo's settings.
    for entry in fs::read_dir(home.join("registry/src")).into_iter().flatten() {
        replaced.push((text(&entry?.path())?, "/crates".to_owned()));
    }
    Ok(replaced)
}

/// Fails if the binary still has one of the paths.
fn check(what: &str, binary: &[u8], replaced: &[(String, String)]) -> Result<()> {
    for (path, _) in replaced {
        let has_path = binary.windows(path.len()).any(|window| window == path.as_bytes());
        ensure!(!has_path, "{what} contains the path {path}: a build elsewhere would differ");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustc_names_its_host() {
        let answer =
            "rustc 1.90.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.90.0\n";
        assert_eq!(host_target(answer).unwrap(), "x86_64-unknown-linux-gnu");
        assert!(host_target("rustc 1.90.0").is_err());
    }

    #[test]
    fn a_binary_with_a_path_of_the_build_is_refused() {
        let replaced = [("/home/me".to_owned(), "/invar".to_owned())];
        assert!(check("it", b"..../invar/core....", &replaced).is_ok());
        let error = check("it", b"..../home/me/core....", &replaced).unwrap_err().to_string();
        assert!(error.contains("it contains the path /home/me"), "{error}");
    }
}
