//! NCCL's variables for its log.

use super::LogLevel;
use super::value::{Allowed, Value};

/// The value of `NCCL_DEBUG`. The words may be in any case, as in NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclDebug {
    /// NCCL is silent, as for any word that it does not know.
    None,
    /// NCCL prints its version, and Invar logs failures.
    Version,
    /// Warnings are logged.
    Warn,
    /// Choices are logged, with their reasons.
    Info,
    /// NCCL also prints when it aborts. Invar logs as for [`NcclDebug::Info`].
    Abort,
    /// Everything is logged.
    Trace,
}

impl NcclDebug {
    pub(super) const ALLOWED: Allowed =
        Allowed::OneOf(&["VERSION", "WARN", "INFO", "ABORT", "TRACE"]);

    const WORDS: [(&'static str, NcclDebug); 5] = [
        ("VERSION", NcclDebug::Version),
        ("WARN", NcclDebug::Warn),
        ("INFO", NcclDebug::Info),
        ("ABORT", NcclDebug::Abort),
        ("TRACE", NcclDebug::Trace),
    ];

    /// Returns the word for the variable.
    pub fn as_str(self) -> &'static str {
        let known = Self::WORDS.iter().find(|(_, level)| *level == self);
        known.map_or("NONE", |(word, _)| word)
    }

    /// Returns the level of Invar's own log.
    pub const fn level(self) -> LogLevel {
        match self {
            NcclDebug::None => LogLevel::Off,
            NcclDebug::Version => LogLevel::Error,
            NcclDebug::Warn => LogLevel::Warn,
            NcclDebug::Info | NcclDebug::Abort => LogLevel::Info,
            NcclDebug::Trace => LogLevel::Trace,
        }
    }
}

impl Value<'_> for NcclDebug {
    fn from_text(text: &str, _: &Allowed) -> Option<Self> {
        let known = Self::WORDS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word));
        // NCCL takes any other word for silence, and so must whoever shares its environment.
        Some(known.map_or(NcclDebug::None, |(_, level)| *level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_may_be_in_any_case_and_unknown_ones_are_silence() {
        let level = |text| NcclDebug::from_text(text, &NcclDebug::ALLOWED).unwrap().level();
        assert_eq!([level("INFO"), level("info")], [LogLevel::Info; 2]);
        assert_eq!([level("Trace"), level("noise")], [LogLevel::Trace, LogLevel::Off]);
        assert_eq!(level(NcclDebug::None.as_str()), LogLevel::Off);
        assert_eq!(level(NcclDebug::Abort.as_str()), LogLevel::Info);
    }
}
