//! Reads the profiles that `valgrind --tool=callgrind` writes.
//!
//! The format is described in valgrind's manual, "Callgrind Format Specification". Of it, this
//! takes functions, their own cost and the cost of the calls between them, for the first event.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use anyhow::{Context, Result, bail};

/// Costs of one run, in events (instructions, by default).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// What each function costs by itself.
    pub(super) own: HashMap<String, u64>,
    /// What calls cost, all that happens below them included, by caller and callee.
    pub(super) calls: HashMap<(String, String), u64>,
}

impl Profile {
    /// Reads the content of a file made by `--callgrind-out-file`.
    pub(super) fn parse(text: &str) -> Result<Profile> {
        let mut parser = Parser::default();
        for (number, line) in (1..).zip(text.lines()) {
            parser.line(line).with_context(|| format!("line {number} of the profile: {line}"))?;
        }
        Ok(parser.profile)
    }

    /// All that was counted.
    pub(super) fn total(&self) -> u64 {
        self.own.values().sum()
    }

    /// What is spent in the functions that `inside` names and in whatever they call, entered from
    /// other functions.
    pub(super) fn below(&self, inside: impl Fn(&str) -> bool) -> u64 {
        let entered = |(caller, callee): &(String, String)| !inside(caller) && inside(callee);
        self.calls.iter().filter(|(call, _)| entered(call)).map(|(_, cost)| cost).sum()
    }
}

struct Parser {
    profile: Profile,
    /// How many columns of a cost line say where, before those that say how much.
    positions: usize,
    /// Names are written once and called by number from then on.
    names: HashMap<String, String>,
    function: String,
    callee: String,
    /// The next cost line is that of a call to `callee`.
    is_call: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Parser {
            profile: Profile::default(),
            positions: 1,
            names: HashMap::new(),
            function: String::new(),
            callee: String::new(),
            is_call: false,
        }
    }
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<()> {
        let key_len = line.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(line.len());
        let (key, rest) = line.split_at(key_len);
        match (key, rest.chars().next()) {
            ("positions", Some(':')) => self.positions = rest[1..].split_whitespace().count(),
            ("fn", Some('=')) => self.function = self.name(&rest[1..])?,
            ("cfn", Some('=')) => self.callee = self.name(&rest[1..])?,
            ("calls", Some('=')) => self.is_call = true,
            ("", Some('0'..='9' | '+' | '-' | '*')) => self.cost(line)?,
            // Headers, source files and objects; comments and empty lines.
            (_, Some(':' | '=')) | ("", Some('#') | None) => {}
            _ => bail!("neither a cost nor a name"),
        }
        Ok(())
    }

    /// `(7) main` gives number 7 its name, `(7)` takes it.
    fn name(&mut self, text: &str) -> Result<String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')'))
        else {
            return Ok(text.to_owned());
        };
        let name = name.trim_start();
        if name.is_empty() {
            return self.names.get(number).cloned().context("a number without a name");
        }
        self.names.insert(number.to_owned(), name.to_owned());
        Ok(name.to_owned())
    }

    fn cost(&mut self, line: &str) -> Result<()> {
        let cost = match line.split_whitespace().nth(self.positions) {
            Some(word) => word.parse().context("the cost is no number")?,
            // Zeroes at a line's end may be left out.
            None => 0,
        };
        if std::mem::take(&mut self.is_call) {
            let call = (self.function.clone(), self.callee.clone());
            *self.profile.calls.entry(call).or_default() += cost;
        } else {
            *self.profile.own.entry(self.function.clone()).or_default() += cost;
        }
        Ok(())
    }
}
