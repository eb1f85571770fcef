//! Gives the programs that tests start a clean environment. It does not depend on the shell that
//! started the tests.
//!
//! A shell ignores SIGINT for its background jobs, `nohup` ignores SIGHUP, and a supervisor may ignore
//! SIGCHLD or block signals. Programs inherit all of that, and also the variables of the user who runs
//! the tests.

use std::ffi::OsString;
use std::mem::MaybeUninit;
use std::process::Command;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGCHLD, SIGPIPE};
use signal_hook::flag;

/// Removes the user's Invar and NCCL settings from the command, and gives it the signals that a
/// terminal has.
pub fn clean(command: &mut Command) -> &mut Command {
    default_signals();
    settings().fold(command, |command, name| command.env_remove(name))
}

/// Removes the user's Invar and NCCL settings from the environment of this process.
///
/// # Safety
/// No other thread reads or sets variables meanwhile.
pub unsafe fn forget_settings() {
    for name in settings() {
        // SAFETY: the caller promises that no other thread reads or sets variables.
        unsafe { std::env::remove_var(name) };
    }
}

fn settings() -> impl Iterator<Item = OsString> {
    let is_setting = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("NCCL_") || name.starts_with("INVAR_")
    };
    std::env::vars_os().map(|(name, _)| name).filter(is_setting)
}

/// Keeps children of this thread from inheriting a blocked or an ignored signal. It installs handlers,
/// since `execve(2)` resets signals that have one. A signal that ends a process by default still ends
/// this process.
pub fn default_signals() {
    unblock();
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        // Rust ignores SIGPIPE by itself, and resets it for each child.
        for signal in ignored().filter(|signal| *signal != SIGPIPE) {
            // Some signals cannot have a handler. No test is about those.
            let _ = match signal {
                SIGCHLD => flag::register(signal, Arc::default()),
                _ => flag::register_conditional_shutdown(signal, 128 + signal, always()),
            };
        }
    });
}

/// Unblocks the signals of this thread. A child inherits its mask.
fn unblock() {
    let mut none = MaybeUninit::uninit();
    // SAFETY: there is room for a set, which the first call fills. A null pointer for the old mask is
    // allowed.
    let rc = unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    assert_eq!(rc, 0, "an empty mask is valid");
}

fn always() -> Arc<AtomicBool> {
    static ALWAYS: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));
    Arc::clone(&ALWAYS)
}

/// The signals that this process ignores (`proc_pid_status(5)`).
fn ignored() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=31).filter(move |signal| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This variable is set for the process that such a shell starts.
    const STARTED: &str = "INVAR_TEST_SHELL";

    #[test]
    fn what_a_test_starts_inherits_no_signal_and_no_setting_of_the_shell() {
        if std::env::var_os(STARTED).is_none() {
            let name = concat!(module_path!(), "::");
            let name = name.split_once("::").expect("a path").1.to_owned()
                + "what_a_test_starts_inherits_no_signal_and_no_setting_of_the_shell";
            let mut bash = Command::new("bash");
            bash.args(["-c", "trap '' INT HUP CHLD; exec \"$0\" \"$@\""]);
            bash.arg(std::env::current_exe().expect("this program"));
            bash.args([&name, "--exact", "--nocapture"]).env(STARTED, "yes");
            default_signals();
            let output = bash.output().expect("a shell");
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("ok. 1 passed"), "{text}{errors}");
            return;
        }
        // SAFETY: the set is filled before it is used, and the mask is that of this thread.
        unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut());
        }
        assert_ne!(ignored().count(), 0, "the shell ignores some");
        let mut sh = Command::new("sh");
        let output = clean(&mut sh).args(["-c", "cat /proc/self/status; env"]).output();
        let text = String::from_utf8(output.expect("a child that is waited for").stdout);
        let text = text.expect("text");
        for line in ["SigIgn:", "SigBlk:"] {
            let mask = text.lines().find_map(|l| l.strip_prefix(line)).expect("a mask");
            let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
            // The higher bits are libc's own signals and real-time signals.
            assert_eq!(mask & ((1 << 31) - 1), 0, "{line}{mask:x}");
        }
        assert!(!text.contains(STARTED), "{text}");
    }
}
