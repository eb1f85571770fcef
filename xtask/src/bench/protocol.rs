//! Counts the instructions that the protocol takes over the null NIC. The programs are in
//! invar-testkit.

use anyhow::Result;

use super::callgrind::Profile;
use super::instructions::{Case, Suite};
use super::{Args, plot};
use crate::shell::Shell;

/// The name of the calls into the protocol that are functions of their own. Where a case has such
/// calls, the code around them is not counted. Elsewhere the calls are inlined into the loop, and the
/// loop is counted.
const CALLS: &str = "::call::Called as ";

const fn message(name: &'static str, iterations: u64, bar: Option<u64>, nccl: Option<u64>) -> Case {
    Case { name, program: "bench_protocol", argument: name, iterations, bar, nccl }
}

pub(super) const CASES: [Case; 16] = [
    message("msg8-w1", 4096, Some(260), Some(624)),
    message("msg8-w32", 4096, Some(290), Some(785)),
    message("msg8-q2", 4096, None, None),
    message("msg8-q4", 4096, Some(620), Some(1063)),
    // The bar is 1.3 times the count of `msg8-q2`.
    message("msg8-rails2", 4096, Some(508), None),
    message("msg8-standby", 4096, None, None),
    message("group8-w1", 1024, Some(1600), Some(3271)),
    message("idle-test", 16384, Some(25), Some(33)),
    message("idle-isend", 16384, None, Some(40)),
    message("msg8-w1-calls", 4096, None, Some(624)),
    message("msg8-w32-calls", 4096, None, Some(785)),
    message("msg8-q4-calls", 4096, None, Some(1063)),
    message("group8-w1-calls", 1024, None, Some(3271)),
    message("idle-test-calls", 16384, None, Some(33)),
    message("idle-isend-calls", 16384, None, Some(40)),
    Case {
        name: "reg-hit-10000",
        program: "bench_mr_cache",
        argument: "10000",
        iterations: 4096,
        bar: Some(300),
        nccl: Some(55_851),
    },
];

pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    for program in ["bench_protocol", "bench_mr_cache"] {
        let line = format!("build --release --package invar-testkit --bin {program}");
        shell.run(shell.cargo(&line))?;
    }
    let device = "invar_simulator::null::";
    let figure = Some(&plot::PROTOCOL);
    Suite { cases: &CASES, device, counted, env: Vec::new(), figure }.run(shell, args)
}

/// Counts all calls into the protocol if they are functions of their own, or else everything.
pub(super) fn counted(profile: &Profile) -> u64 {
    match profile.below(|function| function.contains(CALLS)) {
        0 => profile.total(),
        calls => calls,
    }
}
