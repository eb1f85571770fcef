//! The command as a user runs it.

mod capture;
mod chaos;
mod coll;
mod devices;
mod doctor;
mod exports;
mod gone;
mod launched;
mod local;
mod logs;
mod metrics;
mod namespaces;
mod ops;
mod ports;
mod recorders;
mod refusals;
mod run;
mod settings;
mod strangers;
mod unread;
mod wrong_bytes;

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use invar_testkit::child::Killed;
use invar_testkit::shell;
use invar_testkit::wait::watch;

/// The exit status where arguments or variables cannot be.
const USAGE: Option<i32> = Some(2);
/// The exit status where a run failed.
const FAILED: Option<i32> = Some(3);

/// The outcome of a run.
struct Outcome {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    /// The one line on stderr.
    fn line(&self) -> &str {
        let line = self.stderr.trim_end();
        assert!(line.starts_with("invar: ") && !line.contains('\n'), "not one line: {line:?}");
        line
    }

    /// Checks for a status, and for one line on stderr that says this.
    #[track_caller]
    fn ended(&self, status: Option<i32>, says: &str) {
        assert_eq!(self.status, status, "{}", self.stderr);
        self.line();
        assert!(self.stderr.contains(says), "{}", self.stderr);
    }

    fn ok(&self) -> &Self {
        assert_eq!(self.status, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }
}

/// A run under way.
struct Run(Killed);

impl Run {
    fn start(command: &mut Command) -> Run {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run(Killed(command.spawn().expect("a process")))
    }

    fn wait(mut self) -> Outcome {
        let (stdout, stderr) = (reader(self.0.stdout.take()), reader(self.0.stderr.take()));
        let status = watch("the end of the run", || self.0.try_wait().expect("a process"));
        let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("text"));
        Outcome { status: status.code(), stdout, stderr }
    }

    /// The next line on stdout.
    fn line(&mut self) -> String {
        line_of(self.0.stdout.as_mut().expect("a pipe"))
    }
}

/// Reads a pipe to its end, if it is there. A process whose pipe is full would wait for a reader.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(|| pipe.map_or(Ok(String::new()), io::read_to_string).expect("text"))
}

fn line_of(pipe: impl Read) -> String {
    let mut line = String::new();
    // A byte at a time: what follows stays in the pipe.
    BufReader::with_capacity(1, pipe).read_line(&mut line).expect("text");
    line
}

/// `invar ARGS`, without the settings of whoever runs the tests.
fn invar(args: &[&str]) -> Command {
    bare(Command::new(env!("CARGO_BIN_EXE_invar")), args)
}

fn bare(mut command: Command, args: &[&str]) -> Command {
    shell::clean(&mut command).args(args);
    command
}

fn run(args: &[&str]) -> Outcome {
    Run::start(&mut invar(args)).wait()
}

/// Runs `invar ARGS` with these variables.
fn run_in(env: &[(&str, &str)], args: &[&str]) -> Outcome {
    Run::start(invar(args).envs(env.iter().copied())).wait()
}

/// A server, and where it listens.
fn server(command: &mut Command) -> (Run, String) {
    let mut server = Run::start(command);
    let line = server.line();
    let addr = line.strip_prefix("invar perf: listening at ").expect("the first line of a server");
    let addr = addr.split(';').next().expect("an address").to_owned();
    (server, addr)
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_run_may_print_more_than_a_pipe_holds() {
    let outcome = Run::start(Command::new("seq").arg("100000")).wait();
    assert!(outcome.ok().stdout.ends_with("\n100000\n"), "{} bytes", outcome.stdout.len());
}
