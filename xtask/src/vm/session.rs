//! One command in a guest, and perhaps one on the host beside it.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use super::image::Image;
use super::machine::{Machine, Start, Wiring};

const NAP: Duration = Duration::from_millis(20);

/// What is to be run, and with what in sight.
pub(super) struct Session<'a> {
    pub(super) root: &'a Path,
    pub(super) target_dir: &'a Path,
    pub(super) command: &'a [OsString],
    pub(super) host: Option<&'a OsStr>,
}

impl Session<'_> {
    /// The guest's exit status, or the host's where that is 0; `None` where the time ran out.
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
            // It has printed what it had to, whether all of that found a reader or not.
            let _ = copy.join();
        }
        match host.as_mut().filter(|_| status == 0) {
            None => Ok(Some(status)),
            Some(host) => host.wait(end),
        }
    }

    /// What `xtask/vm/init` reads, each word ended by a zero byte: the time, the two shares, the
    /// directory to start in, how many words the command has, and those.
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

/// Lines of the guest.
struct Answers {
    stream: BufReader<UnixStream>,
    end: Instant,
}

impl Answers {
    /// The next line, empty if the guest is gone; `None` when it is too late.
    fn next(&mut self) -> Result<Option<String>> {
        let left = self.end.saturating_duration_since(Instant::now());
        // No time at all would stand for all the time of the world.
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

/// The command on the host; dropping this kills it and all that it has started.
struct Host(Child);

impl Host {
    fn start(line: &OsStr, machine: &Machine) -> Result<Host> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter"]);
        command.arg(format!("--net={}", machine.network_namespace().display()));
        // The first process of a process namespace takes all others with it.
        command.args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg(line).stdin(Stdio::null());
        Ok(Host(command.spawn().context("cannot start the host's command")?))
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

impl Drop for Host {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As a shell gives it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Passes on what comes, for as long as there is something.
fn copy(mut from: UnixStream, mut to: impl Write + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let copied = io::copy(&mut from, &mut to).and_then(|_| to.flush());
        if copied.is_err() {
            // Nobody reads any more. The guest shall not wait for that.
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
