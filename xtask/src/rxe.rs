//! The step `vm` of `cargo xtask ci`: tests Linux's own RoCE in a guest, as device and as peer.

mod chaos;
mod coll;
mod devices;
mod doctor;
mod faults;
mod interop;
mod perf;
mod plugin;
mod programs;

use std::env;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::vm;

/// How many guests run at a time where each waits for most of its time.
const GUESTS: usize = 2;
/// The most seconds that a guest may take. The host may be busy.
const GUEST_LIMIT: &str = "600";

/// Returns the part of the step that the user asks for, or `full`.
fn asked() -> Option<String> {
    env::var("INVAR_TEST_GUEST").ok().filter(|asked| !asked.is_empty())
}

/// Whether the user asks for more than CI has time for.
fn is_full() -> bool {
    asked().is_some()
}

type Part = fn(&Shell, &str) -> Result<()>;

/// The parts of the step. Each gets the path of the command `invar`.
const PARTS: [(&str, Part); 10] = [
    ("interop", |shell, _| interop::run(shell)),
    ("conformance", |shell, _| conformance(shell)),
    ("devices", devices::run),
    ("doctor", doctor::run),
    ("perf", perf::run),
    ("coll", coll::run),
    ("faults", faults::run),
    ("programs", programs::run),
    ("plugin", |shell, _| plugin::run(shell)),
    (CHAOS, chaos::run),
];
/// The part that CI leaves out.
const CHAOS: &str = "chaos";

/// Runs all parts of the step, one after the other, or only the one that the user asks for.
pub(crate) fn step(shell: &Shell) -> Result<Outcome> {
    if let Err(why) = vm::require(shell) {
        return Ok(Outcome::Skipped(format!("{why:#}")));
    }
    let asked = asked();
    let is_wanted = |part: &str| match asked.as_deref() {
        None => part != CHAOS,
        Some("full") => true,
        Some(asked) => part == asked,
    };
    let wanted: Vec<_> = PARTS.iter().filter(|(name, _)| is_wanted(name)).collect();
    ensure!(
        !wanted.is_empty(),
        "INVAR_TEST_GUEST is neither full nor one of {:?}",
        PARTS.map(|(name, _)| name)
    );
    let invar = built(shell, "build --workspace --bin", "invar")?.display().to_string();
    for (name, part) in wanted {
        let start = Instant::now();
        part(shell, &invar)?;
        println!("  {name:12}{:5.0} s", start.elapsed().as_secs_f64());
    }
    Ok(Outcome::Passed)
}

/// Runs the conformance kit of every NIC on both ends of the guest's cable.
fn conformance(shell: &Shell) -> Result<()> {
    let tests = built(shell, "test --no-run --workspace --test", "verbs_conformance")?;
    let line = format!("INVAR_TEST_RDMA=rxe_a,rxe_b {} --nocapture", tests.display());
    guest(shell, None, &line).map(drop)
}

/// Runs the shell command `line` in the guest and returns what it prints. `host` is a command that runs
/// on the host meanwhile.
pub(crate) fn guest(shell: &Shell, host: Option<&str>, line: &str) -> Result<String> {
    let mut command = shell.program(&env::current_exe()?);
    command.args(["vm", "--timeout", GUEST_LIMIT]);
    if let Some(host) = host {
        command.args(["--host", host]);
    }
    command.args(["--", "bash", "-c", line]);
    shell.read(command)
}

type Check<'a> = dyn Fn(&str) -> Result<()> + Sync + 'a;

/// A shell command to run in a guest, and the check of what it prints.
struct Trial<'a> {
    what: String,
    line: String,
    check: Box<Check<'a>>,
}

impl<'a> Trial<'a> {
    fn new(
        what: impl Into<String>,
        line: String,
        check: impl Fn(&str) -> Result<()> + Sync + 'a,
    ) -> Self {
        Trial { what: what.into(), line, check: Box::new(check) }
    }

    fn run(&self, shell: &Shell) -> Result<()> {
        let Trial { what, line, check } = self;
        let output = guest(shell, None, line).with_context(|| format!("where {what}"))?;
        check(&output).with_context(|| format!("where {what}; the guest said:\n{output}"))
    }
}

/// Runs trials, each in a guest of its own, several at a time. Starts no more of them after one has failed.
fn in_guests(shell: &Shell, trials: &[Trial<'_>]) -> Result<()> {
    let next = Mutex::new(trials.iter());
    let run_all = || loop {
        let Some(trial) = next.lock().unwrap_or_else(PoisonError::into_inner).next() else {
            return Ok(());
        };
        if let Err(error) = trial.run(shell) {
            *next.lock().unwrap_or_else(PoisonError::into_inner) = [].iter();
            return Err(error);
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..GUESTS).map(|_| scope.spawn(run_all)).collect();
        let ours = run_all();
        let theirs = others.into_iter().map(|other| other.join().expect("no trial panics"));
        theirs.fold(ours, Result::and)
    })
}

/// Runs `cargo ARGS` and returns the path of the program `name` that it builds.
fn built(shell: &Shell, args: &str, name: &str) -> Result<PathBuf> {
    let line = format!("{args} {name} --message-format=json-render-diagnostics");
    let output = shell.read(shell.cargo(&line))?;
    let program = output.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == name;
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    program.with_context(|| format!("`cargo {line}` builds no {name}"))
}
