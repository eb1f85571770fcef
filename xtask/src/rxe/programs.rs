//! Tests the `libibverbs.so.1` of `invar run` with rxe as the peer: programs of rdma-core and perftest, unchanged
//! at both ends.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::guest;
use crate::shell::Shell;

/// Programs with their arguments.
const CASES: [(&str, &str); 7] = [
    ("ibv_rc_pingpong", "-n 200 -e -c"),
    ("ibv_uc_pingpong", "-n 50"),
    ("ibv_ud_pingpong", "-n 50 -s 512"),
    ("ibv_srq_pingpong", "-n 100 -q 4"),
    ("ib_write_bw", "-n 50 -b -m 1024"),
    ("ib_read_bw", "-n 50 -m 1024"),
    ("ib_atomic_bw", "-n 50"),
];

/// The indices of a GID at the host's end and at the guest's, over IPv4 and IPv6.
const GIDS: [[u32; 2]; 2] = [[1, 1], [0, 2]];

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    // The command finds the library in its own folder.
    shell.run(shell.cargo("build --workspace --lib"))?;
    let (mut host, mut line) = ("set -e; ".to_owned(), "set -e; ".to_owned());
    let all = GIDS.iter().flat_map(|gids| CASES.iter().map(move |case| (gids, case)));
    for (port, ([ours, theirs], (program, arguments))) in (7000..).zip(all) {
        let gid = if program.starts_with("ibv_") { "-g" } else { "-x" };
        let common = format!("{arguments} -p {port} {gid}");
        write!(
            host,
            "INVAR_SOFT_PORT=4791 {invar} run -- {program} -d soft0 {common} {ours} >&2; "
        )?;
        // The server may not listen yet. If it has failed, no attempt succeeds.
        write!(
            line,
            "for try in $(seq 100); do \
             ! {program} -d rxe_t {common} {theirs} 198.51.100.1 || break; \
             sleep 0.1; [ $try != 100 ]; done; "
        )?;
    }
    guest(shell, Some(&host), &line)
        .context("programs between rxe and the library of invar run")?;
    Ok(())
}
