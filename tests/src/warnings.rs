//! The warnings that the library logs in this process.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));
static INSTALL: Once = Once::new();

impl Log for Warnings {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.lines().push(record.args().to_string());
    }

    fn flush(&self) {}
}

impl Warnings {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps all warnings from now on.
///
/// # Panics
/// Panics if the process has another logger.
pub fn keep() {
    INSTALL.call_once(|| {
        log::set_logger(&WARNINGS).expect("no other logger");
        log::set_max_level(LevelFilter::Warn);
    });
}

/// The kept warnings that contain all these parts.
pub fn with(parts: &[&str]) -> Vec<String> {
    let lines = WARNINGS.lines();
    lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).cloned().collect()
}
