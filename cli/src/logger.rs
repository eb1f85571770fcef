//! The log, on stderr.

use std::io::{self, Write};

use invar::LogLevel;
use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_lowercase();
        // At once: the lines of ranks that share a stderr do not mix.
        let line = format!("invar: {level}: {}\n", record.args());
        // Nobody is there to be told.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Prints messages up to `level` (`INVAR_LOG`).
pub(crate) fn init(level: LogLevel) {
    let filter = match level {
        LogLevel::Off => LevelFilter::Off,
        LogLevel::Error => LevelFilter::Error,
        LogLevel::Warn => LevelFilter::Warn,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Debug => LevelFilter::Debug,
        LogLevel::Trace => LevelFilter::Trace,
    };
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(filter);
    }
}
