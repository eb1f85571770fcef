//! Runs one command in a guest, and possibly one on the host beside it.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use invar_testkit::child::Killed;

use super::image::Image;
use super::machine::{Machine, Start, Wiring};

const NAP: Duration = Duration::from_millis(20);

/// The commands to run and the directories that the guest sees.
pub(super) struct Session<'a> {
    pub(super) root: &'a Path,
    pub(super) target_dir: &'a Path,
    pub(super) command: &'a [OsString],
    pub(super) host: Option<&'a OsStr>,
}

impl Session<'_> {
    /// Runs the commands. Returns the guest's exit status, or the host command's where that is 0.
    /// Returns `None` if the time ran out.
    pub(super) fn run(&self, image: &Image, limit: Duration) -> Result<Option<u8>> {
        let end = Instant::now() + limit;
        let host_up = self.root.join("xtask/vm/host-up");
        let wiring = Wiring {
            shares: [self.root, self.target_dir],
            host_up: self.host.is_some().then_some(&*host_up),
        };
        let mut machine = Machine::start(image, Start::Resume, &wiring)?;
        machine.resume(image)?;
        let copies = [
            copy(machine.output.try_clone()?, io::stdout()),
            copy(machine.errors.try_clone()?, io::stderr()),
        ];
        machine.control.write_all(&self.request()?)?;
        let mut answers = Answers { stream: BufReader::new(machine.control.try_clone()?), end };
        let Some(started) = answers.next()? else { return Ok(None) };
        if started != "started" {
            bail!(machine.failure("the guest cannot start the command"));
        }
        let mut host = self.host.map(|host| Host::start(host, &machine)).transpose()?;
        let Some(status) = answers.next()? else { return Ok(None) };
        let Ok(status) = status.parse() else {
            bail!(machine.failure("the guest died while the command ran"));
        };
        machine.wait()?;
        for copy in copies {
            // The copy has printed all output by now. A write may have failed because nobody reads any
            // more.
            let _ = copy.join();
        }
        match host.as_mut().filter(|_| status == 0) {
            None => Ok(Some(status)),
            Some(host) => host.wait(end),
        }
    }

    /// The request that `xtask/vm/init` reads. A zero byte ends each word. The words are the time, the
    /// two shares, the start directory, the number of the command's words, and those words.
    fn request(&self) -> Result<Vec<u8>> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let here = std::env::current_dir()?;
        let here = if here.starts_with(self.root) { &here } else { self.root };
        let mut request = Vec::new();
        let mut add = |word: &OsStr| {
            request.extend(word.as_bytes());
            request.push(0);
        };
        add(now.to_string().as_ref());
        add(self.root.as_ref());
        add(self.target_dir.as_ref());
        add(here.as_ref());
        add(self.command.len().to_string().as_ref());
        self.command.iter().for_each(|word| add(word));
        Ok(request)
    }
}

/// Reads the lines that the guest sends over its control channel.
struct Answers {
    stream: BufReader<UnixStream>,
    end: Instant,
}

impl Answers {
    /// The next line. The line is empty if the guest is gone. Returns `None` if the time ran out.
    fn next(&mut self) -> Result<Option<String>> {
        let left = self.end.saturating_duration_since(Instant::now());
        // A timeout of zero would be refused, so wait for a moment at least.
        self.stream.get_ref().set_read_timeout(Some(left.max(NAP)))?;
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(_) => Ok(Some(line.trim_end().to_owned())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error).context("the guest's control channel"),
        }
    }
}

/// The command on the host. Dropping this value kills the command and all processes that it has
/// started.
struct Host(Killed);

impl Host {
    fn start(line: &OsStr, machine: &Machine) -> Result<Host> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter"]);
        command.arg(format!("--net={}", machine.network_namespace().display()));
        // When the first process of a PID namespace ends, the kernel kills all others in it.
        command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg(line).stdin(Stdio::null());
        Ok(Host(Killed(command.spawn().context("cannot start the host's command")?)))
    }

    fn wait(&mut self, end: Instant) -> Result<Option<u8>> {
        while Instant::now() < end {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(code(status)));
            }
            thread::sleep(NAP);
        }
        Ok(None)
    }
}

/// The exit status as a shell reports it: 128 plus the signal for a killed process.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Copies everything that arrives on `from` to `to`, in a thread of its own.
fn copy(mut from: UnixStream, mut to: impl Write + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let copied = io::copy(&mut from, &mut to).and_then(|_| to.flush());
        if copied.is_err() {
            // Nobody reads the output any more. Drain the channel, so that the guest does not wait.
            let _ = io::copy(&mut from, &mut io::sink());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_command_reach_the_guest_as_they_are() {
        let command = ["printf".into(), "%s\n".into(), "".into(), "two words".into()];
        let (root, target_dir) = (Path::new("/nowhere"), Path::new("/target"));
        let session = Session { root, target_dir, command: &command, host: None };
        let request = session.request().unwrap();
        let words: Vec<&[u8]> = request.split(|byte| *byte == 0).skip(1).collect();
        let expected =
            ["/nowhere", "/target", "/nowhere", "4", "printf", "%s\n", "", "two words", ""];
        assert_eq!(words, expected.map(str::as_bytes));
    }

    #[test]
    fn a_signal_that_ended_the_host_command_is_told_as_a_shell_tells_it() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}
