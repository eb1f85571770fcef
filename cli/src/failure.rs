//! The reason why the command ends without a result, and its exit status.

use std::process::ExitCode;
use std::{fmt, io};

use crate::logger::tell;

/// Bytes were wrong.
pub(crate) const WRONG: u8 = 1;
/// A flag, a name or a variable is not allowed.
pub(crate) const USAGE: u8 = 2;
/// Anything else failed: the network, the peer, this host.
const FAILED: u8 = 3;
/// Nobody reads the results any more, as in `invar devices | head -1`. A shell shows this status for a
/// program that SIGPIPE has ended.
const UNREAD: u8 = 128 + 13;

/// One line for stderr, and a status to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    status: u8,
    has_heard: Option<bool>,
}

impl Failure {
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self::with(USAGE, line(&text))
    }

    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self::with(FAILED, line(&text))
    }

    fn with(status: u8, text: String) -> Self {
        Failure { text, status, has_heard: None }
    }

    /// A failure of the system: `what` was tried, and then the error.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(format_args!("{what}: {error}"))
    }

    /// A failure to write an output.
    pub(crate) fn unwritten(what: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::with(UNREAD, String::new()),
            _ => Self::io(format_args!("writing {what}"), error),
        }
    }

    /// The failure of a device, with whether packets of the peer's device had arrived.
    pub(crate) fn of_device(self, has_heard: bool) -> Self {
        Failure { has_heard: Some(has_heard), ..self }
    }

    /// Whether packets of the peer's device had arrived at this end's; `None` if that is not known.
    pub(crate) fn has_heard(&self) -> Option<bool> {
        self.has_heard
    }

    /// Whether nobody reads the results any more.
    pub(crate) fn is_unread(&self) -> bool {
        self.status == UNREAD
    }

    /// Whether a flag, a name or a variable of this end is not allowed.
    pub(crate) fn is_usage(&self) -> bool {
        self.status == USAGE
    }

    /// Prints the line, unless nobody is there to read it.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.is_unread() {
            tell(self);
        }
        ExitCode::from(self.status)
    }
}

/// Makes one harmless line of a text: a peer's text may have line breaks and other control characters.
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
        match error.kind() {
            invar::ErrorKind::Usage => Failure::usage(error),
            _ => Failure::new(error),
        }
    }
}
