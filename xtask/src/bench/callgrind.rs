//! Reads the profiles that `valgrind --tool=callgrind` writes.
//!
//! The format is described in valgrind's manual, "Callgrind Format Specification". This parser reads
//! functions, their own cost and the cost of the calls between them. It takes the first event alone.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use anyhow::{Context, Result, bail};

/// The costs of one run, in events. The default event is an instruction.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// The cost of each function, without the functions that it calls.
    pub(super) own: HashMap<String, u64>,
    /// The cost of calls by caller and callee. It includes everything that happens below a call.
    pub(super) calls: HashMap<(String, String), u64>,
}

impl Profile {
    /// Parses a file that `--callgrind-out-file` names.
    pub(super) fn parse(text: &str) -> Result<Profile> {
        let mut parser = Parser::default();
        for (number, line) in (1..).zip(text.lines()) {
            parser.line(line).with_context(|| format!("line {number} of the profile: {line}"))?;
        }
        Ok(parser.profile)
    }

    /// The sum of all counted events.
    pub(super) fn total(&self) -> u64 {
        self.own.values().sum()
    }

    /// The cost of all calls from a function outside the set to a function inside it. `inside` says
    /// which functions are in the set.
    pub(super) fn below(&self, inside: impl Fn(&str) -> bool) -> u64 {
        let entered = |(caller, callee): &(String, String)| !inside(caller) && inside(callee);
        self.calls.iter().filter(|(call, _)| entered(call)).map(|(_, cost)| cost).sum()
    }
}

struct Parser {
    profile: Profile,
    /// The number of columns that hold the position. The cost follows them.
    positions: usize,
    /// Maps a number to a name. A profile writes each name once and refers to it by number afterwards.
    names: HashMap<String, String>,
    function: String,
    callee: String,
    /// Whether the next cost line belongs to a call of `callee`.
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
            // Skip headers, source files, objects, comments and empty lines.
            (_, Some(':' | '=')) | ("", Some('#') | None) => {}
            _ => bail!("neither a cost nor a name"),
        }
        Ok(())
    }

    /// Resolves a name: `(7) main` defines number 7, and `(7)` refers to it.
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
            // The format lets a line omit zeroes at its end.
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
