//! The command `invar`.

use std::process::ExitCode;

fn main() -> ExitCode {
    invar_cli::run()
}
