//! What the processes of a case share: files in one directory, and how they log.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use log::{LevelFilter, Log, Metadata, Record};

/// The hosts' addresses.
pub(crate) const ADDRESSES: [&str; 2] = invar_testkit::namespaces::IPV4;
/// The time limit for each step.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("{}: {}", record.target(), record.args());
    }

    fn flush(&self) {}
}

pub(crate) fn log_to_stderr() {
    log::set_logger(&Stderr).expect("no other logger");
    log::set_max_level(LevelFilter::Warn);
}

/// Says that this process works well.
pub(crate) fn begin(dir: &Path, name: &str) {
    write_whole(&dir.join(format!("works-{name}")), b"");
}

/// Whether the fault has begun.
pub(crate) fn is_begun(dir: &Path) -> bool {
    exists(&dir.join("fault"))
}

/// Says that this process goes on, if somebody asks. The process calls this after each message or operation.
pub(crate) fn go_on(dir: &Path, name: &str) {
    if exists(&dir.join("question")) {
        write_whole(&dir.join(format!("goes-on-{name}")), b"");
    }
}

/// Asks a process whether it goes on.
pub(crate) fn goes_on(dir: &Path, name: &str) -> bool {
    write_whole(&dir.join("question"), b"");
    is_there(&dir.join(format!("goes-on-{name}")))
}

/// Does nothing more, until the process is killed.
pub(crate) fn park() -> ! {
    loop {
        thread::park();
    }
}

/// Writes a file so that nobody sees a part of it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) {
    let part = path.with_extension("part");
    fs::write(&part, bytes).expect("a directory for files");
    fs::rename(&part, path).expect("a directory for files");
}

/// Reads a file that another process writes.
pub(crate) fn read_when_there(path: &Path) -> Vec<u8> {
    assert!(is_there(path), "{} does not appear", path.display());
    fs::read(path).expect("a file")
}

/// Waits for a file. Returns whether it appeared in time.
pub(crate) fn is_there(path: &Path) -> bool {
    let start = Instant::now();
    while !exists(path) {
        if start.elapsed() > TIMEOUT {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

fn exists(path: &Path) -> bool {
    fs::metadata(path).is_ok()
}
