//! The places to which results go.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// A table for people, and JSON on request.
pub(crate) struct Outputs {
    table: Table,
    json: Option<Box<dyn Write>>,
}

/// The place of the table.
enum Table {
    Stdout(io::Stdout),
    Stderr,
    Nowhere,
}

impl Outputs {
    /// Sends nothing anywhere.
    pub(crate) fn silent() -> Self {
        Outputs { table: Table::Nowhere, json: None }
    }

    /// Whether nothing goes anywhere.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.table, Table::Nowhere) && self.json.is_none()
    }

    /// Sends the table to stdout and JSON into a new file, or JSON to stdout and the table to stderr.
    pub(crate) fn open(json: Option<&Path>) -> Result<Self, Failure> {
        let (table, json): (_, Option<Box<dyn Write>>) = match json {
            None => (Table::Stdout(io::stdout()), None),
            Some(path) if path == Path::new("-") => (Table::Stderr, Some(Box::new(io::stdout()))),
            Some(path) => (Table::Stdout(io::stdout()), Some(Box::new(created(path)?))),
        };
        Ok(Outputs { table, json })
    }

    /// Prints one or more lines of the table.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.table {
            Table::Stdout(stdout) => print(stdout, "the table", text),
            Table::Nowhere => Ok(()),
            Table::Stderr => {
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
