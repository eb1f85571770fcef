//! Collectives of `torch.distributed`: the backend of Invar beside gloo, in one run.

use std::process::Stdio;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use super::Args;
use crate::python;
use crate::shell::Shell;
use crate::workspace::Workspace;

/// The program of a rank. It prints the times of gloo, of the backend, and of `Communicator` alone.
const RANK: &str = "xtask/src/bench/torch/rank.py";

/// The ways of Invar's data, and the variables that choose them. Gloo always goes over TCP.
const WAYS: [(&str, &[(&str, &str)]); 2] =
    [("shared memory", &[]), ("tcp", &[("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", "socket")])];
const NRANKS: [u32; 2] = [2, 4];
/// The backend should take at most this part of gloo's time.
const BAR: f64 = 1.0 / 3.0;

pub(super) fn cases() -> Vec<&'static str> {
    WAYS.iter().map(|(name, _)| *name).collect()
}

/// Measures, and returns the operations that miss the bar. `INVAR_BENCH_PYTHON` names the Python with PyTorch;
/// without it, the first one that has PyTorch is taken.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let named = env::var("INVAR_BENCH_PYTHON").ok();
    let python = match &named {
        Some(python) => python.as_str(),
        None => python::with_module(shell, "torch").context(
            "no Python has PyTorch: on Debian, apt-get install python3-torch; or set INVAR_BENCH_PYTHON",
        )?,
    };
    let package = python::build(shell, python::Profile::Release)?;
    let target = Workspace::load(shell)?.target_dir;
    let mut missed = Vec::new();
    for (way, variables) in WAYS.iter().filter(|(name, _)| args.wants(name)) {
        for nranks in NRANKS {
            let store = target.join(format!("bench-torch-{}", std::process::id()));
            let mut children = Vec::new();
            for rank in (0..nranks).rev() {
                let mut command = shell.command(&format!("{python} -W ignore {RANK}"));
                command.args([rank.to_string(), nranks.to_string()]).arg(&store);
                command.envs(variables.iter().copied());
                command.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
                command.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
                command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
                children.push(command.spawn().with_context(|| python.to_owned())?);
            }
            let outputs: Vec<_> =
                children.into_iter().map(|child| child.wait_with_output()).collect();
            let _ = fs::remove_file(&store);
            let mut text = String::new();
            for output in outputs {
                let output = output?;
                ensure!(output.status.success(), "a rank failed ({})", output.status);
                text += &String::from_utf8_lossy(&output.stdout);
            }
            missed.extend(table(way, nranks, &text)?);
        }
    }
    Ok(missed)
}

/// Prints the lines of a run as a table. Returns the rows that miss the bar.
fn table(way: &str, nranks: u32, text: &str) -> Result<Vec<String>> {
    let mut missed = Vec::new();
    println!("{way}, {nranks} ranks: microseconds, the best of three rounds");
    println!(
        "{:16}{:>10}{:>12}{:>12}{:>8}{:>14}",
        "operation", "bytes", "gloo", "invar", "ratio", "Communicator"
    );
    for line in text.lines() {
        if let Some(head) = line.strip_prefix('#') {
            println!("#{head}");
            continue;
        }
        let fields: Vec<&str> = line.split(',').collect();
        let [name, bytes, gloo, ours, alone] = fields[..] else { bail!("a rank printed: {line}") };
        let number = |text: &str| text.parse::<f64>().with_context(|| line.to_owned());
        let ratio = number(ours)? / number(gloo)?;
        println!("{name:16}{bytes:>10}{gloo:>12}{ours:>12}{ratio:>8.3}{alone:>14}");
        if ratio > BAR && !bytes.is_empty() {
            missed.push(format!("{name} of {bytes} B over {way} among {nranks}"));
        }
    }
    Ok(missed)
}
