//! The result of a check.

/// The result of a check that did not fail.
pub(crate) enum Outcome {
    /// Everything that the check looks at is in order.
    Passed,
    /// There was nothing to check. The text says what was missing.
    Skipped(String),
}
