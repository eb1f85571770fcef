//! The places to which results go.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// A table for people, and JSON on request.
pub(crate) struct Outputs {
    /// The table goes to stdout, or to stderr if this is `None`.
    table: Option<io::Stdout>,
    json: Option<Box<dyn Write>>,
}

impl Outputs {
    /// Sends the table to stdout and JSON into a new file, or JSON to stdout and the table to stderr.
    pub(crate) fn open(json: Option<&Path>) -> Result<Self, Failure> {
        let (table, json): (_, Option<Box<dyn Write>>) = match json {
            None => (Some(io::stdout()), None),
            Some(path) if path == Path::new("-") => (None, Some(Box::new(io::stdout()))),
            Some(path) => (Some(io::stdout()), Some(Box::new(created(path)?))),
        };
        Ok(Outputs { table, json })
    }

    /// Prints one or more lines of the table.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.table {
            Some(stdout) => print(stdout, "the table", text),
            None => {
                // The user asked for JSON, which may have a reader even if stderr has none.
                let _ = writeln!(io::stderr(), "{text}");
                Ok(())
            }
        }
    }

    /// Writes the whole JSON.
    pub(crate) fn json(&mut self, content: &impl Serialize) -> Result<(), Failure> {
        let Some(file) = &mut self.json else { return Ok(()) };
        let text = serde_json::to_string(content).map_err(Failure::new)?;
        print(file, "the JSON", &text)
    }
}

/// Writes one or more lines.
pub(crate) fn print(mut file: impl Write, what: &str, text: &str) -> Result<(), Failure> {
    let written = writeln!(file, "{text}").and_then(|()| file.flush());
    written.map_err(|error| Failure::unwritten(what, &error))
}

/// Creates a file.
pub(crate) fn created(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|error| Failure::io(format_args!("creating {}", path.display()), &error))
}
