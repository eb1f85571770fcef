//! Lines for people on stderr: the log, and what the command has to say.

use std::fmt;
use std::io::{self, Write};

use invar::LogLevel;
use log::{LevelFilter, Log, Metadata, Record};

/// The modules that say why nothing moves.
const STALLS: [&str; 2] = ["invar_core::stall", "invar::communicator::board"];

/// Writes all messages to stderr.
struct Stderr;

/// Writes only messages on stalls to stderr.
struct StallsToStderr;

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

impl Log for StallsToStderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        STALLS.iter().any(|module| metadata.target().starts_with(module))
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            Stderr.log(record);
        }
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
    set(&Stderr, filter);
}

/// Prints only warnings of stalls. The command itself reports everything else that goes wrong.
pub(crate) fn init_stalls() {
    set(&StallsToStderr, LevelFilter::Warn);
}

fn set(logger: &'static dyn Log, filter: LevelFilter) {
    if log::set_logger(logger).is_ok() {
        log::set_max_level(filter);
    }
}

/// Writes a line for people on stderr by one call, so that lines of several processes do not mix.
pub(crate) fn tell(text: impl fmt::Display) {
    // If stderr is closed there is nobody to tell.
    let _ = io::stderr().write_all(format!("invar: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_on_stalls_pass_without_a_log() {
        let passes = |target| StallsToStderr.enabled(&Metadata::builder().target(target).build());
        assert!(passes("invar_core::stall") && passes("invar::communicator::board"));
        assert!(!passes("invar_core::comm::base") && !passes("invar::communicator"));
    }
}
