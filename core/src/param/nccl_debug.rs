//! NCCL's variables for its log.

use super::LogLevel;
use super::value::{Allowed, Value};

/// The level that `NCCL_DEBUG` asks for. The words may be in any case, as in NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclDebug(pub LogLevel);

impl NcclDebug {
    pub(super) const ALLOWED: Allowed =
        Allowed::OneOf(&["VERSION", "WARN", "INFO", "ABORT", "TRACE"]);
}

impl Value<'_> for NcclDebug {
    fn from_text(text: &str, _: &Allowed) -> Option<Self> {
        let levels = [
            ("VERSION", LogLevel::Error),
            ("WARN", LogLevel::Warn),
            ("INFO", LogLevel::Info),
            ("ABORT", LogLevel::Info),
            ("TRACE", LogLevel::Trace),
        ];
        let level = levels.into_iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
        // NCCL takes any other word for silence, and so must whoever shares its environment.
        Some(NcclDebug(level.map_or(LogLevel::Off, |(_, level)| level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_may_be_in_any_case_and_unknown_ones_are_silence() {
        let level = |text| NcclDebug::from_text(text, &NcclDebug::ALLOWED).unwrap().0;
        assert_eq!([level("INFO"), level("info")], [LogLevel::Info; 2]);
        assert_eq!([level("Trace"), level("noise")], [LogLevel::Trace, LogLevel::Off]);
    }
}
