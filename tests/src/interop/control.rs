//! The connection by which two processes stay in step.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long one process waits for the other, which may start later and compute more slowly.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A bound that is longer than any line.
const LINE_BYTES_MAX: u64 = 1 << 16;

/// Sends lines to the other process and receives its lines.
pub struct Control {
    stream: BufReader<TcpStream>,
    has_connected: bool,
}

impl Control {
    /// Waits for the other process to connect.
    pub fn accept(listener: &TcpListener) -> io::Result<Control> {
        listener.set_nonblocking(true)?;
        let (stream, _) = retry(|| listener.accept())?;
        stream.set_nonblocking(false)?;
        Control::new(stream, false)
    }

    /// Connects to the other process at `addr`.
    pub fn connect(addr: SocketAddr) -> io::Result<Control> {
        Control::new(retry(|| TcpStream::connect(addr))?, true)
    }

    fn new(stream: TcpStream, has_connected: bool) -> io::Result<Control> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Control { stream: BufReader::new(stream), has_connected })
    }

    /// Whether this process has connected. Otherwise it has listened.
    pub fn has_connected(&self) -> bool {
        self.has_connected
    }

    /// Sends a line.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())
    }

    /// Receives the next line.
    pub fn recv(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::Error::new(ErrorKind::UnexpectedEof, "the other process is gone")),
        }
    }

    /// Sends a line and returns the line that the other process sends at this point.
    pub fn swap(&mut self, line: &str) -> io::Result<String> {
        self.send(line)?;
        self.recv()
    }
}

/// Repeats `attempt` until it succeeds, or until [`TIMEOUT`] has passed.
fn retry<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < TIMEOUT => thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}
