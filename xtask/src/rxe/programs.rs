//! Tests the `libibverbs.so.1` of `invar run` with rxe as the peer: programs of rdma-core and perftest, unchanged
//! at both ends. Usually the library is the server of few of them. In a [full](super::is_full) run it is the server
//! of more, and the client of some.

use std::fmt::Write;

use anyhow::{Context, Result};

use super::{guest, is_full};
use crate::shell::Shell;

/// Programs with their arguments. The library is the server. Without `-F` perftest ends with an error if it cannot
/// measure the clock of a busy processor.
const CASES: [(&str, &str); 7] = [
    ("ibv_rc_pingpong", "-n 200 -e -c"),
    ("ibv_uc_pingpong", "-n 50"),
    ("ibv_ud_pingpong", "-n 50 -s 512"),
    ("ibv_srq_pingpong", "-n 100 -q 4"),
    ("ib_write_bw", "-F -n 50 -b -m 1024"),
    ("ib_read_bw", "-F -n 50 -m 1024"),
    ("ib_atomic_bw", "-F -n 50"),
];

/// More programs whose server is the library.
const MORE: [(&str, &str); 5] = [
    ("ib_write_bw", "-F -n 50 -q 4 -m 1024"),
    ("ib_write_lat", "-F -n 50 -m 1024"),
    ("ib_send_bw", "-F -n 50 -m 1024"),
    ("ib_send_bw", "-F -n 50 -c UD -s 512"),
    ("ib_send_bw", "-F -n 50 --use-srq -m 1024"),
];

/// Programs whose client is the library.
const SERVED_BY_RXE: [(&str, &str); 4] = [
    ("ibv_rc_pingpong", "-n 200 -e -c"),
    ("ib_write_bw", "-F -n 50 -b -m 1024"),
    ("ib_send_lat", "-F -n 50 -c UD -s 512"),
    // The library takes 16 READs at once. Without `-o` rxe would send 128.
    ("ib_read_bw", "-F -n 50 -m 1024 -o 16"),
];

/// The indices of a GID at the library's end and at rxe's, over IPv4 and IPv6.
const GIDS: [[u32; 2]; 2] = [[1, 1], [0, 2]];

/// The addresses of the host, which has the library, and of the guest.
const LIBRARY: &str = "198.51.100.1";
const RXE: &str = "198.51.100.2";

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    // The command finds the library in its own folder.
    shell.run(shell.cargo("build --workspace --lib"))?;
    let library = format!("INVAR_SOFT_PORT=4791 {invar} run --");
    let (mut host, mut line) = ("set -e; ".to_owned(), "set -e; ".to_owned());
    let more: &[_] = if is_full() { &MORE } else { &[] };
    let others: &[_] = if is_full() { &SERVED_BY_RXE } else { &[] };
    let served = CASES.iter().chain(more).map(|case| (case, true));
    let cases: Vec<_> = served.chain(others.iter().map(|case| (case, false))).collect();
    let all = GIDS.iter().flat_map(|gids| cases.iter().map(move |case| (gids, *case)));
    for (port, ([of_library, of_rxe], ((program, arguments), is_server))) in (7000..).zip(all) {
        let gid = if program.starts_with("ibv_") { "-g" } else { "-x" };
        let common = format!("{arguments} -p {port} {gid}");
        let on_library = format!("{library} {program} -d soft0 {common} {of_library}");
        let on_rxe = format!("{program} -d rxe_t {common} {of_rxe}");
        if is_server {
            write!(host, "{on_library} >&2; ")?;
            line += &client(&format!("{on_rxe} {LIBRARY}"));
        } else {
            write!(line, "{on_rxe}; ")?;
            host += &client(&format!("{on_library} {RXE} >&2"));
        }
    }
    guest(shell, Some(&host), &line)
        .context("programs between rxe and the library of invar run")?;
    Ok(())
}

/// The commands of a client. Its server may not listen yet. If the server has failed, no attempt succeeds.
fn client(command: &str) -> String {
    format!("for try in $(seq 100); do ! {command} || break; sleep 0.1; [ $try != 100 ]; done; ")
}
