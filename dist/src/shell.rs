//! Runs other programs from the repository's root.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository's root.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest.parent().context("dist/ lies directly in the repository's root")?.to_owned())
}

/// A command that starts in the repository's root.
pub(crate) fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(program);
    command.args(args).current_dir(root()?).stdin(Stdio::null());
    Ok(command)
}

/// The cargo that runs this program, or else `cargo`.
pub(crate) fn cargo(args: &[&str]) -> Result<Command> {
    command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args)
}

/// The directory in which cargo keeps what it has downloaded and unpacked.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set")
}

/// Runs the command and returns what it writes to standard output.
pub(crate) fn read(mut command: Command) -> Result<String> {
    let line = line_of(&command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("`{line}` failed ({}): {}{}", output.status, stdout, stderr.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote no UTF-8"))
}

/// The command as a user would type it.
fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
