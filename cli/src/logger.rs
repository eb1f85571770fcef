//! Lines for people on stderr: the log, and what the command has to say.

use std::fmt;
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
        tell(format_args!("{level}: {}", record.args()));
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

/// Writes a line for people on stderr by one call, so that lines of several processes do not mix.
pub(crate) fn tell(text: impl fmt::Display) {
    // If stderr is closed there is nobody to tell.
    let _ = io::stderr().write_all(format!("invar: {text}\n").as_bytes());
}
