//! PMI-1, the protocol between a process and MPICH's launcher (`hydra`), over a socket that the process
//! inherits.
//!
//! A request is a line `cmd=NAME key=value …`, and so is its answer. Slurm answers the same requests for
//! `srun --mpi=pmi2`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// More than the longest answer: launchers limit a value to 1024 bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// The socket to the launcher.
#[derive(Debug)]
pub struct Client {
    socket: BufReader<UnixStream>,
    /// The name of the job's set of keys and values.
    kvs: String,
}

impl Client {
    /// Greets the launcher at the socket with this descriptor, usually from `PMI_FD`. Each answer must come
    /// `within` that time.
    ///
    /// # Errors
    /// The number is no open socket, or the launcher refuses.
    pub fn open(descriptor: RawFd, within: Duration) -> io::Result<Client> {
        // SAFETY: `fcntl` accepts any number, and duplicates it only if it is an open descriptor. Nobody
        // else has the duplicate.
        let socket = unsafe {
            match libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) {
                -1 => return Err(io::Error::last_os_error()),
                copy => UnixStream::from_raw_fd(copy),
            }
        };
        // Fails if the descriptor is no socket.
        socket.set_read_timeout(Some(within))?;
        socket.set_write_timeout(Some(within))?;
        let mut client = Client { socket: BufReader::new(socket), kvs: String::new() };
        client.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let answer = client.ask("cmd=get_my_kvsname", "my_kvsname")?;
        client.kvs = value(&answer, "kvsname")?.to_owned();
        Ok(client)
    }

    /// Sets a key for all ranks to see. Neither key nor value has a space.
    ///
    /// # Errors
    /// The launcher refuses, or has gone.
    pub fn put(&mut self, key: &str, text: &str) -> io::Result<()> {
        let request = format!("cmd=put kvsname={} key={key} value={text}", self.kvs);
        self.ask(&request, "put_result").map(drop)
    }

    /// Returns the value of a key that a rank has set before the barrier.
    ///
    /// # Errors
    /// No rank has set the key, or the launcher has gone.
    pub fn get(&mut self, key: &str) -> io::Result<String> {
        let request = format!("cmd=get kvsname={} key={key}", self.kvs);
        let answer = self.ask(&request, "get_result")?;
        value(&answer, "value").map(str::to_owned)
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// A rank does not come in time, or the launcher has gone.
    pub fn barrier(&mut self) -> io::Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    /// Says goodbye. Without a goodbye the launcher takes the end of the process for a failure.
    ///
    /// # Errors
    /// The launcher has gone.
    pub fn finalize(mut self) -> io::Result<()> {
        self.ask("cmd=finalize", "finalize_ack").map(drop)
    }

    /// Sends a request, and returns the answer, which must be of the kind `expected`.
    fn ask(&mut self, request: &str, expected: &str) -> io::Result<String> {
        let explain = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the launcher does not answer `{request}`: are all ranks there?"),
            ),
            _ => error,
        };
        self.socket.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(explain)?;
        let mut answer = String::new();
        Read::take(&mut self.socket, LINE_BYTES_MAX).read_line(&mut answer).map_err(explain)?;
        let answer = answer.trim_end().to_owned();
        let has_failed = pairs(&answer).any(|(key, value)| key == "rc" && value != "0");
        if has_failed || value(&answer, "cmd")? != expected {
            return Err(io::Error::other(format!(
                "the launcher answers `{request}` by `{answer}`"
            )));
        }
        Ok(answer)
    }
}

fn pairs(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split(' ').filter_map(|pair| pair.split_once('='))
}

fn value<'a>(line: &'a str, key: &str) -> io::Result<&'a str> {
    let found = pairs(line).find(|(other, _)| *other == key);
    let missing = || io::Error::other(format!("the launcher's answer `{line}` has no {key}"));
    found.map(|(_, value)| value).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;

    use super::*;

    /// A launcher that expects these requests and gives these answers.
    fn launcher(script: &'static [(&str, &str)]) -> (UnixStream, thread::JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serve = move || {
            let mut socket = BufReader::new(theirs);
            for (request, answer) in script {
                let mut line = String::new();
                socket.read_line(&mut line).unwrap();
                assert_eq!(line.trim_end(), *request);
                socket.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        };
        (ours, thread::spawn(serve))
    }

    const GREETING: [(&str, &str); 2] = [
        (
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        ),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_7_0\n"),
    ];

    #[test]
    fn a_value_goes_from_one_rank_to_all() {
        const SCRIPT: [(&str, &str); 6] = [
            GREETING[0],
            GREETING[1],
            ("cmd=put kvsname=kvs_7_0 key=where value=0a", "cmd=put_result rc=0 msg=success\n"),
            ("cmd=barrier_in", "cmd=barrier_out\n"),
            ("cmd=get kvsname=kvs_7_0 key=where", "cmd=get_result rc=0 msg=success value=0a\n"),
            ("cmd=finalize", "cmd=finalize_ack\n"),
        ];
        let (socket, server) = launcher(&SCRIPT);
        let mut client = Client::open(socket.as_raw_fd(), Duration::from_secs(60)).unwrap();
        client.put("where", "0a").unwrap();
        client.barrier().unwrap();
        assert_eq!(client.get("where").unwrap(), "0a");
        client.finalize().unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_refusal_is_told_with_the_request() {
        const SCRIPT: [(&str, &str); 1] = [(GREETING[0].0, "cmd=response_to_init rc=-1\n")];
        let (socket, server) = launcher(&SCRIPT);
        let error = Client::open(socket.as_raw_fd(), Duration::from_secs(60)).err().unwrap();
        server.join().unwrap();
        assert!(error.to_string().contains("`cmd=response_to_init rc=-1`"), "{error}");
    }

    #[test]
    fn a_launcher_that_has_gone_and_a_number_that_is_no_socket_are_errors() {
        let (socket, server) = launcher(&[]);
        server.join().unwrap();
        assert!(Client::open(socket.as_raw_fd(), Duration::from_secs(60)).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Client::open(file.as_raw_fd(), Duration::from_secs(60)).is_err());
        assert!(Client::open(-1, Duration::from_secs(60)).is_err());
    }
}
