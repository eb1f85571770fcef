//! Runs a test with the stand-in of `tests/fake-cuda` as CUDA's driver. If the test asks for it,
//! `tests/null-verbs` stands in for libibverbs too.
//!
//! A process has one libcuda, from the place where its loader finds it. So each such test runs in a
//! process of its own, and the environment configures the stand-in.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::child;

const CALLS: &str = "FAKE_CUDA_CALLS";
const VERBS_CALLS: &str = "NULL_VERBS_CALLS";

/// The settings of the stand-in. `tests/fake-cuda/src/lib.rs` describes the variables.
#[derive(Clone, Debug, Default)]
pub struct FakeCuda {
    set: Vec<(&'static str, String)>,
    without: Vec<&'static str>,
    null_verbs: bool,
}

impl FakeCuda {
    /// One GPU, and a driver that has every function.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a variable of the stand-in, or another one.
    #[must_use]
    pub fn set(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.set.push((name, value.into()));
        self
    }

    /// Removes a function, as if the driver were older than it.
    #[must_use]
    pub fn without(mut self, function: &'static str) -> Self {
        self.without.push(function);
        self
    }

    /// Adds RDMA devices, `null0` and so on, that reach the memory of the GPUs.
    /// `tests/null-verbs/src/lib.rs` describes the variables. A refused call ends the process.
    #[must_use]
    pub fn with_null_verbs(mut self) -> Self {
        self.null_verbs = true;
        self.set("NULL_VERBS_STRICT", "1").set("NCCL_SOCKET_IFNAME", "lo")
    }

    /// Runs `test` with the stand-in. `test` is a closure, and its test function does nothing else.
    pub fn run<F: FnOnce()>(self, test: F) {
        child::run(|command| self.give_to(command), test);
    }

    /// Lets a program find the stand-in, as long as the caller keeps the returned value.
    #[must_use = "the library is removed with it"]
    pub fn give_to(&self, command: &mut Command) -> TempDir {
        let installed = tempfile::tempdir().expect("a directory");
        let directory = installed.path();
        self.install(directory);
        command
            .env("LD_LIBRARY_PATH", directory)
            .env(CALLS, directory.join("calls"))
            .env(VERBS_CALLS, directory.join("verbs-calls"))
            .envs(self.set.iter().map(|(name, value)| (name, value)));
        installed
    }

    /// Puts the libraries into `directory`, under the file names that the loader looks for.
    fn install(&self, directory: &Path) {
        let program = std::env::current_exe().expect("this program");
        if self.null_verbs {
            let library = program.with_file_name("libinvar_null_verbs.so");
            symlink(library, directory.join("libibverbs.so.1")).expect("a link to it");
        }
        let library = program.with_file_name("libinvar_fake_cuda.so");
        let copy = directory.join("libcuda.so.1");
        let mut bytes =
            fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        for function in &self.without {
            rename(&mut bytes, function.as_bytes());
        }
        fs::write(&copy, bytes).expect("a copy of the library");
        symlink(&copy, directory.join("libcuda.so")).expect("a link to it");
    }
}

/// The number of calls of a driver's function in this process so far.
pub fn calls(function: &str) -> usize {
    noted(CALLS).iter().filter(|call| *call == function).count()
}

/// The bytes of host memory that are pinned in this process.
pub fn pinned() -> usize {
    last("pinned ")
}

/// The capture mode that a thread of this process has set last; 0 is the global one, which each thread has
/// at first.
pub fn capture_mode() -> usize {
    last("capture mode ")
}

/// The flags that this process has given to a context last; 0 if it has given none.
pub fn context_flags() -> usize {
    last("context flags ")
}

/// The number in the last line that begins like this; 0 if there is no such line.
fn last(prefix: &str) -> usize {
    let mut lines = noted(CALLS).into_iter().rev();
    let last = lines.find_map(|line| Some(line.strip_prefix(prefix)?.parse().expect("a number")));
    last.unwrap_or(0)
}

/// The registrations and READs of the null libibverbs in this process so far, one a line.
pub fn verbs_calls() -> Vec<String> {
    noted(VERBS_CALLS)
}

/// The lines of the file that a variable names.
fn noted(variable: &str) -> Vec<String> {
    let path = std::env::var_os(variable).expect("to be called from FakeCuda::run");
    let calls = fs::read_to_string(path).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

/// Gives a function in the library another name, so that nobody finds it.
fn rename(library: &mut [u8], function: &[u8]) {
    let mut found = false;
    for at in 0..library.len().saturating_sub(function.len()) {
        if library[at..].starts_with(function) && library[at + function.len()] == 0 {
            library[at] = b'_';
            found = true;
        }
    }
    assert!(found, "the library has a {}", String::from_utf8_lossy(function));
}
