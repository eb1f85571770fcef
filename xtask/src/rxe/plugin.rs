//! Tests the NCCL plugin on the kernel's RoCE: every version of the interface, between two processes.
//! Messages go over one and over four queue pairs. Two and three processes run one version of collNet. A
//! [full](super::is_full) run has every version of collNet as well, from two processes for the oldest to eight for the
//! newest, each in a guest of its own.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{GUEST_LIMIT, guest, is_full};
use crate::plugin;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The version of collNet that always runs in the guest.
const COLLNET_VERSION: u32 = 12;
/// The variables under which the ranks reduce over rxe, though they are on one host.
const COLLNET: &str = "NCCL_COLLNET_ENABLE=1 NCCL_SHM_DISABLE=1";

/// Runs `nccl-plugin/tests/c/drive.c` and `collnet.c` in the guest.
pub(super) fn run(shell: &Shell) -> Result<()> {
    let library = plugin::build(shell, plugin::Profile::Dev)?;
    let directory = library.parent().context("a file is in a directory")?;
    let programs = Workspace::load(shell)?.target_dir.join("plugin-programs");
    fs::create_dir_all(&programs)?;
    let prepare = format!(
        "set -e; export LD_LIBRARY_PATH={}; \
         export INVAR_TRANSPORT=ib NCCL_IB_HCA=rxe_a NCCL_SOCKET_IFNAME=lo",
        directory.display()
    );
    let compile = |source: &str, version: u32| -> Result<PathBuf> {
        let program = programs.join(format!("{source}-v{version}"));
        let mut gcc = shell.command("gcc -std=gnu11 -O1 -ldl");
        gcc.arg(format!("nccl-plugin/tests/c/{source}.c"));
        gcc.arg(format!("-DAPI={version}")).arg(format!("-DSECONDS_MAX={GUEST_LIMIT}"));
        gcc.arg("-o").arg(&program);
        shell.run(gcc)?;
        Ok(program)
    };
    let collnet = |version: u32, mode: &str| -> Result<String> {
        let program = compile("collnet", version)?;
        Ok(format!("{COLLNET} {} {} {mode}", program.display(), plugin::NAME))
    };
    let mut lines = vec![prepare.clone()];
    for version in plugin::VERSIONS {
        let program = compile("drive", version)?;
        for queue_pairs in [1, 4] {
            let variable = format!("NCCL_IB_QPS_PER_CONNECTION={queue_pairs}");
            let program = program.display();
            lines.push(format!("{variable} {program} {}", plugin::NAME));
        }
    }
    for mode in ["2 brief", "3 kill 2"] {
        lines.push(collnet(COLLNET_VERSION, mode)?);
    }
    guest(shell, None, &lines.join("; "))?;
    if is_full() {
        for (version, ranks) in plugin::VERSIONS.zip(2..) {
            let line = collnet(version, &format!("{ranks} brief"))?;
            guest(shell, None, &format!("{prepare}; {line}"))
                .with_context(|| format!("version {version} of collNet with {ranks} ranks"))?;
        }
    }
    Ok(())
}
