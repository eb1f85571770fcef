//! The findings of the checks, for people and as JSON.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::pretty_json;

/// The version of the JSON. A new field leaves it as it is; a changed or removed one raises it.
const JSON_VERSION: u32 = 1;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Something does not work, or works only by another way.
    Bad,
    /// Something works, but badly, or fails under some circumstances.
    Warn,
    /// A choice that may be meant so. It does not count for the exit status.
    Note,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Severity::Bad => "bad",
            Severity::Warn => "warn",
            Severity::Note => "note",
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The kind of the finding, as a word for programs.
    pub(crate) id: &'static str,
    /// The device, interface, file or variable; empty if the finding is about the host.
    pub(crate) subject: String,
    pub(crate) what: String,
    pub(crate) costs: String,
    /// The command that mends it. Words in capitals stand for what the user has to fill in.
    pub(crate) mend: String,
}

/// A finding, or a line, with the check that it comes from.
#[derive(Debug, Serialize)]
struct Of<T> {
    check: &'static str,
    #[serde(flatten)]
    entry: T,
}

#[derive(Debug, Serialize)]
struct Line {
    what: String,
}

/// The results of the checks.
#[derive(Debug, Default)]
pub(crate) struct Report {
    checks: Vec<&'static str>,
    findings: Vec<Of<Finding>>,
    well: Vec<Of<Line>>,
    unseen: Vec<Of<Line>>,
    /// The hosts side by side, as a table and as JSON.
    hosts: Option<(String, Value)>,
}

/// The JSON of a report.
#[derive(Serialize)]
struct Shown<'a> {
    version: u32,
    invar: &'static str,
    host: &'a str,
    /// Whether there is neither a bad finding nor a warning.
    is_well: bool,
    checks: &'a [&'static str],
    findings: Vec<&'a Of<Finding>>,
    well: &'a [Of<Line>],
    unseen: &'a [Of<Line>],
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<&'a Value>,
}

impl Report {
    /// Begins a check. All that follows belongs to it.
    pub(crate) fn begin(&mut self, check: &'static str) {
        self.checks.push(check);
    }

    pub(crate) fn find(&mut self, finding: Finding) {
        let check = self.check();
        self.findings.push(Of { check, entry: finding });
    }

    /// Tells what is as it should be.
    pub(crate) fn well(&mut self, what: impl Into<String>) {
        let check = self.check();
        self.well.push(Of { check, entry: Line { what: what.into() } });
    }

    /// Tells what the check cannot see, and why.
    pub(crate) fn unseen(&mut self, what: impl Into<String>) {
        let check = self.check();
        self.unseen.push(Of { check, entry: Line { what: what.into() } });
    }

    /// Shows hosts side by side, before the findings.
    pub(crate) fn compare(&mut self, table: String, json: Value) {
        self.hosts = Some((table, json));
    }

    /// Whether there is neither a bad finding nor a warning.
    pub(crate) fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.entry.severity == Severity::Note)
    }

    pub(crate) fn as_json(&self, host: &str) -> Result<String, Failure> {
        pretty_json(&Shown {
            version: JSON_VERSION,
            invar: env!("CARGO_PKG_VERSION"),
            host,
            is_well: self.is_well(),
            checks: &self.checks,
            findings: self.sorted(),
            well: &self.well,
            unseen: &self.unseen,
            hosts: self.hosts.as_ref().map(|(_, json)| json),
        })
    }

    /// The hosts, a block for each finding, the worst first, and a line with their numbers.
    pub(crate) fn as_text(&self, verbose: bool) -> String {
        let mut text = String::new();
        if let Some((table, _)) = &self.hosts {
            let _ = writeln!(text, "{table}");
        }
        for Of { check, entry } in self.sorted() {
            let Finding { severity, subject, what, costs, mend, .. } = entry;
            let subject = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
            let _ = writeln!(text, "{:<5} {subject}{what} [{check}]", severity.as_str());
            let _ = writeln!(text, "      costs: {costs}");
            let _ = writeln!(text, "      mend:  {mend}\n");
        }
        let lines = |text: &mut String, word: &str, lines: &[Of<Line>]| {
            for Of { check, entry } in lines {
                let _ = writeln!(text, "{word:<5} {} [{check}]", entry.what);
            }
            if !lines.is_empty() {
                text.push('\n');
            }
        };
        lines(&mut text, "?", &self.unseen);
        if verbose {
            lines(&mut text, "well", &self.well);
        }
        let number = |severity| {
            self.findings.iter().filter(|finding| finding.entry.severity == severity).count()
        };
        let [bad, warn, note] = [Severity::Bad, Severity::Warn, Severity::Note].map(number);
        let checks = match self.checks.len() {
            1 => "1 check".to_owned(),
            n => format!("{n} checks"),
        };
        let _ = write!(
            text,
            "{checks}: {bad} bad, {warn} warn, {note} note, {} well, {} not seen",
            self.well.len(),
            self.unseen.len()
        );
        text
    }

    /// The findings, the worst first.
    fn sorted(&self) -> Vec<&Of<Finding>> {
        let mut findings: Vec<&Of<Finding>> = self.findings.iter().collect();
        findings.sort_by_key(|finding| finding.entry.severity);
        findings
    }

    fn check(&self) -> &'static str {
        self.checks.last().copied().unwrap_or_default()
    }

    /// The findings as `severity id subject`, the worst first.
    #[cfg(test)]
    pub(crate) fn short(&self) -> Vec<String> {
        let short = |Of { entry, .. }: &Of<Finding>| {
            let Finding { severity, id, subject, .. } = entry;
            format!("{} {id} {subject}", severity.as_str()).trim_end().to_owned()
        };
        self.sorted().into_iter().map(short).collect()
    }

    #[cfg(test)]
    pub(crate) fn finding(&self, id: &str) -> &Finding {
        let found = self.findings.iter().find(|finding| finding.entry.id == id);
        &found.unwrap_or_else(|| panic!("no {id} in {:?}", self.short())).entry
    }

    #[cfg(test)]
    pub(crate) fn lines(&self) -> [Vec<&str>; 2] {
        [&self.well, &self.unseen]
            .map(|lines| lines.iter().map(|l| l.entry.what.as_str()).collect())
    }
}
