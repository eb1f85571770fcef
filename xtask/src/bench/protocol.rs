//! Instructions that the protocol takes, over a device that completes at once and costs nothing.
//!
//! The programs are in invar-testkit. Each runs one case so many times and prints nothing:
//! `PROGRAM CASE ITERATIONS`. It runs twice, for N and for 2 N iterations, and the difference is
//! that of N iterations, without start and warm-up.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Args;
use super::callgrind::Profile;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// Functions of the null device: they and what they call stand for the driver, and are counted
/// apart. They are not to be inlined, as verbs aren't.
const DEVICE: &str = "invar_testkit::null::";

/// Calls into the protocol that are functions of their own. Where a case has them, what drives
/// them is not counted; elsewhere they are part of the loop around them, and that is.
const CALLS: &str = "::call::Called as ";

pub(super) struct Case {
    pub(super) name: &'static str,
    program: &'static str,
    argument: &'static str,
    iterations: u64,
    /// Instructions an operation that the protocol may take.
    bar: Option<u64>,
    /// What NCCL 2.14.3 takes for the same, measured over a null device of its own.
    nccl: u64,
}

const fn message(name: &'static str, iterations: u64, bar: Option<u64>, nccl: u64) -> Case {
    Case { name, program: "bench_protocol", argument: name, iterations, bar, nccl }
}

pub(super) const CASES: [Case; 13] = [
    message("msg8-w1", 4096, Some(220), 624),
    message("msg8-w32", 4096, Some(220), 785),
    message("msg8-q4", 4096, None, 1063),
    message("group8-w1", 1024, Some(1400), 3271),
    message("idle-test", 16384, Some(20), 33),
    message("idle-isend", 16384, None, 40),
    message("msg8-w1-calls", 4096, None, 624),
    message("msg8-w32-calls", 4096, None, 785),
    message("msg8-q4-calls", 4096, None, 1063),
    message("group8-w1-calls", 1024, None, 3271),
    message("idle-test-calls", 16384, None, 33),
    message("idle-isend-calls", 16384, None, 40),
    Case {
        name: "reg-hit-10000",
        program: "bench_mr_cache",
        argument: "10000",
        iterations: 4096,
        bar: Some(300),
        nccl: 55_851,
    },
];

/// Prints the table and returns the cases that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let is_there = shell.read(shell.command("valgrind --version"));
    is_there.context("valgrind is missing: apt-get install valgrind")?;
    let cases: Vec<&Case> = CASES.iter().filter(|case| args.wants(case.name)).collect();
    let mut programs: Vec<&str> = cases.iter().map(|case| case.program).collect();
    programs.dedup();
    for program in programs {
        let line = format!("build --release --package invar-testkit --bin {program}");
        shell.run(shell.cargo(&line))?;
    }
    let target_dir = Workspace::load(shell)?.target_dir;
    let mut missed = Vec::new();
    println!(
        "{:16} {:>12} {:>9} {:>6} {:>12}   instructions an operation",
        "case", "protocol", "device", "bar", "NCCL 2.14.3"
    );
    for case in cases {
        let cost = measure(shell, case, &target_dir)?;
        let bar = case.bar.map_or("-".to_owned(), |bar| bar.to_string());
        println!(
            "{:16} {:12.1} {:9.1} {bar:>6} {:12}",
            case.name, cost.protocol, cost.device, case.nccl
        );
        for (function, instructions) in cost.functions.iter().take(args.top) {
            println!("{:16} {instructions:12.1} {function}", "");
        }
        if case.bar.is_some_and(|bar| cost.protocol > bar as f64) {
            missed.push(case.name.to_owned());
        }
    }
    Ok(missed)
}

/// Instructions for one operation.
#[derive(Debug, PartialEq)]
struct Cost {
    protocol: f64,
    device: f64,
    /// By function, without what it calls, largest first; the device's too.
    functions: Vec<(String, f64)>,
}

fn measure(shell: &Shell, case: &Case, target_dir: &Path) -> Result<Cost> {
    let program = target_dir.join("release").join(case.program);
    let profile = |iterations: u64| -> Result<Profile> {
        let file = target_dir.join(format!("callgrind.{}.out", case.name));
        let mut valgrind = shell.command("valgrind --tool=callgrind");
        valgrind.arg(format!("--callgrind-out-file={}", file.display()));
        valgrind.arg(&program).arg(case.argument).arg(iterations.to_string());
        shell.capture(valgrind)?;
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Profile::parse(&text)
    };
    cost(&profile(case.iterations)?, &profile(2 * case.iterations)?, case.iterations)
        .with_context(|| case.name.to_owned())
}

/// `once` ran `iterations`, `twice` ran double that.
fn cost(once: &Profile, twice: &Profile, iterations: u64) -> Result<Cost> {
    let each = |once: u64, twice: u64| (twice as f64 - once as f64) / iterations as f64;
    let device = each(once.below(is_device), twice.below(is_device));
    let total = each(counted(once), counted(twice));
    ensure!(total > 0.0, "twice the iterations cost no more: does it heed their number?");
    let own = |(name, cost): (&String, &u64)| {
        (name.clone(), each(once.own.get(name).copied().unwrap_or(0), *cost))
    };
    let mut functions: Vec<(String, f64)> = twice.own.iter().map(own).collect();
    functions.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    functions.retain(|(_, cost)| *cost >= 0.05);
    Ok(Cost { protocol: total - device, device, functions })
}

/// All, or what is spent in calls if they are functions of their own.
fn counted(profile: &Profile) -> u64 {
    match profile.below(|function| function.contains(CALLS)) {
        0 => profile.total(),
        calls => calls,
    }
}

/// `invar_testkit::null::f` and `<invar_testkit::null::Nic as …>::f`, but not a function of ours
/// that has a device's type among its parameters.
fn is_device(function: &str) -> bool {
    function.trim_start_matches(['<', '&']).starts_with(DEVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(iterations: u64) -> Profile {
        Profile::parse(&format!(
            "events: Ir\n\
             fn=(1) main\n1 {}\ncfn=(2) <invar_testkit::null::Nic as Nic>::poll\ncalls=1 1\n1 {}\n\
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
        let cost = cost(&profile(10), &profile(20), 10).unwrap();
        assert_eq!((cost.protocol, cost.device), (50.0, 7.0));
        let device = "<invar_testkit::null::Nic as Nic>::poll";
        let functions = [("main", 50.0), (device, 4.0), ("memcpy", 3.0)];
        assert_eq!(cost.functions, functions.map(|(name, cost)| (name.to_owned(), cost)));
    }

    #[test]
    fn what_drives_calls_is_left_out() {
        let profile = |iterations: u64| {
            Profile::parse(&format!(
                "events: Ir\n\
                 fn=(1) main\n1 {}\ncfn=(2) <bench::call::Called as bench::call::Calls>::isend\n\
                 calls=1 1\n1 {}\n\
                 fn=(2)\n1 {}\ncfn=(3) <invar_testkit::null::Nic as Nic>::post_send\n\
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
        let cost = cost(&profile(10), &profile(20), 10).unwrap();
        assert_eq!((cost.protocol, cost.device), (60.0, 30.0));
    }

    #[test]
    fn a_program_that_ignores_its_iterations_is_found() {
        assert!(cost(&profile(10), &profile(10), 10).is_err());
    }

    #[test]
    fn protocol_over_the_device_is_not_the_device() {
        assert!(is_device("invar_testkit::null::Nic::poll"));
        assert!(is_device("<&invar_testkit::null::Nic as invar_core::nic::Nic>::poll"));
        assert!(!is_device("<invar_core::send::SendComm<invar_testkit::null::Nic>>::isend"));
    }
}
