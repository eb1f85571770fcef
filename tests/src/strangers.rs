//! The hostile kit: everything that a stranger can do at a TCP port that it reaches. Tests try every
//! listener of the product with all strangers. `cargo xtask tidy` has the table of listeners and their
//! tests.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use invar_core::auth::{Calling, HELLO_BYTES, Hello, NONCE_BYTES, PROOF_BYTES, Secret, Service};
use invar_core::conn::{Stream, StreamError};

use crate::random::Random;
use crate::wait::watch;

/// A peer gets in within this time, whoever else calls.
const IN_WITHIN: Duration = Duration::from_secs(1);
/// The number of attempts, of which the best counts, since the machine may be busy.
const ATTEMPTS: u32 = 3;
/// The most memory that a process may take on while strangers call.
const GROWTH_MAX: u64 = 32 << 20;
/// The longest time that a stranger waits for a listener that does not answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The number of connections of a stranger that opens several.
const CROWD: usize = 64;

/// A listener, and what its peers know of it.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// The listener's address.
    pub addr: SocketAddr,
    /// The listener's secret. A stranger uses it to record a proof, and never completes a proof with
    /// it.
    pub secret: Secret,
    /// The listener's service.
    pub service: Service,
    /// The process that has the listener.
    pub process: u32,
}

/// A way to call a listener without knowing the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// Connects and sends nothing.
    Silent,
    /// Connects and closes, many times.
    Scanner,
    /// Sends a hello, one byte at a time.
    Slow,
    /// Sends random bytes.
    Garbage,
    /// Replays the bytes that a peer has sent before.
    Replay,
    /// Sends another version, or asks for another service.
    WrongVersion,
    /// Opens more connections than a listener has places, and begins a hello on each.
    Greedy,
    /// Tries proofs.
    Guesser,
    /// Stops within a peer's bytes, once after each number of bytes.
    Truncated,
    /// Connects, sends as much as fits, and closes, without a pause.
    Flooder,
}

impl Stranger {
    /// All strangers.
    pub const ALL: [Stranger; 10] = [
        Stranger::Silent,
        Stranger::Scanner,
        Stranger::Slow,
        Stranger::Garbage,
        Stranger::Replay,
        Stranger::WrongVersion,
        Stranger::Greedy,
        Stranger::Guesser,
        Stranger::Truncated,
        Stranger::Flooder,
    ];

    /// Calls until the siege stops. Sets `there` once a peer that arrives has to get past this stranger.
    fn call(self, siege: &Siege, random: &mut Random) {
        let Siege { door, there, stop, .. } = siege;
        let hello = Hello::new(door.service, [7; NONCE_BYTES]).to_bytes();
        let stopped = || stop.load(Ordering::Acquire);
        let mut held: Vec<TcpStream> = Vec::new();
        match self {
            Stranger::Silent => held.extend((0..CROWD).filter_map(|_| siege.connect())),
            Stranger::Scanner => (0..4 * CROWD).for_each(|_| drop(siege.connect())),
            Stranger::Slow => {
                held.extend((0..CROWD).filter_map(|_| siege.connect()));
                for byte in &hello[..HELLO_BYTES - 1] {
                    held.iter_mut().for_each(|stream| say(stream, &[*byte]));
                    there.store(true, Ordering::Release);
                    if stopped() {
                        break;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Stranger::Garbage => held.extend((0..CROWD).filter_map(|_| {
                let bytes: Vec<u8> =
                    (0..1 + random.below(4096)).map(|_| random.next() as u8).collect();
                siege.say_first(&bytes)
            })),
            Stranger::Replay => {
                let recorded = recorded(siege);
                held.extend((0..CROWD).filter_map(|_| siege.say_first(&recorded)));
            }
            Stranger::WrongVersion => {
                let mut version = hello;
                version[8] ^= 0x40;
                let mut service = hello;
                service[10] ^= 0x40;
                let hellos = [version, service].into_iter().cycle().take(CROWD);
                held.extend(hellos.filter_map(|hello| siege.say_first(&hello)));
            }
            Stranger::Greedy => {
                held.extend((0..1200).filter_map(|_| siege.say_first(&hello[..9])));
            }
            Stranger::Guesser => held.extend((0..CROWD).filter_map(|_| {
                let proof: [u8; PROOF_BYTES] = std::array::from_fn(|_| random.next() as u8);
                siege.say_first(&[hello, proof].concat())
            })),
            Stranger::Truncated => {
                held.extend((0..HELLO_BYTES + PROOF_BYTES).filter_map(|len| {
                    let stream = siege.say_first(&[hello, [0; PROOF_BYTES]].concat()[..len])?;
                    // The call fails if the listener has hung up.
                    let _ = stream.shutdown(Shutdown::Write);
                    Some(stream)
                }));
            }
            Stranger::Flooder => {
                let bytes = vec![0x47; 1 << 16];
                for call in 0.. {
                    drop(siege.say_first(&bytes));
                    there.store(call > 32, Ordering::Release);
                    if stopped() {
                        break;
                    }
                }
            }
        }
        there.store(true, Ordering::Release);
        while !stopped() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Tries a listener with every stranger. `open` creates a listener and returns the visit of a peer. The
/// peer gets in and checks that everything works and no byte has changed. The visit's result is kept
/// until the listener's memory has been measured.
///
/// # Panics
/// Panics if a stranger keeps the peer out for more than a second, or makes the process take on memory. Panics if
/// a stranger cannot connect at all.
pub fn besiege<K, V: FnOnce() -> K>(what: &str, mut open: impl FnMut() -> (Door, V)) {
    const SEED: u64 = 0x5712_a49e;
    /// Only one siege runs at a time, since each measures the memory of the whole process.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for stranger in Stranger::ALL {
        let how = format!("{what}, {stranger:?}, seed {SEED:#x}");
        let mut best = Duration::MAX;
        for attempt in 0..ATTEMPTS {
            let (door, visit) = open();
            let before = resident_bytes(door.process);
            let [connected, there, stop] = [false; 3].map(AtomicBool::new);
            let siege = Siege { door, connected, there, stop };
            let mut random = Random::new(SEED + u64::from(attempt));
            let took = thread::scope(|scope| {
                // The stranger stops when the visit ends, even by a panic.
                let _stops = Stops(&siege.stop);
                scope.spawn(|| stranger.call(&siege, &mut random));
                watch(&format!("{how}: its calls"), || siege.there.load(Ordering::Acquire));
                assert!(siege.connected.load(Ordering::Acquire), "{how}: reaches nobody");
                let start = Instant::now();
                let kept = visit();
                let took = start.elapsed();
                let growth = resident_bytes(door.process).saturating_sub(before);
                assert!(growth < GROWTH_MAX, "{how}: {growth} bytes were taken on");
                drop(kept);
                took
            });
            best = best.min(took);
            if best < IN_WITHIN {
                break;
            }
        }
        assert!(best < IN_WITHIN, "{how}: a peer was kept waiting for {best:?}");
    }
}

/// A stranger before a listener.
struct Siege {
    door: Door,
    /// Whether a connection has come about.
    connected: AtomicBool,
    /// Whether a peer that arrives has to get past the stranger.
    there: AtomicBool,
    /// Whether the stranger has to stop.
    stop: AtomicBool,
}

impl Siege {
    /// Connects to the listener. Returns `None` if that fails, since the listener's queue may be full.
    fn connect(&self) -> Option<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.door.addr, TIMEOUT).ok()?;
        self.connected.store(true, Ordering::Release);
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    }

    /// Connects and sends as many of the bytes as the listener takes.
    fn say_first(&self, bytes: &[u8]) -> Option<TcpStream> {
        let mut stream = self.connect()?;
        say(&mut stream, bytes);
        Some(stream)
    }
}

/// Sets the flag when it is dropped.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Sends as many bytes as the listener takes. The listener should hang up, so errors are ignored.
fn say(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write(bytes);
}

/// A peer's hello and proof, which the listener has not seen.
fn recorded(siege: &Siege) -> Vec<u8> {
    let Some(stream) = siege.connect() else { return Vec::new() };
    let door = &siege.door;
    let mut calling = Calling::new(door.secret, door.service, [7; NONCE_BYTES]);
    let mut recorder = Recorder { stream, said: Vec::new() };
    let start = Instant::now();
    while recorder.said.len() < HELLO_BYTES + PROOF_BYTES && start.elapsed() < TIMEOUT {
        if calling.poll(&mut recorder).is_err() {
            break;
        }
        thread::yield_now();
    }
    recorder.said
}

/// Passes the hello on to the listener, and keeps the proof.
struct Recorder {
    stream: TcpStream,
    said: Vec<u8>,
}

impl Stream for Recorder {
    fn peer_addr(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Ok(true)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        if self.said.len() < HELLO_BYTES {
            say(&mut self.stream, bytes);
        }
        self.said.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        match self.stream.read(buf) {
            Ok(0) => Err(StreamError::Closed),
            Ok(n) => Ok(n),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(StreamError::Os(error.raw_os_error().unwrap_or(5))),
        }
    }
}

/// The resident memory of a process.
fn resident_bytes(process: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).expect("a process");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * rustix::param::page_size() as u64
}
