//! Runs a test in a process of its own: this program is started again for that test alone.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Output};

use crate::shell;

/// A process that dropping this value kills.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This variable is set in the process that runs the test itself.
const CHILD: &str = "INVAR_TEST_CHILD";

/// Whether this process runs one test alone.
pub fn is_here() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs `test` in a process of its own, with variables that `prepare` sets. The process starts without the
/// user's settings, and `prepare`'s result lives until it ends. `test` is a closure, and its test function
/// does nothing else.
///
/// # Panics
/// Panics if the test fails.
pub fn run<F: FnOnce(), K>(prepare: impl FnOnce(&mut Command) -> K, test: F) {
    if is_here() { test() } else { start::<F, K>(prepare) }
}

/// Returns a command that runs a test of this program alone, in a process without the user's settings. The
/// test may be an ignored one, which is a part of other tests.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    shell::clean(&mut command).env(CHILD, "1");
    command.args([test, "--exact", "--include-ignored", "--nocapture"]);
    command
}

/// Runs the test function that contains the closure `F` in a process of its own, as [`run`] does.
///
/// # Panics
/// Panics if the test fails.
pub fn start<F, K>(prepare: impl FnOnce(&mut Command) -> K) {
    // The type name is `cuda::memory::a_test::{{closure}}`, after the name of the crate.
    let closure = std::any::type_name::<F>();
    let (_, function) = closure.split_once("::").expect("a path");
    let function = function.strip_suffix("::{{closure}}").expect("a closure");
    let mut command = command(function);
    let _kept = prepare(&mut command);
    let Output { status, stdout, stderr } = command.output().expect("a process");
    let text = String::from_utf8_lossy(&stdout) + String::from_utf8_lossy(&stderr);
    let ran = text.contains("test result: ok. 1 passed");
    assert!(status.success() && ran, "{function} in a process of its own: {status}\n{text}");
}
