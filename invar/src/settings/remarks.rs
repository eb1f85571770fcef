//! Warnings about settings that are not wrong enough to be errors.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use invar_core::conn::Wire;

/// Returns the remarks on a wire.
pub(super) fn on(wire: Wire) -> Vec<String> {
    let mut remarks = Vec::new();
    if wire == Wire::Nccl214 {
        remarks.push(
            "INVAR_WIRE=nccl-2.14: that wire has no authentication. Whoever reaches the TCP port of \
             a listener is taken for the peer, and whoever guesses a key reaches the memory of \
             every connection. Use it only in a network that you trust"
                .to_owned(),
        );
    }
    remarks
}

/// Logs each remark as a warning, once a process. If no logger shows warnings, logs nothing, so that a
/// later call can log the remark.
pub(super) fn log_once(remarks: &[String]) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if remarks.is_empty() || !log::log_enabled!(log::Level::Warn) {
        return;
    }
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    for remark in remarks {
        if logged.insert(remark.clone()) {
            log::warn!("{remark}");
        }
    }
}

#[cfg(test)]
mod tests {
    use log::{LevelFilter, Log, Metadata, Record};

    use super::*;
    use crate::Settings;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    struct ToLines;

    impl Log for ToLines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            LINES.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
        }

        fn flush(&self) {}
    }

    fn logged(text: &str) -> usize {
        let line = format!("WARN {text}");
        LINES.lock().unwrap().iter().filter(|logged| **logged == line).count()
    }

    #[test]
    fn a_remark_is_logged_once_as_soon_as_somebody_reads_the_log() {
        let remarks = ["the remark of this test".to_owned()];
        log_once(&remarks);
        log::set_logger(&ToLines).unwrap();
        log_once(&remarks);
        log::set_max_level(LevelFilter::Warn);
        assert_eq!(logged(&remarks[0]), 0);
        log_once(&remarks);
        log_once(&remarks);
        assert_eq!(logged(&remarks[0]), 1);
    }

    #[test]
    fn a_wire_without_authentication_is_remarked_on() {
        let wire = |wire: &str| {
            let set = |name| (name == "INVAR_WIRE").then(|| wire.to_owned());
            Settings::from_lookup(set).unwrap().take_remarks()
        };
        let remarks = wire("nccl-2.14");
        assert!(remarks[0].starts_with("INVAR_WIRE=nccl-2.14: that wire has no authentication"));
        assert_eq!((remarks.len(), wire("invar").len()), (1, 0));
    }
}
