//! Where results go.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;

/// A table for people, and JSON where it is asked for.
pub(crate) struct Outputs {
    /// `None`: stderr.
    table: Option<io::Stdout>,
    json: Option<Box<dyn Write>>,
}

impl Outputs {
    /// The table to stdout; JSON into a file, which is created, or to stdout instead of the table.
    pub(crate) fn open(json: Option<&Path>) -> Result<Self, Failure> {
        let (table, json): (_, Option<Box<dyn Write>>) = match json {
            None => (Some(io::stdout()), None),
            Some(path) if path == Path::new("-") => (None, Some(Box::new(io::stdout()))),
            Some(path) => (Some(io::stdout()), Some(Box::new(created(path)?))),
        };
        Ok(Outputs { table, json })
    }

    /// A line of the table, or several.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.table {
            Some(stdout) => print(stdout, "the table", text),
            None => {
                // The JSON is what is asked for, and may have a reader where stderr has none.
                let _ = writeln!(io::stderr(), "{text}");
                Ok(())
            }
        }
    }

    /// All of it, once.
    pub(crate) fn json(&mut self, content: &impl Serialize) -> Result<(), Failure> {
        let Some(file) = &mut self.json else { return Ok(()) };
        let text = serde_json::to_string(content).map_err(Failure::new)?;
        print(file, "the JSON", &text)
    }
}

/// Writes a line, or several.
pub(crate) fn print(mut file: impl Write, what: &str, text: &str) -> Result<(), Failure> {
    let written = writeln!(file, "{text}").and_then(|()| file.flush());
    written.map_err(|error| Failure::unwritten(what, &error))
}

/// A line for people, on stderr, at once: lines of processes that share it do not mix.
pub(crate) fn tell(text: impl fmt::Display) {
    // Where it is closed, nobody is there to be told.
    let _ = io::stderr().write_all(format!("invar: {text}\n").as_bytes());
}

/// A new file.
pub(crate) fn created(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|error| Failure::io(format_args!("creating {}", path.display()), &error))
}
