//! Tests that need what a machine may lack are skipped there, unless the environment forbids that.

use std::fmt::Display;

/// This variable lists what the machine has: [`PROGRAMS`], [`NAMESPACES`], and steps of `cargo xtask ci`. Commas
/// separate them. Whatever is listed and lacks something fails, and is not skipped.
const LISTED: &str = "INVAR_TEST_NO_SKIP";

/// Programs, libraries and headers of Debian's packages.
pub const PROGRAMS: &str = "programs";
/// Namespaces, and cables between them.
pub const NAMESPACES: &str = "namespaces";

/// Says why a test is skipped. The test returns after this call.
///
/// # Panics
/// Panics if the environment forbids to skip tests that lack `what`.
pub fn skip(what: &str, why: impl Display) {
    if let Err(refusal) = allow(what) {
        panic!("{why}: {refusal}");
    }
    eprintln!("skipped: {why}");
}

/// Whether something may be skipped: tests that lack [`PROGRAMS`] or [`NAMESPACES`], or a step.
///
/// # Errors
/// Returns in words how the environment forbids that.
pub fn allow(what: &str) -> Result<(), String> {
    let list = std::env::var(LISTED).unwrap_or_default();
    match list.split(',').any(|listed| listed == what) {
        true => Err(format!("{LISTED} lists {what}, so that this is an error")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child;

    #[test]
    fn what_the_environment_lists_is_an_error_and_is_not_skipped() {
        child::run(
            |command| {
                command.env(LISTED, "programs,vm");
            },
            || {
                skip(NAMESPACES, "no namespaces");
                let skipped = std::panic::catch_unwind(|| skip(PROGRAMS, "no gcc"));
                assert!(skipped.is_err(), "a test was skipped that must not be");
                assert_eq!((allow("vm").is_err(), allow("v"), allow("")), (true, Ok(()), Ok(())));
            },
        );
    }
}
