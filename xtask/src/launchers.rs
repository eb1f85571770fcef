//! `cargo xtask launchers`: starts `invar coll` and `invar perf` by the launchers that this machine has.
//!
//! Nothing but the launcher tells the processes who they are. Slurm runs on two nodes of its own: network
//! namespaces with a daemon each ([`slurm`]).

mod slurm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use invar_testkit::shell::clean;
use serde_json::Value;

use crate::shell::Shell;
use crate::workspace::Workspace;
use slurm::Slurm;

/// The ranks of a collective. One host has two of them where there are two hosts.
const RANKS: u64 = 3;

/// A command that starts so many processes of the program that follows.
type Start<'a> = &'a dyn Fn(u64) -> Command;

struct Bench<'a> {
    shell: &'a Shell,
    invar: PathBuf,
    json: PathBuf,
}

/// Tries every launcher, and names those that this machine lacks.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    shell.run(shell.cargo("build --workspace --bin invar"))?;
    let target = Workspace::load(shell)?.target_dir;
    let directory = target.join("launchers");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let bench =
        Bench { shell, invar: target.join("debug/invar"), json: directory.join("result.json") };

    let open_mpi = |n: u64| {
        let flags = "--allow-run-as-root --oversubscribe -n";
        shell.command(&format!("mpirun.openmpi {flags} {n}"))
    };
    bench.host("Open MPI", &open_mpi)?;
    let mpich = |n: u64| shell.command(&format!("mpirun.mpich -n {n}"));
    bench.host("MPICH", &mpich)?;
    let python = std::env::var("INVAR_BENCH_PYTHON").unwrap_or("python3".to_owned());
    let torchrun = |n: u64| {
        // Without the redirection PyTorch 1.13 starts nothing under Python 3.11.
        let flags = "--master_addr 127.0.0.1 --master_port 29517 --redirects 1 --tee 1 --no_python \
                     --nproc_per_node";
        shell.command(&format!("{python} -m torch.distributed.run {flags} {n}"))
    };
    bench.host("torchrun", &torchrun)?;

    match Slurm::start(shell, &directory) {
        Ok(slurm) => {
            for mpi in ["none", "pmi2", "pmix"] {
                let name = format!("Slurm on two nodes, --mpi={mpi}");
                if !slurm.has_mpi(shell, mpi)? {
                    println!("{name}: SKIPPED: this Slurm does not load the plugin");
                    continue;
                }
                let start = |n: u64| slurm.command(shell, &format!("srun --mpi={mpi} -N 2 -n {n}"));
                bench.both(&name, &start, 2)?;
            }
        }
        Err(error) => println!("Slurm: SKIPPED: {error:#}"),
    }
    Ok(())
}

impl Bench<'_> {
    /// Tries a launcher on this host alone, if it starts a process at all.
    fn host(&self, name: &str, start: Start<'_>) -> Result<()> {
        let mut command = start(1);
        clean(&mut command).arg("true");
        let output = bounded(self.shell, &command).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
            println!("{name}: SKIPPED: it does not start a process: {last}");
            return Ok(());
        }
        self.both(name, start, 1)
    }

    /// Runs a collective and a measurement between two processes.
    fn both(&self, name: &str, start: Start<'_>, hosts: usize) -> Result<()> {
        let coll = ["coll", "all_reduce", "-b", "4K", "-e", "1M", "-f", "16", "-n", "20"];
        let result = self.result(start(RANKS), &coll).with_context(|| name.to_owned())?;
        ensure!(result["nranks"] == RANKS, "{name}: other ranks: {result}");
        let found = result["hosts"].as_array().context("no hosts")?;
        ensure!(found.len() == hosts, "{name}: {hosts} hosts are not {found:?}");
        let perf = ["perf", "-b", "8", "-e", "64K", "-f", "8192", "-n", "50"];
        let pair = self.result(start(2), &perf).with_context(|| name.to_owned())?;
        let transport = &pair["transport"];
        println!("{name}: {RANKS} ranks of coll, {}; perf over {transport}", result["transport"]);
        Ok(())
    }

    /// Starts the command by the launcher. Returns its results, of which no element may be wrong.
    fn result(&self, mut command: Command, args: &[&str]) -> Result<Value> {
        if self.json.exists() {
            fs::remove_file(&self.json)?;
        }
        clean(&mut command).arg(&self.invar).args(args).arg("--json").arg(&self.json);
        let output = self.shell.capture(bounded(self.shell, &command))?;
        let text = fs::read_to_string(&self.json)
            .with_context(|| format!("no results in {}:\n{output}", self.json.display()))?;
        let result: Value = serde_json::from_str(&text)?;
        let rows = result["rows"].as_array().context("no rows")?;
        if rows.is_empty() || rows.iter().any(|row| row["wrong"] != 0) {
            bail!("wrong elements: {result}");
        }
        Ok(result)
    }
}

/// The command with a bound on its time.
fn bounded(shell: &Shell, command: &Command) -> Command {
    let mut bounded = shell.command("timeout --kill-after=5 120");
    bounded.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    bounded
}

/// Whether a program is on the `PATH`, or in a folder of the administrator.
fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&paths).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.any(|folder: PathBuf| Path::new(&folder).join(program).is_file())
}
