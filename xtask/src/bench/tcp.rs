//! Measures a bare TCP stream: the kernel's own throughput without a protocol above it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::processors::Processors;

/// How an end waits for its peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The end sleeps in the kernel.
    Block,
    /// The end retries its call.
    Poll,
}

/// The longest time that an end waits for its peer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Prints the system's default congestion control, because TCP's figures depend on it.
pub(super) fn print_congestion_control() {
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let name = name.unwrap_or_else(|error| format!("unknown ({error})"));
    println!("the system's TCP congestion control is {}", name.trim_end());
}

/// The two ends of a stream: first the sender's, then the receiver's.
pub(super) type Stream = (TcpStream, TcpStream);

pub(super) fn over_loopback() -> Result<Stream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    Ok((sender, listener.accept()?.0))
}

/// Sends `count` messages of `size` bytes from one thread to another and returns the seconds they took.
/// Both ends cycle through `window` buffers, and `window` messages go ahead as warm-up.
pub(super) fn seconds(
    (sender, receiver): Stream,
    size: usize,
    count: usize,
    window: usize,
    wait: Wait,
    processors: Processors,
) -> Result<f64> {
    let receive = || receive(End::new(receiver, wait)?, size, count, window);
    let send = || send(End::new(sender, wait)?, size, count, window);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| processors.call(0, receive));
        let time = processors.call(1, send);
        let received = receiver.join();
        ensure!(received.is_ok(), "the receiver panicked");
        time
    })
}

fn receive(mut end: End, size: usize, count: usize, window: usize) -> Result<()> {
    let mut buffers = buffers(size, window);
    for count in [window, count] {
        for i in 0..count {
            end.read(&mut buffers[i % window])?;
        }
        end.write(&[1])?;
    }
    Ok(())
}

fn send(mut end: End, size: usize, count: usize, window: usize) -> Result<f64> {
    let buffers = buffers(size, window);
    let mut start = Instant::now();
    for count in [window, count] {
        start = Instant::now();
        for i in 0..count {
            end.write(&buffers[i % window])?;
        }
        // The receiver answers with one byte after it has read the last message.
        end.read(&mut [0])?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Fills the buffers, so that their pages exist before the clock starts.
fn buffers(size: usize, window: usize) -> Vec<Vec<u8>> {
    vec![vec![0x5a; size]; window]
}

struct End {
    stream: TcpStream,
}

impl End {
    fn new(stream: TcpStream, wait: Wait) -> Result<End> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(wait == Wait::Poll)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(End { stream })
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = retry(|| self.stream.read(bytes)).context("cannot read")?;
            ensure!(n > 0, "the peer closed the stream");
            bytes = &mut bytes[n..];
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            bytes = &bytes[retry(|| self.stream.write(bytes)).context("cannot write")?..];
        }
        Ok(())
    }
}

/// Repeats `call` until it has a result other than `WouldBlock`, or until [`TIMEOUT`] has passed.
fn retry(mut call: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<usize> {
    let mut deadline = None;
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // A blocking socket has waited for that time already. A polled socket starts the clock
                // here.
                if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + TIMEOUT) {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_ends_when_every_byte_has_arrived() {
        for wait in [Wait::Block, Wait::Poll] {
            for processors in [Processors::ANY, Processors::two()] {
                let stream = over_loopback().unwrap();
                assert!(seconds(stream, 10_000, 20, 3, wait, processors).unwrap() > 0.0);
            }
        }
    }

    #[test]
    fn a_peer_that_leaves_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        assert!(End::new(stream, Wait::Poll).unwrap().read(&mut [0]).is_err());
    }
}
