//! Tests the `libibverbs.so.1` of `invar run` with rxe as the peer: programs of rdma-core and perftest, unchanged
//! at both ends. Each end is the server of some of them.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::guest;
use crate::shell::Shell;

/// Programs with their arguments. The server is on the library.
const CASES: [(&str, &str); 12] = [
    ("ibv_rc_pingpong", "-n 200 -e -c"),
    ("ibv_uc_pingpong", "-n 50"),
    ("ibv_ud_pingpong", "-n 50 -s 512"),
    ("ibv_srq_pingpong", "-n 100 -q 4"),
    ("ib_write_bw", "-n 50 -b -m 1024"),
    ("ib_write_bw", "-n 50 -q 4 -m 1024"),
    ("ib_write_lat", "-n 50 -m 1024"),
    ("ib_send_bw", "-n 50 -m 1024"),
    ("ib_send_bw", "-n 50 -c UD -s 512"),
    ("ib_send_bw", "-n 50 --use-srq -m 1024"),
    ("ib_read_bw", "-n 50 -m 1024"),
    ("ib_atomic_bw", "-n 50"),
];

/// Programs whose server is on rxe.
const SERVED_BY_RXE: [(&str, &str); 4] = [
    ("ibv_rc_pingpong", "-n 200 -e -c"),
    ("ib_write_bw", "-n 50 -b -m 1024"),
    ("ib_send_lat", "-n 50 -c UD -s 512"),
    // The library's limit of READs; rxe would ask it for 128.
    ("ib_read_bw", "-n 50 -m 1024 -o 16"),
];

/// The indices of a GID at the library's end and at rxe's, over IPv4 and IPv6.
const GIDS: [[u32; 2]; 2] = [[1, 1], [0, 2]];

const HOST: &str = "198.51.100.1";
const GUEST: &str = "198.51.100.2";

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    // The command finds the library in its own folder.
    shell.run(shell.cargo("build -p invar-soft-verbs"))?;
    let library = format!("INVAR_SOFT_PORT=4791 {invar} run -- ");
    let (mut host, mut line) = ("set -e; ".to_owned(), "set -e; ".to_owned());
    let all = CASES.iter().map(|case| (case, true));
    let all: Vec<_> = all.chain(SERVED_BY_RXE.iter().map(|case| (case, false))).collect();
    let all = GIDS.iter().flat_map(|gids| all.iter().map(move |case| (gids, case)));
    for (port, ([of_library, of_rxe], ((program, arguments), is_served))) in (7000..).zip(all) {
        let gid = if program.starts_with("ibv_") { "-g" } else { "-x" };
        let common = format!("{arguments} -p {port} {gid}");
        let on_library = format!("{library}{program} -d soft0 {common} {of_library}");
        let on_rxe = format!("{program} -d rxe_t {common} {of_rxe}");
        match is_served {
            true => {
                write!(host, "{on_library} >&2; ")?;
                line += &client(&format!("{on_rxe} {HOST}"));
            }
            false => {
                write!(line, "{on_rxe}; ")?;
                host += &client(&format!("{on_library} {GUEST} >&2"));
            }
        }
    }
    guest(shell, Some(&host), &line)
        .context("programs between rxe and the library of invar run")?;
    Ok(())
}

/// Returns the commands of a client. Its server may not listen yet. If the server has failed, no attempt succeeds.
fn client(command: &str) -> String {
    format!("for try in $(seq 100); do ! {command} || break; sleep 0.1; [ $try != 100 ]; done; ")
}
