//! `invar settings`: every variable, with the value in force.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use invar::{InForce, Settings};
use serde::Serialize;

use crate::failure::{Failure, USAGE};
use crate::logger::tell;
use crate::output::{pretty_json, print};
use crate::tell_remarks;

/// Columns of a terminal.
const WIDTH: usize = 80;
const INDENT: &str = "    ";

/// Show every variable, its value in force, and where the value comes from.
///
/// The values are those that `invar` has here. A flag of a command goes before the variable. If a value is refused,
/// its default is shown.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Variables to show [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Print JSON: an array with an object for each variable
    #[arg(long)]
    json: bool,
}

/// A variable as JSON shows it.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    value: &'a str,
    /// `default` or `environment`.
    source: String,
    default: &'a str,
    /// The allowed values, in words.
    values: String,
    /// The unit of a number; empty for a variable that is no number.
    unit: &'a str,
    read_by: String,
    meaning: &'a str,
    /// How the default differs from NCCL 2.14.3's; empty where it does not.
    differs: &'a str,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut env = environment();
    let refused = remove_refused(&mut env);
    let mut settings = Settings::from_vars(&env)?;
    tell_remarks(&mut settings, false);
    let mut rows = settings.in_force();
    for name in &args.names {
        if rows.iter().all(|row| row.info.name != name) {
            let text = format!("{name}: Invar reads no such variable; `invar settings` shows all");
            return Err(Failure::usage(text));
        }
    }
    rows.retain(|row| args.names.is_empty() || args.names.iter().any(|name| row.info.name == name));
    let text = match args.json {
        true => {
            let rows: Vec<Shown> = rows.iter().map(shown).collect();
            pretty_json(&rows)?
        }
        false => rows.iter().map(as_text).collect::<Vec<_>>().join("\n\n"),
    };
    print(io::stdout(), "the settings", &text)?;
    refused.iter().for_each(|(_, why)| tell(why));
    Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(USAGE) })
}

/// The variables of this process, as text.
pub(crate) fn environment() -> BTreeMap<String, String> {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect()
}

/// Removes the variables that Invar refuses from an environment. Returns their names, and why Invar refuses each.
pub(crate) fn remove_refused(env: &mut BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    while let Err(error) = Settings::from_vars(&*env) {
        let text = error.to_string();
        let name = text.split('=').next().unwrap_or_default().to_owned();
        let is_removed = env.remove(&name).is_some();
        refused.push((name, text));
        if !is_removed {
            break;
        }
    }
    refused
}

fn shown(row: &InForce) -> Shown<'_> {
    let info = row.info;
    Shown {
        name: info.name,
        value: &row.value,
        source: row.source.to_string(),
        default: info.default,
        values: info.allowed.to_string(),
        unit: info.unit,
        read_by: info.readers.to_string(),
        meaning: info.meaning,
        differs: info.differs,
    }
}

/// The name with value and source, and below it the rest, in lines that fit a terminal.
fn as_text(row: &InForce) -> String {
    let Shown { name, value, source, default, values, unit, read_by, meaning, differs } =
        shown(row);
    let or_empty =
        |value: &str| if value.is_empty() { "(empty)".to_owned() } else { value.to_owned() };
    let unit = if unit.is_empty() { String::new() } else { format!(" Unit: {unit}.") };
    let value = or_empty(value);
    [
        format!("{name}={value}  from: {source}"),
        wrapped(meaning),
        wrapped(&format!("Values: {values}.{unit} Default: {}.", or_empty(default))),
        wrapped(&format!("Read by: {read_by}.")),
    ]
    .into_iter()
    .chain((!differs.is_empty()).then(|| wrapped(&format!("NCCL: {differs}"))))
    .collect::<Vec<_>>()
    .join("\n")
}

/// Lines of at most [`WIDTH`] columns, broken between words.
fn wrapped(text: &str) -> String {
    let mut lines = vec![INDENT.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one at least");
        if line.len() > INDENT.len() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("{INDENT}{word}"));
        } else {
            *line += if line.len() > INDENT.len() { " " } else { "" };
            *line += word;
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_fits_a_terminal() {
        let rows = Settings::default().in_force();
        for line in rows.iter().map(as_text).collect::<Vec<_>>().join("\n").lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn a_long_text_goes_on_in_the_next_line() {
        let text = "word ".repeat(16);
        let lines = wrapped(text.trim_end());
        let lengths: Vec<usize> = lines.lines().map(str::len).collect();
        assert_eq!(lengths, [78, 8]);
    }
}
