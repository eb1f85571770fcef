//! Counts the instructions of operations with callgrind. The count is equal on every run and host.
//!
//! A program runs one case a given number of times and prints nothing: `PROGRAM CASE ITERATIONS`. The
//! benchmark runs it for N and for 2 N iterations. The difference is the cost of N iterations, without
//! start and warm-up. The device below the program completes at once, and its instructions are not
//! counted.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Args;
use super::callgrind::Profile;
use super::plot::{Figure, Values};
use crate::shell::Shell;
use crate::workspace::Workspace;

/// Cases whose instructions are counted in one way.
pub(super) struct Suite {
    pub(super) cases: &'static [Case],
    /// The prefix of the names of the device's functions. These functions and their callees stand for
    /// the driver and are counted apart. They must not be inlined, since verbs aren't.
    pub(super) device: &'static str,
    /// Picks the instructions of a run that count.
    pub(super) counted: fn(&Profile) -> u64,
    /// The environment variables of the programs.
    pub(super) env: Vec<(&'static str, String)>,
    /// The figure that `--plot` draws, if any.
    pub(super) figure: Option<&'static Figure>,
}

/// The plot leaves out cases where NCCL takes more than this: bars of single messages would be
/// invisible.
const PLOTTED_MAX: u64 = 10_000;

pub(super) struct Case {
    pub(super) name: &'static str,
    /// The program's name in cargo's folder of release builds.
    pub(super) program: &'static str,
    pub(super) argument: &'static str,
    pub(super) iterations: u64,
    /// The most instructions that Invar may take for an operation.
    pub(super) bar: Option<u64>,
    /// The instructions that NCCL 2.14.3 takes for this operation, if they were measured. NCCL ran over
    /// a null device of its own.
    pub(super) nccl: Option<u64>,
}

/// The names of the cases that have a bar.
pub(super) fn barred(cases: &[Case]) -> Vec<&'static str> {
    cases.iter().filter(|case| case.bar.is_some()).map(|case| case.name).collect()
}

impl Suite {
    /// Prints the table and returns the cases that miss their bar. The caller has built the programs.
    pub(super) fn run(&self, shell: &Shell, args: &Args) -> Result<Vec<String>> {
        let is_there = shell.read(shell.command("valgrind --version"));
        is_there.context("valgrind is missing: apt-get install valgrind")?;
        let target_dir = Workspace::load(shell)?.target_dir;
        let mut missed = Vec::new();
        let mut values = Values::new("measured on this host".to_owned(), &["Invar", "NCCL 2.14.3"]);
        println!(
            "{:18} {:>12} {:>9} {:>6} {:>12}   instructions an operation",
            "case", "Invar", "device", "bar", "NCCL 2.14.3"
        );
        for case in self.cases.iter().filter(|case| args.wants(case.name)) {
            let cost = self.measure(shell, case, &target_dir)?;
            let [bar, theirs] = [case.bar, case.nccl]
                .map(|count| count.map_or("-".to_owned(), |count| count.to_string()));
            println!(
                "{:18} {:12.1} {:9.1} {bar:>6} {theirs:>12}",
                case.name, cost.ours, cost.device
            );
            if let Some(nccl) = case.nccl.filter(|nccl| *nccl <= PLOTTED_MAX) {
                values.row(case.argument.to_owned(), [cost.ours, nccl as f64]);
            }
            for (function, instructions) in cost.functions.iter().take(args.top) {
                println!("{:18} {instructions:12.1} {function}", "");
            }
            if case.bar.is_some_and(|bar| cost.ours > bar as f64) {
                missed.push(case.name.to_owned());
            }
        }
        if let Some(figure) = self.figure {
            args.plot(figure, &values)?;
        }
        Ok(missed)
    }

    fn measure(&self, shell: &Shell, case: &Case, target_dir: &Path) -> Result<Cost> {
        let program = target_dir.join("release").join(case.program);
        let profile = |iterations: u64| -> Result<Profile> {
            let file = target_dir.join(format!("callgrind.{}.out", case.name));
            let mut valgrind = shell.command("valgrind --tool=callgrind --separate-threads=yes");
            valgrind.arg(format!("--callgrind-out-file={}", file.display()));
            valgrind.arg(&program).arg(case.argument).arg(iterations.to_string());
            valgrind.envs(self.env.iter().map(|(name, value)| (name, value)));
            shell.capture(valgrind)?;
            // The other threads' work depends on time.
            let first_thread = target_dir.join(format!("callgrind.{}.out-01", case.name));
            let text = fs::read_to_string(&first_thread);
            let text = text.with_context(|| first_thread.display().to_string())?;
            Profile::parse(&text)
        };
        let (once, twice) = (profile(case.iterations)?, profile(2 * case.iterations)?);
        self.cost(&once, &twice, case.iterations).with_context(|| case.name.to_owned())
    }

    /// The cost of one iteration. `once` is the profile of `iterations`, `twice` that of double the
    /// number.
    fn cost(&self, once: &Profile, twice: &Profile, iterations: u64) -> Result<Cost> {
        let each = |once: u64, twice: u64| (twice as f64 - once as f64) / iterations as f64;
        // Some functions of the null libibverbs have C names.
        let is_device = |name: &str| is_of(self.device, name) || name.starts_with("ibv_");
        let device = each(once.below(is_device), twice.below(is_device));
        let total = each((self.counted)(once), (self.counted)(twice));
        ensure!(total > 0.0, "twice the iterations cost no more: does it heed their number?");
        let own = |(name, cost): (&String, &u64)| {
            (name.clone(), each(once.own.get(name).copied().unwrap_or(0), *cost))
        };
        let mut functions: Vec<(String, f64)> = twice.own.iter().map(own).collect();
        functions.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        functions.retain(|(_, cost)| *cost >= 0.05);
        Ok(Cost { ours: total - device, device, functions })
    }
}

/// The instructions that one operation takes.
#[derive(Debug, PartialEq)]
struct Cost {
    ours: f64,
    device: f64,
    /// The cost of each function without its callees, largest first. The device's functions are among
    /// them.
    functions: Vec<(String, f64)>,
}

/// Whether `function` belongs to `path`. For `krate::`, `krate::f` and `<krate::Nic as …>::f` do. A
/// function that has a type of `krate` among its parameters does not.
pub(super) fn is_of(path: &str, function: &str) -> bool {
    function.trim_start_matches(['<', '&']).starts_with(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(counted: fn(&Profile) -> u64) -> Suite {
        Suite { cases: &[], device: "null::", counted, env: Vec::new(), figure: None }
    }

    fn profile(iterations: u64) -> Profile {
        Profile::parse(&format!(
            "events: Ir\n\
             fn=(1) main\n1 {}\ncfn=(2) <null::Nic as Nic>::poll\ncalls=1 1\n1 {}\n\
             fn=(2)\n1 {}\ncfn=(3) memcpy\ncalls=1 1\n1 {}\n\
             fn=(3)\n1 {}\n",
            1000 + 50 * iterations,
            9 + 7 * iterations,
            9 + 4 * iterations,
            3 * iterations,
            3 * iterations,
        ))
        .unwrap()
    }

    #[test]
    fn the_difference_of_two_runs_leaves_out_start_and_device() {
        let cost = suite(Profile::total).cost(&profile(10), &profile(20), 10).unwrap();
        assert_eq!((cost.ours, cost.device), (50.0, 7.0));
        let functions = [("main", 50.0), ("<null::Nic as Nic>::poll", 4.0), ("memcpy", 3.0)];
        assert_eq!(cost.functions, functions.map(|(name, cost)| (name.to_owned(), cost)));
    }

    #[test]
    fn what_is_not_counted_is_left_out() {
        let calls = |profile: &Profile| profile.below(|function| is_of("protocol::", function));
        let profile = |iterations: u64| {
            Profile::parse(&format!(
                "events: Ir\n\
                 fn=(1) main\n1 {}\ncfn=(2) protocol::isend\n\
                 calls=1 1\n1 {}\n\
                 fn=(2)\n1 {}\ncfn=(3) <null::Nic as Nic>::post_send\n\
                 calls=1 1\n1 {}\n\
                 fn=(3)\n1 {}\n",
                1000 + 50 * iterations,
                90 * iterations,
                60 * iterations,
                30 * iterations,
                30 * iterations,
            ))
            .unwrap()
        };
        let cost = suite(calls).cost(&profile(10), &profile(20), 10).unwrap();
        assert_eq!((cost.ours, cost.device), (60.0, 30.0));
    }

    #[test]
    fn a_program_that_ignores_its_iterations_is_found() {
        assert!(suite(Profile::total).cost(&profile(10), &profile(10), 10).is_err());
    }

    #[test]
    fn protocol_over_the_device_is_not_the_device() {
        assert!(is_of("null::", "null::Nic::poll"));
        assert!(is_of("null::", "<&null::Nic as invar_core::nic::Nic>::poll"));
        assert!(!is_of("null::", "<invar_core::send::SendComm<null::Nic>>::isend"));
    }
}
