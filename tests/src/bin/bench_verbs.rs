//! Runs the cases of [`invar_testkit::bench`] over libibverbs, for `cargo xtask bench verbs`. It runs
//! on the null libibverbs of `tests/null-verbs`, whose device completes at once.

use std::process::ExitCode;

use invar_testkit::bench;
use invar_verbs::{VerbsConfig, VerbsNic};

fn main() -> ExitCode {
    bench::main(|| {
        let nic = VerbsNic::open(&VerbsConfig::new("null0")).expect("the null libibverbs");
        [nic.clone(), nic]
    })
}
