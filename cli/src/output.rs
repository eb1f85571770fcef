//! The places to which results go.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;

/// A table for people, and JSON on request.
pub(crate) struct Outputs {
    table: Table,
    json: Option<Json>,
}

/// The place of the JSON.
enum Json {
    Stdout,
    File(OutputFile),
}

/// A file whose old content stays until there is new content.
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
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
        let (table, json) = match json {
            None => (Table::Stdout(io::stdout()), None),
            Some(path) if path == Path::new("-") => (Table::Stderr, Some(Json::Stdout)),
            Some(path) => (Table::Stdout(io::stdout()), Some(Json::File(OutputFile::open(path)?))),
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
        let Some(json) = &mut self.json else { return Ok(()) };
        let text = serde_json::to_string(content).map_err(Failure::new)?;
        match json {
            Json::Stdout => print(io::stdout(), "the JSON", &text),
            Json::File(file) => file.replace(&text),
        }
    }
}

impl OutputFile {
    /// Opens a file before the work whose result it is to hold.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| not_created(path, &error))?;
        Ok(OutputFile { path: path.to_owned(), file })
    }

    /// Replaces the content by one or more lines.
    pub(crate) fn replace(&mut self, text: &str) -> Result<(), Failure> {
        let cut = match self.file.metadata() {
            Ok(about) if about.is_file() => self.file.set_len(0),
            // A pipe or a terminal has no old content.
            _ => Ok(()),
        };
        let name = self.path.display().to_string();
        cut.map_err(|error| Failure::unwritten(&name, &error))?;
        print(&self.file, &name, text)
    }
}

/// Returns the JSON of a value, in lines for people.
pub(crate) fn pretty_json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::new(format_args!("JSON: {error}")))
}

/// Writes one or more lines.
pub(crate) fn print(mut file: impl Write, what: &str, text: &str) -> Result<(), Failure> {
    let written = writeln!(file, "{text}").and_then(|()| file.flush());
    written.map_err(|error| Failure::unwritten(what, &error))
}

/// Creates a file.
pub(crate) fn created(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| not_created(path, &error))
}

fn not_created(path: &Path, error: &io::Error) -> Failure {
    Failure::io(format_args!("creating {}", path.display()), error)
}
