//! The log, on stderr.

use invar::LogLevel;
use log::{LevelFilter, Log, Metadata, Record};

use crate::output::tell;

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
