//! The command `invar` as a library, for programs that bring a NIC.
//!
//! A port's command is a program that provides its NIC and calls [`run`]:
//!
//! ```no_run
//! # fn provide() {}
//! fn main() -> std::process::ExitCode {
//!     // Calls `invar::provide`.
//!     provide();
//!     invar_cli::run()
//! }
//! ```

mod coll;
mod devices;
mod doctor;
mod drawing;
mod exports;
mod failure;
mod inspect;
mod logger;
mod output;
mod parent;
mod perf;
mod ports;
mod run;
mod settings;
mod size;
mod top;
mod trace;

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use invar::{LogLevel, Settings};
use invar_linux::interface::resolve;

use failure::Failure;
use logger::tell;

/// NCCL's network transport: measure it, and see what it runs on.
///
/// Environment variables set what no flag does: `invar settings` shows all of them.
#[derive(Parser)]
#[command(name = "invar", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Perf(perf::Args),
    Coll(coll::Args),
    Run(run::Args),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Env(exports::Args),
    Inspect(inspect::Args),
    Settings(settings::Args),
    Top(top::Args),
    Trace(trace::Args),
}

/// The definition of the command's arguments, for manual pages and shell completions.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Runs the command with the arguments of the process.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if is_help(error.kind()) => error.exit(),
        Err(error) => return Failure::usage(one_line(&error)).report(),
    };
    match execute(cli.command) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn execute(command: Command) -> Result<ExitCode, Failure> {
    match command {
        // To this command and to `settings` a refused variable is a finding.
        Command::Doctor(args) => doctor::run(&args),
        Command::Env(args) => exports::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Settings(args) => settings::run(&args),
        Command::Perf(args) => perf::run(&args, &settings_for(args.is_child())?),
        Command::Coll(args) => coll::run(&args, &settings_for(args.is_child())?),
        Command::Devices(args) => devices::run(&args, &settings_for(false)?),
    }
}

/// Reads the environment, and tells what is odd about it. If this process is a child, another process of this command
/// started it, and reports for both.
fn settings_for(is_child: bool) -> Result<Settings, Failure> {
    let mut settings = Settings::from_env()?;
    // This call takes the remarks out of the settings. Otherwise the log would tell them again.
    tell_remarks(&mut settings, is_child);
    // Unless the user asks for more, the log has only warnings that the command's own error does not repeat, such as
    // why nothing moves.
    invar::log_to_stderr(&settings);
    Ok(settings)
}

/// Tells what is odd about the variables, unless this process is a child or the log is to have no warnings.
fn tell_remarks(settings: &mut Settings, is_child: bool) {
    let remarks = settings.take_remarks();
    if settings.log_level() >= LogLevel::Warn && !is_child {
        remarks.iter().for_each(|remark| tell(format_args!("warning: {remark}")));
    }
}

/// Resolves `HOST:PORT`, or `HOST` if there is a default port, to addresses.
fn resolved(addr: &str, default_port: Option<u16>) -> Result<Vec<SocketAddr>, Failure> {
    resolve(addr, default_port).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::usage(error),
        _ => Failure::new(error),
    })
}

/// Whether clap's message is to be printed whole, because it is a help text or the version.
fn is_help(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// The first paragraph of clap's message, without its decoration.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let paragraph = text.lines().take_while(|line| !line.trim().is_empty());
    let line = paragraph.map(str::trim).collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        definition().debug_assert();
    }
}
