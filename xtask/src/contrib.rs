//! Checks the files for Prometheus and Grafana.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use invar_testkit::child::Killed;
use serde_json::Value;

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

const RULES: &str = "contrib/invar-rules.yml";
const DASHBOARD: &str = "contrib/invar-dashboard.json";
const MANUAL: &str = "docs/metrics.md";
/// Time in which Prometheus must have the metrics and have evaluated the rules.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Checks that both files name metrics that there are. Where Prometheus is installed, it tests the alerts, and
/// Prometheus itself scrapes a run and evaluates the rules.
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
    let starts = |program: &str| {
        let output = shell.command(&format!("{program} --version")).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !starts("promtool") || !starts("prometheus") {
        let why = "Prometheus is missing: on Debian, apt-get install prometheus";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    shell.run(shell.command(&format!("promtool check rules {RULES}")))?;
    shell.run(shell.command("promtool test rules contrib/invar-rules.test.yml"))?;
    scrape_a_run(shell)?;
    Ok(Outcome::Passed)
}

fn start(mut command: Command) -> Result<Killed> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Killed(command.spawn().with_context(|| format!("cannot start {name}"))?))
}

/// Lets Prometheus scrape a run of `invar perf` on loopback, and evaluate the rules.
fn scrape_a_run(shell: &Shell) -> Result<()> {
    shell.run(shell.cargo("build --workspace --bin invar"))?;
    let target = Workspace::load(shell)?.target_dir;
    let folder = target.join("prometheus");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let (metrics, prometheus) = (unused()?, unused()?);
    let mut perf = shell.program(&target.join("debug/invar"));
    perf.args(["perf", "-b", "64K", "-e", "64K", "-n", "100000000"]);
    perf.env("INVAR_TRANSPORT", "soft").env("INVAR_METRICS", metrics.to_string());
    let _perf = start(perf)?;
    let rules = shell.root().join(RULES);
    let config = folder.join("prometheus.yml");
    fs::write(
        &config,
        format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [\"{}\"]\n\
             scrape_configs: [{{job_name: invar, static_configs: [{{targets: [\"{metrics}\"]}}]}}]\n",
            rules.display()
        ),
    )?;
    let mut command = shell.program(Path::new("prometheus"));
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
    command.arg(format!("--web.listen-address={prometheus}"));
    let _prometheus = start(command)?;
    let has_sent = |answer: &Value| !answer["data"]["result"].as_array().is_none_or(Vec::is_empty);
    wait(prometheus, "/api/v1/query?query=invar_sent_bytes_total%3E0", has_sent)?;
    let all_ok = |answer: &Value| {
        let groups = answer["data"]["groups"].as_array();
        let mut rules =
            groups.into_iter().flatten().flat_map(|of| of["rules"].as_array()).flatten();
        groups.is_some_and(|groups| !groups.is_empty()) && rules.all(|rule| rule["health"] == "ok")
    };
    wait(prometheus, "/api/v1/rules", all_ok)
}

/// An address of loopback at which nobody listens.
fn unused() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Asks until the answer is as it should be.
fn wait(addr: SocketAddr, path: &str, is_right: impl Fn(&Value) -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        let answer = get(addr, path);
        if answer.as_ref().is_ok_and(&is_right) {
            return Ok(());
        }
        if start.elapsed() > TIMEOUT {
            bail!("Prometheus at {addr}{path} answers {answer:?}");
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// The JSON that a server of loopback answers.
fn get(addr: SocketAddr, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").context("no answer")?;
    Ok(serde_json::from_str(body)?)
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
