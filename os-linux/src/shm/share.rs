//! Passes shared memory to other processes of this host.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::{SharedMemory, unfit};
use crate::abort::Abort;
use crate::random::random;
use crate::unix::{FdStream, listen, wait};

const TOKEN_BYTES: usize = 16;
/// Time within which a caller must send the token.
const SHOW_WITHIN: Duration = Duration::from_secs(5);
/// Interval between two checks of the abort flag.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Offers memory to every process that knows the address and the token.
#[derive(Debug)]
pub struct Offer {
    listener: UnixListener,
    name: String,
    token: [u8; TOKEN_BYTES],
}

impl Offer {
    /// Starts to listen.
    pub fn new() -> io::Result<Self> {
        let (listener, name) = listen("shm")?;
        Ok(Offer { listener, name, token: random()? })
    }

    /// Returns the address with the token. The program sends it to the other processes and to nobody
    /// else.
    pub fn address(&self) -> Vec<u8> {
        [&self.token, self.name.as_bytes()].concat()
    }

    /// Passes the memory to `count` processes. Waits for them until `within` is over or `abort` is set.
    pub fn serve(
        &self,
        memory: &SharedMemory,
        count: usize,
        within: Duration,
        abort: &Abort,
    ) -> io::Result<()> {
        let deadline = Instant::now() + within;
        let mut given = 0;
        while given < count {
            // Anybody on this host may call, and without end.
            let left = left_until(deadline, abort).map_err(|error| {
                let what = format!("{given} of {count} came for it within {within:?}");
                io::Error::new(error.kind(), what)
            })?;
            match self.listener.accept() {
                // A failure with one caller does not concern the others.
                Ok((stream, _)) => match FdStream::new(stream).and_then(|peer| {
                    self.give(peer, memory, deadline.min(Instant::now() + SHOW_WITHIN), abort)
                }) {
                    Ok(()) => given += 1,
                    Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error),
                    Err(_) => {}
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(&mut [PollFd::new(&self.listener, PollFlags::IN)], left)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn give(
        &self,
        mut peer: FdStream,
        memory: &SharedMemory,
        deadline: Instant,
        abort: &Abort,
    ) -> io::Result<()> {
        let (shown, _) = recv_exact::<TOKEN_BYTES>(&mut peer, deadline, abort)?;
        if shown != self.token {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it does not know the token"));
        }
        peer.send(vec![1], Some(memory.to_fd()?))?;
        while !peer.is_flushed() {
            wait(&mut [PollFd::new(&peer, PollFlags::OUT)], left_until(deadline, abort)?)?;
            peer.flush()?;
        }
        Ok(())
    }
}

impl SharedMemory {
    /// Fetches the memory of `len` bytes that another process offers at `address`. Waits until `within`
    /// is over or `abort` is set.
    ///
    /// The call fails with `InvalidData` if the memory has another length.
    pub fn fetch(address: &[u8], len: usize, within: Duration, abort: &Abort) -> io::Result<Self> {
        let deadline = Instant::now() + within;
        let Some((token, name)) = address.split_first_chunk::<TOKEN_BYTES>() else {
            return Err(io::Error::new(ErrorKind::InvalidData, "no address of shared memory"));
        };
        let name = str::from_utf8(name).map_err(io::Error::other)?;
        let mut peer = FdStream::connect(name, within)?;
        peer.send(token.to_vec(), None)?;
        let (_, fd) = recv_exact::<1>(&mut peer, deadline, abort)?;
        let fd = fd.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no descriptor came"))?;
        let memory = SharedMemory::from_fd(fd)?;
        match memory.len() == len {
            true => Ok(memory),
            false => Err(unfit(&format!("it has {} bytes, not {len}", memory.len()))),
        }
    }
}

/// Receives `N` bytes and the descriptor that came with them.
fn recv_exact<const N: usize>(
    peer: &mut FdStream,
    deadline: Instant,
    abort: &Abort,
) -> io::Result<([u8; N], Option<std::os::fd::OwnedFd>)> {
    let (mut bytes, mut len, mut fd) = ([0; N], 0, None);
    while len < N {
        match peer.recv(&mut bytes[len..])? {
            Some((n, with)) => {
                len += n;
                fd = with.or(fd);
            }
            None => {
                peer.flush()?;
                let interest = peer.interest(true);
                wait(&mut [PollFd::new(&*peer, interest)], left_until(deadline, abort)?)?;
            }
        }
    }
    Ok((bytes, fd))
}

/// Returns how long to wait before the next check of the abort flag.
fn left_until(deadline: Instant, abort: &Abort) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() || abort.is_set() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left.min(LOOK_EVERY))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn those_who_know_the_address_get_the_memory_and_others_do_not() {
        let offer = Offer::new().unwrap();
        let memory = SharedMemory::create("invar-test", 4096).unwrap();
        let (mut forged, abort) = (offer.address(), Abort::default());
        forged[3] ^= 1;
        thread::scope(|scope| {
            let server = scope.spawn(|| offer.serve(&memory, 2, TIMEOUT, &Abort::default()));
            assert!(SharedMemory::fetch(&forged, 4096, TIMEOUT, &abort).is_err());
            for byte in [5, 6] {
                let theirs = SharedMemory::fetch(&offer.address(), 4096, TIMEOUT, &abort).unwrap();
                // SAFETY: Both mappings exist, and nothing else uses them.
                unsafe {
                    theirs.start().write(byte);
                    assert_eq!(memory.start().read(), byte);
                }
            }
            server.join().unwrap().unwrap();
        });
    }

    #[test]
    fn memory_of_another_length_than_the_fetcher_needs_is_refused() {
        let (offer, abort) = (Offer::new().unwrap(), Abort::default());
        let memory = SharedMemory::create("invar-test", 4096).unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| offer.serve(&memory, 1, TIMEOUT, &Abort::default()));
            let error = SharedMemory::fetch(&offer.address(), 8192, TIMEOUT, &abort).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!(error.to_string(), "not to be shared: it has 4096 bytes, not 8192");
            server.join().unwrap().unwrap();
        });
    }

    #[test]
    fn nobody_is_waited_for_for_ever() {
        let offer = Offer::new().unwrap();
        let memory = SharedMemory::create("invar-test", 1).unwrap();
        let (soon, abort) = (Duration::from_millis(20), Abort::default());
        let error = offer.serve(&memory, 1, soon, &abort).unwrap_err();
        assert_eq!(error.to_string(), "0 of 1 came for it within 20ms");
        // This process listens and stays silent.
        let error = SharedMemory::fetch(&offer.address(), 1, soon, &abort).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(SharedMemory::fetch(b"short", 1, TIMEOUT, &abort).is_err());
        abort.set();
        assert!(offer.serve(&memory, 1, TIMEOUT, &abort).is_err());
    }
}
