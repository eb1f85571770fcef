//! Checks the files for Prometheus and Grafana.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::outcome::Outcome;
use crate::shell::Shell;

const RULES: &str = "contrib/invar-rules.yml";
const DASHBOARD: &str = "contrib/invar-dashboard.json";
const MANUAL: &str = "docs/metrics.md";

/// Checks that both files name metrics that there are. Where promtool is installed, it checks the rules.
pub(crate) fn step(shell: &Shell) -> Result<Outcome> {
    let read = |file: &str| fs::read_to_string(shell.root().join(file)).context(file.to_owned());
    let rules = read(RULES)?;
    let known = metrics(&read(MANUAL)?);
    let dashboard: serde_json::Value =
        serde_json::from_str(&read(DASHBOARD)?).context(DASHBOARD)?;
    for (file, text) in [(RULES, rules), (DASHBOARD, dashboard.to_string())] {
        let unknown: Vec<_> = metrics(&text).difference(&known).cloned().collect();
        ensure!(unknown.is_empty(), "{file}: {MANUAL} has no {}", unknown.join(", "));
    }
    let has_promtool =
        shell.command("promtool --version").output().is_ok_and(|output| output.status.success());
    if !has_promtool {
        let why = "promtool is missing: on Debian, apt-get install prometheus";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    shell.run(shell.command(&format!("promtool check rules {RULES}")))?;
    Ok(Outcome::Passed)
}

/// The metrics that a text names, without the endings of histograms.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("invar_"));
    names.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_in_expressions() {
        let text = "rate(invar_a_total[5m]) / invar_b_seconds_bucket{le=\"1\"} > `invar inspect`";
        assert_eq!(metrics(text), ["invar_a_total", "invar_b_seconds"].map(str::to_owned).into());
    }
}
