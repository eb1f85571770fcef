//! Tests the NCCL plugin on the kernel's RoCE: every version of the interface, between two processes.

use std::fs;

use anyhow::{Context, Result};

use super::guest;
use crate::plugin;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// Runs `nccl-plugin/tests/c/drive.c` in the guest, over one and over four queue pairs.
pub(super) fn run(shell: &Shell) -> Result<()> {
    let library = plugin::build(shell, plugin::Profile::Release)?;
    let directory = library.parent().context("a file is in a directory")?;
    let programs = Workspace::load(shell)?.target_dir.join("plugin-programs");
    fs::create_dir_all(&programs)?;
    let mut lines = vec![
        "set -e".to_owned(),
        format!("export LD_LIBRARY_PATH={}", directory.display()),
        "export INVAR_TRANSPORT=ib NCCL_IB_HCA=rxe_a NCCL_SOCKET_IFNAME=lo".to_owned(),
    ];
    for version in plugin::VERSIONS {
        let program = programs.join(format!("drive-v{version}"));
        let mut gcc = shell.command("gcc -std=gnu11 -O1 nccl-plugin/tests/c/drive.c -ldl");
        gcc.arg(format!("-DAPI={version}")).arg("-o").arg(&program);
        shell.run(gcc)?;
        for queue_pairs in [1, 4] {
            let variable = format!("NCCL_IB_QPS_PER_CONNECTION={queue_pairs}");
            let program = program.display();
            lines.push(format!("{variable} {program} {}", plugin::NAME));
        }
    }
    guest(shell, None, &lines.join("; ")).map(drop)
}
