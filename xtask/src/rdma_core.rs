//! `cargo xtask rdma-core`: runs rdma-core's own Python tests on the `libibverbs.so.1` of soft-verbs.
//!
//! The tests come from Debian's package python3-pyverbs. They ask the device what it can do, and skip what
//! it cannot.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::outcome::Outcome;
use crate::shell::Shell;
use crate::workspace::Workspace;

const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";
/// The Python for which Debian builds pyverbs.
const PYTHON: &str = "/usr/bin/python3";
/// The fewest tests that must pass, of the 89 that pass with Debian's 44.0. The others skip what the device lacks.
const PASSED_MIN: usize = 80;
const LAST_DEVICE: &str =
    "import pyverbs.device as d; print(d.get_device_list()[-1].name.decode())";

/// The results of the tests of one file.
#[derive(Default, Debug, PartialEq, Eq)]
struct Row {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// The results of a run.
#[derive(Default, Debug, PartialEq, Eq)]
struct Report {
    rows: BTreeMap<String, Row>,
    /// Number of tests that were skipped for each reason.
    reasons: BTreeMap<String, usize>,
    failures: Vec<String>,
}

/// Runs all tests on the device of loopback, and prints tables.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    match step(shell)? {
        Outcome::Passed => Ok(()),
        Outcome::Skipped(reason) => bail!("{reason}"),
    }
}

/// Runs all tests as a step of CI.
pub(crate) fn step(shell: &Shell) -> Result<Outcome> {
    if !Path::new(INSTALLED).exists() {
        let reason = format!("{INSTALLED} is missing: apt-get install python3-pyverbs");
        return Ok(Outcome::Skipped(reason));
    }
    shell.run(shell.cargo("build --workspace --lib"))?;
    let target = Workspace::load(shell)?.target_dir;
    let library = target.join("debug/libinvar_soft_verbs.so");
    let folder = target.join("rdma-core");
    unpack(shell, &folder)?;
    let python = |args: &[&str]| {
        let mut command = shell.program(Path::new(PYTHON));
        command.current_dir(&folder).args(args).env("LD_PRELOAD", &library);
        command
    };
    let device = shell.read(python(&["-c", LAST_DEVICE]))?;
    let mut tests = python(&["tests/run_tests.py", "--gid", "0", "-v", "--dev"]);
    tests.arg(device.trim());
    let output = tests.output()?;
    let [said, more] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let text = said + &*more;
    let report = parse(&text);
    report.print();
    let is_judged = output.status.success() || !report.failures.is_empty();
    if !is_judged || !text.contains("\nRan ") {
        // Python has ended early, by a signal or an error of its own.
        let last: Vec<&str> = text.lines().rev().take(20).collect();
        bail!("{}: {}", output.status, last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    report.judge()?;
    Ok(Outcome::Passed)
}

/// Copies the tests, and unpacks those that Debian has compressed.
fn unpack(shell: &Shell, folder: &Path) -> Result<()> {
    let to = folder.join("tests");
    if to.exists() {
        fs::remove_dir_all(&to).with_context(|| to.display().to_string())?;
    }
    fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(INSTALLED)? {
        let path = entry?.path();
        let copy: PathBuf = to.join(path.file_name().context("an entry has a name")?);
        fs::copy(&path, &copy).with_context(|| path.display().to_string())?;
        if copy.extension().is_some_and(|extension| extension == "gz") {
            let mut gunzip = shell.command("gzip --decompress");
            gunzip.arg(&copy);
            shell.run(gunzip)?;
        }
    }
    Ok(())
}

/// Reads the lines of Python's unittest: the name of a test with its file, then the first line of its
/// documentation if it has one, and the result at the end. A test that prints moves its result to the next
/// line.
fn parse(text: &str) -> Report {
    let mut report = Report::default();
    let (mut test, mut printed) = ("", false);
    for line in text.lines() {
        if let Some((_, named)) = line.split_once("(tests.")
            && let Some((name, _)) = named.split_once(')')
        {
            test = name;
        }
        let result = match line.rsplit_once(" ... ") {
            Some((_, result)) => result,
            None if printed => line,
            None => continue,
        };
        printed = !report.add(test, result);
    }
    report
}

impl Report {
    /// Counts the result of a test. Returns false for a text that is no result.
    fn add(&mut self, test: &str, result: &str) -> bool {
        let file = test.split('.').next().unwrap_or(test);
        let row = self.rows.entry(file.to_owned()).or_default();
        if let Some(reason) = result.strip_prefix("skipped ") {
            row.skipped += 1;
            let reason = reason.trim_matches(['\'', '"']).to_owned();
            *self.reasons.entry(reason).or_default() += 1;
        } else if result == "ok" {
            row.passed += 1;
        } else if ["FAIL", "ERROR"].contains(&result) {
            row.failed += 1;
            self.failures.push(test.to_owned());
        } else {
            return false;
        }
        true
    }
}

impl Report {
    /// Fails if a test has failed, or if hardly any has passed.
    fn judge(&self) -> Result<()> {
        ensure!(self.failures.is_empty(), "{} tests failed", self.failures.len());
        let passed: usize = self.rows.values().map(|row| row.passed).sum();
        ensure!(
            passed >= PASSED_MIN,
            "{passed} tests passed, and {PASSED_MIN} should; the last table says why others were skipped"
        );
        Ok(())
    }

    fn print(&self) {
        println!("| tests | passed | skipped | failed |\n|---|---|---|---|");
        for (file, Row { passed, failed, skipped }) in &self.rows {
            println!("| {file} | {passed} | {skipped} | {failed} |");
        }
        println!("\n| skipped because | tests |\n|---|---|");
        for (reason, count) in &self.reasons {
            println!("| {reason} | {count} |");
        }
        for test in &self.failures {
            println!("failed: {test}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_by_file_and_reason() {
        let text = "\
test_a (tests.test_cq.CQTest.test_a)
Creates a queue ... ok
test_d (tests.test_cq.CQTest.test_d) ... it prints
ok
test_b (tests.test_cq.CQTest.test_b) ... skipped 'No such device'
test_c (tests.test_qp.QPTest.test_c)
Moves ... FAIL
setUpClass (tests.test_qp.Other) ... ERROR

======
FAIL: test_c (tests.test_qp.QPTest.test_c)
";
        let report = parse(text);
        let row = |passed, failed, skipped| Row { passed, failed, skipped };
        assert_eq!(report.rows["test_cq"], row(2, 0, 1));
        assert_eq!(report.rows["test_qp"], row(0, 2, 0));
        assert_eq!(report.reasons["No such device"], 1);
        assert_eq!(report.failures, ["test_qp.QPTest.test_c", "test_qp.Other"]);
    }

    #[test]
    fn a_run_in_which_hardly_a_test_passed_is_no_success() {
        let line = "test_a (tests.test_cq.Test.test_a) ... ok\n";
        let passed = |count: usize| parse(&line.repeat(count));
        assert!(passed(PASSED_MIN).judge().is_ok());
        assert!(passed(PASSED_MIN - 1).judge().is_err());
    }
}
