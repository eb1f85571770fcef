//! Runs tests under the sanitizers of a nightly toolchain and under Miri, and the plugin's tests under
//! valgrind. It reports which of them this machine lacks, and why.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::no_std::host;
use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The name of the toolchain that has sanitizers.
const NIGHTLY: &str = "nightly";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The checks to run. Without a name, all checks run.
    checks: Vec<Check>,
    /// Run only tests whose names contain this text.
    #[arg(long)]
    filter: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Check {
    /// AddressSanitizer with LeakSanitizer: accesses out of bounds or after a free, and memory leaks.
    Address,
    /// ThreadSanitizer: data races.
    Thread,
    /// Miri: undefined behaviour of any kind, in code that Miri can interpret.
    Miri,
    /// Valgrind's memcheck: invalid accesses, uninitialized values and memory leaks.
    Valgrind,
}

/// The tests of one call of cargo. Tests that load Invar's libraries at run time are left out, because
/// the sanitizer's one runtime is in the program.
type Tests = &'static str;

const ADDRESS: &[Tests] = &[
    "-p invar-core --lib",
    "-p invar-linux --lib",
    "-p invar-verbs --lib",
    "-p invar-cuda --lib",
    "-p invar --lib",
    "-p invar-testkit --test soft_transfer --test soft_errors --test soft_teardown \
     --test soft_garbage --test socket --test comm --test library --test links \
     --test communicator --test proxy_engine --test proxy_host --test mr_cache",
    "-p invar-nccl-plugin --lib --test plugin --test plugin_socket",
];
const THREAD: &[Tests] = &["-p invar-linux --lib"];
/// Miri supports neither sockets nor mapped memory. The core needs none of them.
const MIRI: &[Tests] = &["-p invar-core --lib"];
const VALGRIND: &[Tests] = &["-p invar-nccl-plugin --test plugin --test plugin_socket"];

/// Runs the checks one after the other. Fails at the end if a check failed.
pub(crate) fn run(shell: &Shell, args: &Args) -> Result<()> {
    let all = Check::value_variants();
    let checks = if args.checks.is_empty() { all } else { &args.checks };
    let target_dir = Workspace::load(shell)?.target_dir.join("sanitize");
    let setup = Setup { shell, host: host(shell)?, target_dir: &target_dir, args };
    let mut failed = Vec::new();
    for check in checks {
        let name = check.name();
        match setup.run(*check) {
            Ok(Outcome::Passed) => println!("{name:9} ok"),
            Ok(Outcome::Skipped(why)) => println!("{name:9} NOT RUN: {why}"),
            Err(error) => {
                println!("{name:9} FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Address => "address",
            Check::Thread => "thread",
            Check::Miri => "miri",
            Check::Valgrind => "valgrind",
        }
    }

    fn tests(self) -> &'static [Tests] {
        match self {
            Check::Address => ADDRESS,
            Check::Thread => THREAD,
            Check::Miri => MIRI,
            Check::Valgrind => VALGRIND,
        }
    }
}

struct Setup<'a> {
    shell: &'a Shell,
    /// The target triple of this machine.
    host: String,
    /// Each check builds in a folder of its own below this one. These folders may be deleted.
    target_dir: &'a Path,
    args: &'a Args,
}

impl Setup<'_> {
    fn run(&self, check: Check) -> Result<Outcome> {
        if let Some(why) = self.lacks(check) {
            return Ok(Outcome::Skipped(why));
        }
        // Run all of the check's tests, even after one of them fails.
        let runs = check.tests().iter().map(|tests| self.shell.run(self.cargo(check, tests)));
        let failed: Vec<_> = runs.filter_map(|run| Some(format!("{:#}", run.err()?))).collect();
        if failed.is_empty() { Ok(Outcome::Passed) } else { bail!("{}", failed.join("; ")) }
    }

    /// Names what the check needs and this machine lacks.
    fn lacks(&self, check: Check) -> Option<String> {
        let says = |command| self.shell.read(command).ok();
        if check == Check::Valgrind {
            let version = says(self.shell.command("valgrind --version"));
            return version.is_none().then(|| "there is no valgrind".to_owned());
        }
        let Some(libdir) = says(self.nightly("rustc --print target-libdir")) else {
            return Some(format!("rustup has no toolchain {NIGHTLY}"));
        };
        let component = match check {
            Check::Miri if says(self.nightly("cargo miri --version")).is_some() => return None,
            Check::Miri => "component miri".to_owned(),
            _ => {
                let runtime = format!("librustc-nightly_rt.{}san.a", &check.name()[..1]);
                if Path::new(libdir.trim()).join(&runtime).exists() {
                    return None;
                }
                runtime
            }
        };
        Some(format!("the toolchain {NIGHTLY} has no {component}"))
    }

    fn nightly(&self, line: &str) -> Command {
        self.shell.command(&format!("rustup run {NIGHTLY} {line}"))
    }

    fn cargo(&self, check: Check, tests: Tests) -> Command {
        let of_host = self.host.to_uppercase().replace('-', "_");
        let mut cargo = match check {
            Check::Valgrind => self.shell.cargo("test"),
            Check::Miri => self.nightly("cargo miri test"),
            Check::Address | Check::Thread => self.nightly("cargo test"),
        };
        cargo.arg("--no-fail-fast").args(tests.split_whitespace());
        match check {
            Check::Valgrind => {
                let runner = "valgrind --quiet --error-exitcode=99 --fair-sched=yes \
                              --leak-check=full --show-leak-kinds=definite \
                              --errors-for-leak-kinds=definite";
                cargo.env(format!("CARGO_TARGET_{of_host}_RUNNER"), runner);
            }
            Check::Miri => {}
            Check::Address | Check::Thread => {
                // The installed standard library is not instrumented, so the compiler takes its ABI for
                // another one. With these two sanitizers the ABI is equal.
                let name = check.name();
                let flags = format!("-Zsanitizer={name} -Cunsafe-allow-abi-mismatch=sanitizer");
                cargo.env(format!("CARGO_TARGET_{of_host}_RUSTFLAGS"), flags);
                // With a named target, these flags do not apply to build scripts and macros.
                cargo.args(["--target", &self.host, "--target-dir"]);
                cargo.arg(self.target_dir.join(name));
                // Keep line tables, so that a finding names its line. Optimise, since instrumented code
                // is slow enough.
                cargo.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
                cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
            }
        }
        if check == Check::Thread {
            let file = self.shell.root().join("xtask/src/sanitize/thread.supp");
            cargo.env("TSAN_OPTIONS", format!("suppressions={}", file.display()));
        }
        cargo.arg("--").args(&self.args.filter);
        cargo
    }
}
