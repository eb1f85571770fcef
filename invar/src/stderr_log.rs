//! The log on stderr, for programs without a logger of their own.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::Serialize;

use crate::{LogFilter, LogFormat, Settings, log_subsystem};

/// The modules that say what is odd about the variables, why nothing moves, what a connection recovers from, and that
/// nobody sees its records or metrics.
const UNASKED: [&str; 8] = [
    "invar::settings::remarks",
    "invar_core::stall",
    "invar::communicator::board",
    "invar_core::comm::rail_care",
    "invar_core::comm::recover",
    "invar::recorder_place",
    "invar::metrics",
    "invar_linux::scrape",
];

/// Writes the log of this process to stderr: the messages that `INVAR_LOG` or `NCCL_DEBUG` asks for. If neither
/// variable is set, the log has only warnings that no error repeats: what is odd about the variables, why nothing
/// moves, what a connection recovers from, and that metrics or the flight recorder fail. A line of text is
/// `invar: LEVEL: SUBSYSTEM: MESSAGE`, with NCCL's names of subsystems, by which `NCCL_DEBUG_SUBSYS` chooses.
///
/// The call also logs the [remarks](Settings::take_remarks) on `settings`: no log existed when
/// [`Settings::from_env`] read them. If the process has a logger already, the call does nothing.
pub fn log_to_stderr(settings: &Settings) {
    let filter = settings.asks_for_log().then(|| settings.log_filter());
    let level = filter.as_ref().map_or(LevelFilter::Warn, LogFilter::level);
    let logger = Stderr { filter, format: settings.log_format() };
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level);
        settings.log_remarks();
    }
}

/// Writes messages to stderr.
struct Stderr {
    /// The messages that are written; without a filter, the warnings of [`UNASKED`].
    filter: Option<LogFilter>,
    format: LogFormat,
}

/// A line of the log in JSON.
#[derive(Serialize)]
struct JsonLine<'a> {
    /// Seconds since the Unix epoch.
    time: f64,
    level: &'a str,
    subsystem: &'a str,
    module: &'a str,
    pid: u32,
    message: String,
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        match &self.filter {
            Some(filter) => filter.passes(metadata.level(), metadata.target()),
            None => {
                let is_of = |module: &&str| metadata.target().starts_with(*module);
                metadata.level() <= Level::Warn && UNASKED.iter().any(is_of)
            }
        }
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = record.level().as_str().to_lowercase();
        let subsystem = log_subsystem(record.target());
        if self.format == LogFormat::Text {
            return write(&format!("invar: {level}: {subsystem}: {}\n", record.args()));
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let line = JsonLine {
            time: since.as_secs_f64(),
            level: &level,
            subsystem,
            module: record.target(),
            pid: std::process::id(),
            message: record.args().to_string(),
        };
        if let Ok(line) = serde_json::to_string(&line) {
            write(&format!("{line}\n"));
        }
    }

    fn flush(&self) {}
}

/// Writes a line by one call, so that lines of several processes do not mix.
fn write(line: &str) {
    // If stderr is closed there is nobody to tell.
    let _ = io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_warnings_that_no_error_repeats_pass_without_a_log() {
        let logger = Stderr { filter: None, format: LogFormat::Text };
        let passes = |level, target| {
            logger.enabled(&Metadata::builder().level(level).target(target).build())
        };
        assert!(UNASKED.iter().all(|target| passes(Level::Warn, target)));
        assert!(passes(Level::Warn, "invar_core::stall::verdict"));
        assert!(!passes(Level::Info, "invar_core::comm::recover"));
        assert!(
            ["invar_core::comm::base", "invar::communicator"]
                .iter()
                .all(|t| !passes(Level::Warn, t))
        );
    }
}
