//! Measures throughput between two network namespaces. Packets go through a virtual Ethernet and have
//! to fit its MTU. Each end has a processor of its own.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, anyhow, ensure};
use invar_testkit::child::Killed;
use invar_testkit::namespaces::{Hosts, IPV6};
use serde_json::Value;

use super::{MIB, WINDOW, built, gbits, median, or_skip, row};
use crate::bench::processors::Processors;
use crate::bench::tcp::{self, Stream, Wait};
use crate::shell::Shell;

pub(super) const CASE: &str = "namespaces";

const RUNS: usize = 7;
const MESSAGES: usize = 1000;
/// The share of a blocking TCP stream's throughput that the software NIC must reach.
const BAR: f64 = 1.0;

pub(super) fn run(shell: &Shell) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let invar = target_dir.join("release/invar");
    let mut missed = Vec::new();
    println!("between two namespaces, messages of 1 MiB, Gbit/s: TCP blocking, TCP polled, soft");
    for mtu in [1500, 9000] {
        let Some(hosts) = or_skip(Hosts::new(mtu), CASE, &mut missed) else { return Ok(missed) };
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            rates[0].push(tcp(&hosts, Wait::Block)?);
            rates[1].push(tcp(&hosts, Wait::Poll)?);
            rates[2].push(gbits(&perf(&hosts, &invar, "soft", MIB, MESSAGES, WINDOW, &[])?)?);
        }
        let [blocking, polled, soft] = rates.map(|mut rates| median(&mut rates));
        println!("    MTU {mtu} {blocking:8.1} {polled:8.1} {soft:8.1}");
        if soft < BAR * blocking {
            missed.push(format!("{CASE} with MTU {mtu} ({:.2} of {BAR})", soft / blocking));
        }
    }
    Ok(missed)
}

fn tcp(hosts: &Hosts, wait: Wait) -> Result<f64> {
    let seconds = tcp::seconds(stream(hosts)?, MIB, MESSAGES, WINDOW, wait, Processors::two())?;
    Ok((MESSAGES * MIB) as f64 * 8e-9 / seconds)
}

fn stream(hosts: &Hosts) -> Result<Stream> {
    let listener = hosts.call(0, || TcpListener::bind((IPV6[0], 0)))?;
    let sender = hosts.call(1, || TcpStream::connect(listener.local_addr()?))?;
    Ok((sender, listener.accept()?.0))
}

/// The row that `invar perf` reports over `transport` for messages of `size` bytes from host 1 to host
/// 0. Both ends get the `flags`.
pub(super) fn perf(
    hosts: &Hosts,
    invar: &Path,
    transport: &str,
    size: usize,
    messages: usize,
    window: usize,
    flags: &[&str],
) -> Result<Value> {
    let invar = invar.to_str().context("a path that is no text")?;
    let mut server = hosts.program(0, invar);
    server.args(["perf", "--server"]).args(flags).stdin(Stdio::null()).stdout(Stdio::piped());
    server.env("INVAR_TRANSPORT", transport);
    let processors = Processors::two();
    let mut server = Killed(processors.call(0, || server.spawn())?);
    let stdout = server.0.stdout.take().context("a pipe")?;
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said)?;
    let port = said.trim().rsplit(':').next().unwrap_or_default();
    let mut client = hosts.program(1, invar);
    let [size, messages, window] = [size, messages, window].map(|n| n.to_string());
    client.args(["perf", "-b", &size, "-e", &size, "-n", &messages, "--window", &window]);
    client.args(flags).args(["--json", "-", "--connect", &format!("[{}]:{port}", IPV6[0])]);
    client.env("INVAR_TRANSPORT", transport);
    let output = processors.call(1, || client.output())?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "invar perf: {text}");
    row(&String::from_utf8(output.stdout)?).map_err(|error| anyhow!("{error}: {text}"))
}
