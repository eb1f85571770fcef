//! Lines for people on stderr.

use std::fmt;
use std::io::{self, Write};

/// Writes a line for people on stderr by one call, so that lines of several processes do not mix.
pub(crate) fn tell(text: impl fmt::Display) {
    // If stderr is closed there is nobody to tell.
    let _ = io::stderr().write_all(format!("invar: {text}\n").as_bytes());
}
