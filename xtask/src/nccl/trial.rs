//! What one release of NCCL does with the plugin.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use invar_testkit::shell::clean;
use serde_json::Value;

use super::child::RESULT;
use super::page::Row;
use super::release::Release;
use crate::shell::Shell;

/// Time that a process has to load NCCL and to pick a network.
const WITHIN: Duration = Duration::from_secs(60);
/// Time between two looks at the process.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The plugin refuses this value, so that its `init` fails.
const REFUSED: (&str, &str) = ("INVAR_FIFO_DEPTH", "3");
/// The line with which the plugin says that it has a device.
const IN_USE: &str = "NET/Invar : Using [0]soft";
/// The line with which the plugin says that NCCL has started collNet.
const COLLNET_ON: &str = "NET/Invar : collNet is on";
/// The start of the lines in which NCCL names the table of collNet that it loads. Some releases say nothing.
const LOADED: &str = "NET/Plugin: Loaded coll";

/// A release and what the trials need beside it.
pub(super) struct Trials<'a> {
    pub(super) shell: &'a Shell,
    pub(super) plugin: &'a Path,
    pub(super) library: &'a Path,
    pub(super) target: &'a Path,
}

/// What a process printed.
struct Answer {
    version: u32,
    /// The `ncclResult_t` of NCCL's choice.
    code: u32,
    /// The names of the networks that the communicator has.
    network: String,
    log: String,
}

impl Trials<'_> {
    /// Runs all trials.
    ///
    /// # Errors
    /// NCCL does not pick a plugin that works, or takes another network where `NCCL_NET` names this one.
    pub(super) fn row(&self, release: &Release) -> Result<Row> {
        let variables = self.variables()?;
        let lookups = self.target.join("nccl/lookups");
        let debug = [("LD_DEBUG", "symbols"), ("LD_DEBUG_OUTPUT", text(&lookups)?)];
        let works = self.ask(&variables, &debug)?;
        let is_picked = works.code == 0 && works.network == "Invar" && works.log.contains(IN_USE);
        ensure!(is_picked, "the plugin works, and was not picked:\n{}", works.log);
        let lookups = taken(&lookups)?;
        let [interface, collnet] = ["ncclNetPlugin_", "ncclCollNetPlugin_"].map(|prefix| {
            interface(&lookups, prefix).with_context(|| format!("NCCL looked for no {prefix}"))
        });
        let (interface, collnet) = (interface?, collnet?);
        let is_other =
            |line: &&str| line.contains(LOADED) && !line.contains(&format!("({collnet})"));
        let other = works.log.lines().find(is_other);
        ensure!(other.is_none(), "NCCL looked for collNet {collnet} last, and says: {other:?}");
        let reduces = self.ask(&variables, &[("NCCL_COLLNET_ENABLE", "1")])?;
        let is_on = reduces.code == 0 && reduces.log.contains(COLLNET_ON);
        ensure!(is_on, "NCCL did not start collNet:\n{}", reduces.log);

        let mut named = None;
        if release.reads_net {
            let fails = self.ask(&variables, &[REFUSED])?;
            ensure!(fails.log.contains(REFUSED.0), "the plugin gave no reason:\n{}", fails.log);
            let is_refused = fails.code != 0 && fails.network.is_empty();
            ensure!(is_refused, "NCCL_NET=Invar, and another network was taken:\n{}", fails.log);
            named = Some(fails.code);
        }

        let mut unnamed = variables;
        unnamed.remove("NCCL_NET");
        let falls_back = self.ask(&unnamed, &[REFUSED])?;
        ensure!(falls_back.network != "Invar", "a broken plugin was taken:\n{}", falls_back.log);
        Ok(Row {
            version: dotted(works.version),
            interface,
            collnet,
            named,
            unnamed: match falls_back.code {
                0 => falls_back.network,
                code => format!("nothing: it fails with {code}"),
            },
        })
    }

    /// The variables that `invar env` gives for this release.
    fn variables(&self) -> Result<BTreeMap<String, String>> {
        let shell = self.shell;
        shell.run(shell.cargo("build --workspace --bin invar"))?;
        let mut command = shell.program(&self.target.join("debug/invar"));
        command.args(["env", "--json", "--nccl"]).arg(self.library);
        clean(command.arg("--plugin").arg(self.plugin)).env_remove("LD_LIBRARY_PATH");
        let advice: Value = serde_json::from_str(&shell.read(command)?)?;
        let variables = advice["environment"].as_object().context("no environment")?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
        variables.iter().map(|(name, value)| Ok((name.clone(), text(value)?))).collect()
    }

    /// Starts a process with these variables, on the software NIC and loopback.
    fn ask(&self, variables: &BTreeMap<String, String>, more: &[(&str, &str)]) -> Result<Answer> {
        let mut command = self.shell.program(&env::current_exe()?);
        clean(&mut command).args(["nccl", "--child"]).arg(self.library);
        command.env("NCCL_DEBUG", "INFO").env("NCCL_SOCKET_IFNAME", "lo");
        command.env("INVAR_TRANSPORT", "soft").env("NCCL_IB_DISABLE", "1");
        command.env_remove("LD_LIBRARY_PATH");
        command.envs(variables).envs(more.iter().copied());
        let log = self.run(command)?;
        let result = log.lines().find_map(|line| line.strip_prefix(RESULT));
        let result = result.with_context(|| format!("NCCL did not return:\n{log}"))?;
        let value = |key: &str| {
            let pair = result.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
            pair.with_context(|| format!("no {key} in {result}"))
        };
        Ok(Answer {
            version: value("version")?.parse()?,
            code: value("code")?.parse()?,
            network: value("network")?.to_owned(),
            log: log.clone(),
        })
    }

    /// Runs a process to its end, or for [`WITHIN`]. Returns what it wrote.
    fn run(&self, mut command: Command) -> Result<String> {
        let path = self.target.join("nccl/log");
        let log = File::create(&path).with_context(|| path.display().to_string())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn().context("cannot start this program again")?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > WITHIN {
                child.kill()?;
                child.wait()?;
                bail!("still runs after {WITHIN:?}:\n{}", fs::read_to_string(&path)?);
            }
            thread::sleep(LOOK_EVERY);
        };
        let log = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        ensure!(status.success(), "the process that loads NCCL failed ({status}):\n{log}");
        Ok(log)
    }
}

/// The interface that NCCL takes: it looks for the newest first, and ends with the first that is there. Not
/// every release logs it, but the loader lists all lookups. `prefix` is that of the symbols.
fn interface(lookups: &str, prefix: &str) -> Option<String> {
    let symbol = format!("symbol={prefix}");
    let names = lookups.lines().filter_map(|line| line.split_once(&symbol));
    let names = names.filter_map(|(_, rest)| rest.split_once(';'));
    names.map(|(name, _)| name.to_owned()).next_back()
}

/// Reads the files whose names begin with `prefix` and a dot, and removes them.
fn taken(prefix: &Path) -> Result<String> {
    let directory = prefix.parent().context("a file is in a directory")?;
    let start = format!("{}.", prefix.file_name().unwrap_or_default().to_string_lossy());
    let mut text = String::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&start) {
            text += &String::from_utf8_lossy(&fs::read(entry.path())?);
            fs::remove_file(entry.path())?;
        }
    }
    Ok(text)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: no UTF-8", path.display()))
}

/// A version as people write it. `ncclGetVersion` gives 21403 for 2.14.3.
fn dotted(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_interface_that_was_looked_for_is_the_one_taken() {
        let lookup = |name: &str| {
            format!("    7:\tsymbol={name};  lookup in file=/x/libnccl-net-invar.so [0]\n")
        };
        let lookups = ["malloc", "ncclNetPlugin_v9", "ncclNetPlugin_v8", "ncclCollNetPlugin_v7"];
        let lookups: String = lookups.into_iter().map(lookup).collect();
        assert_eq!(interface(&lookups, "ncclNetPlugin_").as_deref(), Some("v8"));
        assert_eq!(interface(&lookups, "ncclCollNetPlugin_").as_deref(), Some("v7"));
        assert_eq!(interface("", "ncclNetPlugin_"), None);
    }

    #[test]
    fn a_version_is_written_as_people_do() {
        assert_eq!((dotted(21_403), dotted(23_203)), ("2.14.3".into(), "2.32.3".into()));
    }
}
