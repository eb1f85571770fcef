//! Tests the log of a program without a logger of its own, on stderr.

use invar_testkit::child;

use crate::*;

#[test]
fn a_misspelt_variable_is_remarked_on_once_in_a_program_that_logs_to_stderr() {
    if child::is_here() {
        let settings = Settings::from_env().unwrap();
        invar::log_to_stderr(&settings);
        // Neither reading the variables again nor a connection repeats the remark.
        drop(Settings::from_env().unwrap());
        return drop(Listener::bind(&loopback(), &settings).unwrap());
    }
    let test = "logs::a_misspelt_variable_is_remarked_on_once_in_a_program_that_logs_to_stderr";
    let output = child::command(test).env("INVAR_STAL_MS", "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let line = "invar: warn: ENV: INVAR_STAL_MS is set, and neither Invar nor NCCL reads a variable of that \
                name: is INVAR_STALL_MS meant?\n";
    assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
}
