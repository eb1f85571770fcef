//! Tests the NCCL plugin on the kernel's RoCE: every version of the interface, between two processes.
//! Messages go over one and over four queue pairs. Two and three processes run one version of collNet.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::guest;
use crate::plugin;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The version of collNet that runs in the guest.
const COLLNET_VERSION: u32 = 12;

/// Runs `nccl-plugin/tests/c/drive.c` and `collnet.c` in the guest.
pub(super) fn run(shell: &Shell) -> Result<()> {
    let library = plugin::build(shell)?;
    let directory = library.parent().context("a file is in a directory")?;
    let programs = Workspace::load(shell)?.target_dir.join("plugin-programs");
    fs::create_dir_all(&programs)?;
    let mut lines = vec![
        "set -e".to_owned(),
        format!("export LD_LIBRARY_PATH={}", directory.display()),
        "export INVAR_TRANSPORT=ib NCCL_IB_HCA=rxe_a NCCL_SOCKET_IFNAME=lo".to_owned(),
    ];
    let compile = |source: &str, version: u32| -> Result<PathBuf> {
        let program = programs.join(format!("{source}-v{version}"));
        let mut gcc = shell.command("gcc -std=gnu11 -O1 -ldl");
        gcc.arg(format!("nccl-plugin/tests/c/{source}.c"));
        gcc.arg(format!("-DAPI={version}")).arg("-o").arg(&program);
        shell.run(gcc)?;
        Ok(program)
    };
    for version in plugin::VERSIONS {
        let program = compile("drive", version)?;
        for queue_pairs in [1, 4] {
            let variable = format!("NCCL_IB_QPS_PER_CONNECTION={queue_pairs}");
            let program = program.display();
            lines.push(format!("{variable} {program} {}", plugin::NAME));
        }
    }
    let program = compile("collnet", COLLNET_VERSION)?;
    let switches = "NCCL_COLLNET_ENABLE=1 NCCL_SHM_DISABLE=1";
    for mode in ["2 brief", "3 kill 2"] {
        lines.push(format!("{switches} {} {} {mode}", program.display(), plugin::NAME));
    }
    guest(shell, None, &lines.join("; ")).map(drop)
}
