//! Why the command ends without a result, and with which status.

use std::process::ExitCode;
use std::{fmt, io};

use crate::output::tell;

/// Bytes were wrong.
pub(crate) const WRONG: u8 = 1;
/// Flags, names or variables cannot be.
const USAGE: u8 = 2;
/// Something else did not work: the network, the peer, this host.
const FAILED: u8 = 3;

/// One line for stderr, and a status to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    status: u8,
}

impl Failure {
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Failure { text: line(&text), status: USAGE }
    }

    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Failure { text: line(&text), status: FAILED }
    }

    /// With what was tried before what happened.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(format_args!("{what}: {error}"))
    }

    /// Prints the line.
    pub(crate) fn report(&self) -> ExitCode {
        tell(self);
        ExitCode::from(self.status)
    }
}

/// What a peer says may have line breaks in it, and whatever else a terminal obeys.
pub(crate) fn line(text: &impl fmt::Display) -> String {
    text.to_string().replace(char::is_control, " ")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<invar::Error> for Failure {
    fn from(error: invar::Error) -> Self {
        match error.fault() {
            invar::Fault::Usage => Failure::usage(error),
            _ => Failure::new(error),
        }
    }
}
