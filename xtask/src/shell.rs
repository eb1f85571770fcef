//! Runs other programs from the repository's root.

use std::env;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Knows where commands run and whether their output is shown.
pub(crate) struct Shell {
    root: PathBuf,
    verbose: bool,
}

impl Shell {
    /// Creates a shell. With `verbose` it shows the output of every command as it comes.
    pub(crate) fn new(verbose: bool) -> Result<Shell> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("xtask/ lies directly in the repository's root")?;
        Ok(Shell { root: root.to_owned(), verbose })
    }

    /// The repository's root, where every command starts.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A command for the program at `path`, to be run by one of the methods below.
    pub(crate) fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.current_dir(&self.root);
        command
    }

    /// A command from a program's name and its arguments, separated by spaces. Add an argument that may
    /// contain a space to the result.
    pub(crate) fn command(&self, line: &str) -> Command {
        let (name, args) = line.split_once(' ').unwrap_or((line, ""));
        let mut command = self.program(Path::new(name));
        command.args(args.split_whitespace());
        command
    }

    /// A command for the cargo that runs this program, or else for `cargo`. See [`Shell::command`] for
    /// the arguments.
    pub(crate) fn cargo(&self, args: &str) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.program(Path::new(&cargo));
        command.args(args.split_whitespace());
        if std::io::stderr().is_terminal() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        command
    }

    /// Runs the command to its end. Shows its output only if the command fails or `verbose` is set.
    pub(crate) fn run(&self, command: Command) -> Result<()> {
        if self.verbose { self.stream(command) } else { self.capture(command).map(drop) }
    }

    /// Runs the command to its end and returns its output, standard error included.
    pub(crate) fn capture(&self, mut command: Command) -> Result<String> {
        let line = line_of(&command);
        let (mut reader, writer) = std::io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
        // The command holds the pipe's write ends. The read below would not end while the command
        // lives.
        drop(command);
        let mut output = Vec::new();
        reader.read_to_end(&mut output)?;
        let output = String::from_utf8_lossy(&output).into_owned();
        let status = child.wait()?;
        if !status.success() {
            eprint!("{output}");
            bail!("`{line}` failed ({status})");
        }
        Ok(output)
    }

    /// Runs the command to its end. Its output goes where this program's output goes.
    pub(crate) fn stream(&self, mut command: Command) -> Result<()> {
        let line = line_of(&command);
        let status = command
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("cannot start `{line}`"))?;
        if !status.success() {
            bail!("`{line}` failed ({status})");
        }
        Ok(())
    }

    /// Runs the command and returns what it writes to standard output.
    pub(crate) fn read(&self, mut command: Command) -> Result<String> {
        let line = line_of(&command);
        let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{line}` failed ({}): {}", output.status, stderr.trim());
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote no UTF-8"))
    }
}

/// The command as a user would type it.
fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
    command.get_args().fold(name.into_owned(), |line, arg| {
        let arg = arg.to_string_lossy();
        if arg.is_empty() || arg.contains(' ') {
            format!("{line} '{arg}'")
        } else {
            line + " " + &arg
        }
    })
}
