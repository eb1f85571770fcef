//! Counts the instructions that the plugin takes between NCCL and libibverbs. Below it is the null
//! libibverbs of `tests/null-verbs`. The program that calls the plugin is not counted.

use anyhow::{Context, Result};

use super::callgrind::Profile;
use super::instructions::{Case, Suite, is_of};
use super::{Args, plot};
use crate::shell::Shell;
use crate::{null_verbs, plugin};

const fn case(
    name: &'static str,
    argument: &'static str,
    iterations: u64,
    bar: u64,
    nccl: u64,
) -> Case {
    Case {
        name,
        program: "examples/bench_plugin",
        argument,
        iterations,
        bar: Some(bar),
        nccl: Some(nccl),
    }
}

/// Each bar is 0.6 of NCCL's count. It is NCCL's own count where there is nothing to do.
pub(super) const CASES: [Case; 9] = [
    case("plugin-msg8-w1", "msg8-w1", 4096, 374, 624),
    case("plugin-msg8-w32", "msg8-w32", 4096, 470, 785),
    case("plugin-msg8-q4", "msg8-q4", 4096, 638, 1063),
    case("plugin-group8-w1", "group8-w1", 1024, 1963, 3271),
    case("plugin-idle-test", "idle-test", 16384, 33, 33),
    case("plugin-idle-turns", "idle-test-in-turn", 16384, 33, 33),
    case("plugin-idle-isend", "idle-isend", 16384, 40, 40),
    case("plugin-reg-10000", "reg-hit-10000", 4096, 1100, 55_852),
    Case { nccl: None, ..case("plugin-reg-miss", "reg-miss-10000", 4096, 2000, 0) },
];

pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let line = "build --release --package invar-nccl-plugin --example bench_plugin";
    shell.run(shell.cargo(line))?;
    let library = plugin::build(shell, plugin::Profile::Symbols)?;
    let folder = library.parent().context("a file is in a folder")?;
    let path = format!("{}:{}", null_verbs::build(shell)?.display(), folder.display());
    let env =
        [("LD_LIBRARY_PATH", &*path), ("INVAR_TRANSPORT", "ib"), ("NCCL_SOCKET_IFNAME", "lo")];
    let env = env.map(|(name, value)| (name, value.to_owned())).into();
    Suite {
        cases: &CASES,
        device: null_verbs::FUNCTIONS,
        counted,
        env,
        figure: Some(&plot::PLUGIN),
    }
    .run(shell, args)
}

/// Counts the functions that the driver program calls, without the program itself. A call that comes during
/// a look of the keeper takes a slower lock. The looks come at intervals of time, and callgrind makes a
/// program a hundred times slower, so such calls are not counted.
fn counted(profile: &Profile) -> u64 {
    const DURING_LOOKS: [&str; 3] = ["test_locked", "isend_locked", "irecv_locked"];
    let is_during_look = |function: &str| DURING_LOOKS.iter().any(|name| function.contains(name));
    profile.below(|function| !is_of("bench_plugin::", function)) - profile.below(is_during_look)
}
