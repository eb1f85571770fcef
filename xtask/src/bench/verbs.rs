//! Counts the instructions that the protocol and the libibverbs adapter take together. Below them is
//! the null libibverbs of `tests/null-verbs`.

use anyhow::Result;

use super::Args;
use super::instructions::{Case, Suite};
use super::protocol::counted;
use crate::null_verbs;
use crate::shell::Shell;

const fn case(name: &'static str, argument: &'static str, iterations: u64, nccl: u64) -> Case {
    Case { name, program: "bench_verbs", argument, iterations, bar: None, nccl: Some(nccl) }
}

/// Each call is a function of its own here, as it is in the plugin.
pub(super) const CASES: [Case; 6] = [
    case("verbs-msg8-w1", "msg8-w1-calls", 4096, 624),
    case("verbs-msg8-w32", "msg8-w32-calls", 4096, 785),
    case("verbs-msg8-q4", "msg8-q4-calls", 4096, 1063),
    case("verbs-group8-w1", "group8-w1-calls", 1024, 3271),
    case("verbs-idle-test", "idle-test-calls", 16384, 33),
    case("verbs-idle-isend", "idle-isend-calls", 16384, 40),
];

pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    shell.run(shell.cargo("build --release --package invar-testkit --bin bench_verbs"))?;
    let folder = null_verbs::build(shell)?;
    let env = vec![("LD_LIBRARY_PATH", folder.display().to_string())];
    Suite { cases: &CASES, device: null_verbs::FUNCTIONS, counted, env, figure: None }
        .run(shell, args)
}
