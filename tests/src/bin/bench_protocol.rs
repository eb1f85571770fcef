//! Runs the cases of [`invar_testkit::bench`] over the null NIC, for `cargo xtask bench protocol`.

use std::process::ExitCode;

use invar_testkit::bench;
use invar_testkit::null::NullNic;

fn main() -> ExitCode {
    bench::main(NullNic::ports)
}
