//! The command `invar` with the NIC: `unix-invar perf` measures it, `unix-invar devices` lists it.

use std::process::ExitCode;

fn main() -> ExitCode {
    unix_nic::provide();
    invar_cli::run()
}
