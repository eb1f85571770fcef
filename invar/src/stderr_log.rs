//! The log on stderr, for programs without a logger of their own.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{LevelFilter, Log, Metadata, Record};
use serde::Serialize;

use crate::{LogFilter, LogFormat, Settings, log_subsystem};

/// The modules that say why nothing moves.
const STALLS: [&str; 2] = ["invar_core::stall", "invar::communicator::board"];

/// Writes the log of this process to stderr: the messages that `INVAR_LOG` or `NCCL_DEBUG` asks for. If neither
/// variable is set, the log has only the messages that say why nothing moves. Errors tell everything else. A line of
/// text is `invar: LEVEL: SUBSYSTEM: MESSAGE`, with NCCL's names of subsystems, by which `NCCL_DEBUG_SUBSYS` chooses.
/// If the process has a logger already, the call does nothing.
pub fn log_to_stderr(settings: &Settings) {
    let filter = settings.asks_for_log().then(|| settings.log_filter());
    let level = filter.as_ref().map_or(LevelFilter::Warn, LogFilter::level);
    let logger = Stderr { filter, format: settings.log_format() };
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level);
    }
}

/// Writes messages to stderr.
struct Stderr {
    /// The messages that are written; without a filter, only those on stalls.
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
            None => STALLS.iter().any(|module| metadata.target().starts_with(module)),
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
    fn only_messages_on_stalls_pass_without_a_log() {
        let logger = Stderr { filter: None, format: LogFormat::Text };
        let passes = |target| logger.enabled(&Metadata::builder().target(target).build());
        assert!(passes("invar_core::stall") && passes("invar::communicator::board"));
        assert!(!passes("invar_core::comm::base") && !passes("invar::communicator"));
    }
}
