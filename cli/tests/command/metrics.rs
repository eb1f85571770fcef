//! Metrics of a real run: over HTTP, in a file, and in `invar top`.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::thread;

use invar_core::auth::{Secret, Service};
use invar_testkit::strangers::{Door, besiege};
use invar_testkit::unused;
use invar_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::*;

/// A directory for the recorders and metrics of a test, and the transport of its runs.
pub(crate) struct Dir(TempDir, &'static str);

impl Dir {
    pub(crate) fn new() -> Self {
        Dir::over("soft")
    }

    pub(crate) fn over(transport: &'static str) -> Self {
        Dir(tempfile::tempdir().unwrap(), transport)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A run whose recorders are in this directory.
    pub(crate) fn invar(&self, args: &[&str]) -> Command {
        let mut command = invar(args);
        command.env("XDG_RUNTIME_DIR", self.path()).env("INVAR_TRANSPORT", self.1);
        command
    }
}

/// A run of `invar perf` between two processes, which ends when the test does. The server shows metrics.
pub(crate) fn perf(dir: &Dir, metrics: &str) -> [Run; 2] {
    perf_with(dir, [&[("INVAR_METRICS", metrics)], &[]])
}

/// A run of `invar perf` between two processes, with variables for the server and for the client.
pub(crate) fn perf_with(dir: &Dir, envs: [&[(&str, &str)]; 2]) -> [Run; 2] {
    let [of_server, of_client] = envs.map(|env| env.iter().copied());
    let mut command = dir.invar(&["perf", "--server", "127.0.0.1:0"]);
    let (server, addr) = server(command.envs(of_server));
    let args = ["perf", "--connect", &addr, "-b", "64K", "-e", "64K", "-n", "100000000"];
    [server, Run::start(dir.invar(&args).envs(of_client))]
}

/// Two ranks that run all-reduces of `bytes` bytes in shared memory, until the test ends. Rank 0 shows metrics.
pub(crate) fn ranks(dir: &Dir, bytes: &str, metrics: &str) -> [Run; 2] {
    let root = unused::address().to_string();
    [("0", metrics), ("1", "")].map(|(rank, metrics)| {
        let mut command = dir.invar(&["coll", "all_reduce", "-b", bytes, "-e", bytes]);
        command.args(["-n", "100000000", "--rank", rank, "--ranks", "2", "--root", &root]);
        command.env("INVAR_COLL_SECRET", "a word").env("INVAR_STALL_MS", "500");
        Run::start(command.env("INVAR_METRICS", metrics))
    })
}

/// The answer to a scrape, or nothing while nobody listens.
fn scrape(addr: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The largest sample whose line has all these parts.
pub(crate) fn sample(text: &str, parts: &[&str]) -> Option<f64> {
    let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).max_by(f64::total_cmp)
}

#[test]
fn a_run_shows_the_metrics_of_both_processes_over_http() {
    let dir = Dir::new();
    let addr = unused::address().to_string();
    let _runs = perf(&dir, &addr);
    let sent = ["invar_sent_bytes_total{", "role=\"sender\"", "device=\"soft"];
    let value = || scrape(&addr).and_then(|text| sample(&text, &sent)).unwrap_or_default();
    until("sent bytes", || value() > 1e6);
    let before = value();
    until("more sent bytes", || value() > before);
    let text = scrape(&addr).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("# EOF\n"), "{text}");
    assert!(sample(&text, &["invar_received_bytes_total{", "receiver"]).unwrap() > 1e6, "{text}");
    let at_least = |metric: &str, least: f64| {
        until(metric, || scrape(&addr).and_then(|text| sample(&text, &[metric])) >= Some(least));
    };
    // A thread that may run seldom counts these.
    at_least("invar_device_sent_bytes_total{", 1e6);
    at_least("invar_registrations_total{", 1.0);
    at_least("invar_send_latency_seconds_count{", 1.0);
}

#[test]
fn a_run_writes_its_metrics_to_a_file() {
    let dir = Dir::new();
    let file = dir.path().join("invar.prom");
    let _runs = perf(&dir, &format!("file:{}", file.display()));
    let read = || fs::read_to_string(&file).unwrap_or_default();
    until("sent bytes", || sample(&read(), &["invar_sent_bytes_total{"]).is_some());
    let text = read();
    assert!(
        text.contains("# TYPE invar_sent_bytes_total counter\n") && !text.contains("# EOF"),
        "{text}"
    );
}

/// The label of a run's process.
fn pid(run: &Run) -> String {
    format!("pid=\"{}\"", run.0.id())
}

#[test]
fn a_run_shows_processes_that_keep_their_recorders_elsewhere() {
    let dir = Dir::new();
    let addr = unused::address().to_string();
    let mut command = dir.invar(&["perf", "--server", "127.0.0.1:0"]);
    let (_server, at) = server(command.env("INVAR_METRICS", &addr));
    let args = ["perf", "--connect", &at, "-b", "64K", "-e", "64K", "-n", "100000000"];
    let client =
        Run::start(invar(&args).env_remove("XDG_RUNTIME_DIR").env("INVAR_TRANSPORT", "soft"));
    let parts = ["invar_sent_bytes_total{", &pid(&client)];
    until("the client", || scrape(&addr).is_some_and(|text| sample(&text, &parts) > Some(1e6)));
}

#[test]
fn the_file_of_metrics_goes_when_the_process_ends_in_order() {
    let dir = Dir::new();
    let file = dir.path().join("invar.prom");
    let mut command = dir.invar(&["perf", "--server", "127.0.0.1:0"]);
    let (_server, at) = server(&mut command);
    let args = ["perf", "--connect", &at, "-b", "64K", "-e", "64K", "-n", "100"];
    let place = format!("file:{}", file.display());
    let mut client = dir.invar(&args);
    Run::start(client.env("INVAR_METRICS", place)).wait().ok();
    assert!(!file.exists());
}

#[test]
fn a_run_over_tcp_shows_both_ends_and_no_counters_of_a_nic() {
    let dir = Dir::over("socket");
    let file = dir.path().join("invar.prom");
    let runs = perf(&dir, &format!("file:{}", file.display()));
    let read = || fs::read_to_string(&file).unwrap_or_default();
    for (metric, role) in [
        ("invar_sent_bytes_total{", "sender"),
        ("invar_received_bytes_total{", "receiver"),
        ("invar_send_latency_seconds_count{", "sender"),
    ] {
        until(metric, || sample(&read(), &[metric, role]) >= Some(1.0));
    }
    let is_of_run = |line: &&str| runs.iter().any(|run| line.contains(&pid(run)));
    let text = read();
    let of_device = |line: &&str| line.starts_with("invar_device_sent_bytes_total{");
    assert!(!text.lines().filter(is_of_run).any(|line| of_device(&line)), "{text}");
    let text = Run::start(&mut dir.invar(&["top", "--once"])).wait().ok().stdout.clone();
    assert!(text.contains("sender") && text.contains("receiver"), "{text}");
}

#[test]
fn top_shows_the_rates_of_a_run() {
    let dir = Dir::new();
    let _runs = perf(&dir, "");
    let top = |args: &[&str]| Run::start(&mut dir.invar(args)).wait();
    let mut rows = Vec::new();
    until("a sender that sends", || {
        let outcome = top(&["top", "--once", "--json"]);
        rows = json(&outcome.ok().stdout)["connections"].as_array().expect("an array").clone();
        rows.iter()
            .any(|row| row["role"] == "sender" && row["bytes_per_second"].as_f64() > Some(1e6))
    });
    let receiver = rows.iter().find(|row| row["role"] == "receiver").expect("a receiver");
    assert!(receiver["device"].as_str().is_some_and(|name| name.starts_with("soft")), "{receiver}");
    let outcome = top(&["top", "--once"]);
    let text = &outcome.ok().stdout;
    assert!(text.contains("sender") && text.contains("soft"), "{text}");
}

#[test]
fn ranks_in_shared_memory_show_their_operations_waits_and_stalls() {
    let dir = Dir::new();
    let file = dir.path().join("invar.prom");
    let runs = ranks(&dir, "4K", &format!("file:{}", file.display()));
    let of = |metric: &str, rank: usize| {
        let labels = format!("rank=\"{rank}\",nranks=\"2\"}}");
        let text = fs::read_to_string(&file).unwrap_or_default();
        sample(&text, &[metric, &pid(&runs[rank]), &labels])
    };
    for (rank, run) in runs.iter().enumerate() {
        until("operations", || of("invar_rank_operations_total{", rank) > Some(100.0));
        until("bytes", || of("invar_rank_bytes_total{", rank) > Some(100.0 * 4096.0));
        let sent = ["invar_sent_bytes_total{", &pid(run)];
        assert_eq!(sample(&fs::read_to_string(&file).unwrap(), &sent), None);
    }
    let top = |args: &[&str]| Run::start(&mut dir.invar(args)).wait().ok().stdout.clone();
    let shown = json(&top(&["top", "--once", "--json"]));
    let rows = shown["ranks"].as_array().expect("an array");
    let row = |rank: usize| rows.iter().find(|row| row["pid"] == runs[rank].0.id()).expect("a row");
    assert_eq!((&row(1)["rank"], &row(1)["nranks"]), (&1.into(), &2.into()));
    assert_eq!(row(0)["communicator"], row(1)["communicator"]);
    assert!(row(1)["operations_per_second"].as_f64() > Some(1.0), "{shown}");
    kill_process(Pid::from_child(&runs[1].0), Signal::STOP).unwrap();
    let waited = || of("invar_rank_wait_seconds_total{", 0).unwrap_or_default();
    let before = waited();
    until("a wait", || waited() > before + 1.0);
    until("a stall", || of("invar_rank_stalls_total{", 0) >= Some(1.0));
    let text = top(&["top", "--once"]);
    assert!(text.contains("WAIT %") && text.contains("all_reduce of 1024 F32, Sum"), "{text}");
}

#[test]
fn a_place_that_others_reach_is_refused_in_words() {
    let outcome = run_in(&[("INVAR_METRICS", "0.0.0.0:9400")], &["devices"]);
    outcome.ended(USAGE, "INVAR_METRICS=0.0.0.0:9400");
    outcome.ended(USAGE, "loopback");
}

#[test]
fn a_listener_of_metrics_keeps_strangers_off() {
    besiege("the listener of metrics", || {
        let dir = Dir::new();
        let addr = unused::address().to_string();
        let runs = perf(&dir, &addr);
        until("the listener", || scrape(&addr).is_some());
        let (secret, service, process) = (Secret::PUBLIC, Service::Perf, runs[0].0.id());
        let door = Door { addr: addr.parse().unwrap(), secret, service, process };
        let visit = move || {
            // A flood may take a scraper's place, and scrapers call again.
            until("an answer", || scrape(&addr).is_some_and(|text| text.ends_with("# EOF\n")));
            thread::sleep(Duration::from_millis(1));
            (dir, runs)
        };
        (door, visit)
    });
}
