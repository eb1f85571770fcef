//! A rank's connection with the hub.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use invar_core::auth::{AuthError, Secret};
use invar_core::rendezvous::{
    self, Header, JoinError, Kind, NOBODY, SEALED_BYTES_MAX, UniqueId, join,
};
use rustix::event::PollFd;

use super::connection::{Connection, Lost};
use super::reach::{Unreached, authenticate, connect};
use super::{TICK, deadline, this_member};
use crate::proxy::Abort;
use crate::unix::wait;

/// The hub, which knows who is missing, has the word for so long.
const VERDICT: Duration = Duration::from_secs(2);
/// A longer blob goes in several messages.
const PIECE_BYTES: usize = SEALED_BYTES_MAX;
/// Bytes of blobs that nobody has asked for, their lengths with them.
const UNASKED_BYTES_MAX: usize = 256 << 20;
/// Bytes of a blob, of which all must fit in there.
const BLOB_BYTES_MAX: usize = UNASKED_BYTES_MAX - size_of::<u32>();
/// The most time for the last message of a rank that fails or leaves.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A rank among the others: blobs of bytes from each to each (`bootstrapSend`, `bootstrapRecv`,
/// `bootstrapAllGather`), and word of who has failed. Dropped, it tells the others that this rank
/// is done.
#[derive(Debug)]
pub struct Bootstrap {
    rank: u32,
    nranks: u32,
    local_ip: IpAddr,
    key: Secret,
    sender: Mutex<Connection>,
    /// Whether this rank has said that it is done.
    told: AtomicBool,
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
}

/// Why a communicator can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{text}", Rank(*.rank))]
pub struct Failure {
    /// Whose fault it is; `None` where that is no rank's.
    pub rank: Option<u32>,
    /// The reason, in words.
    pub text: String,
}

struct Rank(Option<u32>);

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |rank| write!(f, "rank {rank}: "))
    }
}

/// Why a rank is not in, or does not get what it asks for.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The rank could not join.
    #[error("rank {rank} joining at {addr}: {text}")]
    Join {
        /// Who.
        rank: u32,
        /// Where.
        addr: SocketAddr,
        /// Why.
        text: String,
    },
    /// Rank and hub could not prove themselves to each other.
    #[error("the rendezvous at {addr}: {error}")]
    Auth {
        /// Where.
        addr: SocketAddr,
        /// Why.
        error: AuthError,
    },
    /// A rank has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// This host.
    #[error("a rendezvous: {0}")]
    Io(#[from] io::Error),
    /// Nothing came.
    #[error("rank {from} said nothing for {within:?}")]
    TimedOut {
        /// The rank that said nothing.
        from: u32,
        /// How long it was waited for.
        within: Duration,
    },
}

/// The state that the watching thread shares with the rank.
#[derive(Debug)]
struct Shared {
    blobs: Mutex<Blobs>,
    news: Condvar,
    /// The rank whose process has the hub.
    host: Option<u32>,
    /// Set once there is a failure.
    failed: Abort,
    failure: OnceLock<Failure>,
    /// Which ranks are done.
    left: Box<[AtomicBool]>,
    /// Whether the hub is gone, and with good reason: the rank that has it was done.
    alone: AtomicBool,
    closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Blobs {
    /// By who sent them and their tag: bytes of one blob after the other, each behind its length.
    waiting: HashMap<(u32, u32), VecDeque<u8>>,
    bytes: usize,
}

impl Bootstrap {
    /// Joins as `rank` of `nranks`, and waits until all are there, `within` at most, and two seconds
    /// for the hub to say who is not. A hub that
    /// does not listen yet may come meanwhile.
    pub fn join(
        id: &UniqueId,
        (rank, nranks): (u32, u32),
        within: Duration,
    ) -> Result<Self, BootstrapError> {
        let addr = id.addr();
        let failed = |text: String| BootstrapError::Join { rank, addr, text };
        let deadline = deadline(within);
        let stream = connect(addr, deadline).map_err(|error| match error {
            Unreached::Nobody => failed(format!(
                "nobody listens there any more, or yet, within {within:?}: either all ranks have \
                 joined already, or rank 0 has given up or not started"
            )),
            Unreached::Lost(lost) => failed(lost.to_string()),
        })?;
        let local_ip = stream.local_addr()?.ip();
        let mut connection = authenticate(stream, id, deadline)?.ok_or_else(|| {
            failed(format!("the rendezvous did not prove itself within {within:?}"))
        })?;
        let join = join(rank, nranks, this_member());
        connection.say(&join).map_err(|error| failed(error.to_string()))?;
        let mut joined = false;
        let (host, communicator) = loop {
            match connection.recv().map_err(|error| failed(error.to_string()))? {
                Some((header, body)) if joined && header.kind == Kind::Started => {
                    let id = body.try_into();
                    break (header.tag, id.map_err(|_| failed(JoinError::NoHub.to_string()))?);
                }
                Some((header, body)) if joined && header.kind == Kind::Failed => {
                    return Err(failure(header, &body).into());
                }
                Some((header, body)) => {
                    rendezvous::joined(header, &body).map_err(|error| failed(error.to_string()))?;
                    joined = true;
                }
                None if Instant::now() >= if joined { deadline + VERDICT } else { deadline } => {
                    let what = if joined { "the other ranks" } else { "an answer" };
                    return Err(failed(format!("{what} did not come within {within:?}")));
                }
                None => {
                    wait(&mut [PollFd::new(&connection, connection.interest(true))], TICK)?;
                    connection.flush().map_err(|error| failed(error.to_string()))?;
                }
            }
        };
        let shared = Arc::new(Shared {
            blobs: Mutex::default(),
            news: Condvar::new(),
            host: Some(host).filter(|host| *host != NOBODY),
            failed: Abort::default(),
            failure: OnceLock::new(),
            left: (0..nranks).map(|_| AtomicBool::new(false)).collect(),
            alone: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        let watch = thread::Builder::new().name(format!("invar-watch {rank}")).spawn({
            let (shared, receiver) = (shared.clone(), connection.receiver()?);
            move || shared.watch(receiver)
        })?;
        let sender = Mutex::new(connection);
        let (told, key) = (AtomicBool::new(false), id.key(&communicator));
        Ok(Bootstrap { rank, nranks, local_ip, key, sender, told, shared, watch: Some(watch) })
    }

    /// The key that all ranks of this communicator share, and nobody else.
    pub fn key(&self) -> &Secret {
        &self.key
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// This host's address towards the hub; IPv4 as such.
    pub fn local_ip(&self) -> IpAddr {
        self.local_ip.to_canonical()
    }

    /// Sends a blob of up to 256 MiB to a rank, and waits until the kernel has all of it. Those of one
    /// tag come in order; tags are for the callers to agree on.
    pub fn send(&self, to: u32, tag: u32, blob: &[u8]) -> Result<(), BootstrapError> {
        if blob.len() > BLOB_BYTES_MAX {
            let what = format!("a blob of {} bytes: at most {BLOB_BYTES_MAX} can be", blob.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let bytes = [&(blob.len() as u32).to_le_bytes(), blob].concat();
        let mut sender = self.sender();
        for piece in bytes.chunks(PIECE_BYTES) {
            self.check()?;
            let header = Header { to, tag, ..Header::new(Kind::Blob, piece.len()) };
            let sent = sender
                .send(header, piece)
                .and_then(|()| sender.drain(|| !self.shared.failed.is_set()));
            sent.map_err(|error| self.lost(&error))?;
        }
        Ok(self.check()?)
    }

    /// The next blob of a rank with a tag. Waits for it, `within` at most.
    ///
    /// # Errors
    /// None that long, or a rank that has failed; or this one has left.
    pub fn recv(&self, from: u32, tag: u32, within: Duration) -> Result<Vec<u8>, BootstrapError> {
        let deadline = deadline(within);
        let mut blobs = self.shared.blobs();
        loop {
            if let Some(blob) = self.look(&mut blobs, from, tag)? {
                return Ok(blob);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BootstrapError::TimedOut { from, within });
            }
            let waited = self.shared.news.wait_timeout(blobs, left.min(TICK));
            blobs = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the next blob of a rank with a tag, if it has come.
    ///
    /// # Errors
    /// The blob cannot come any more: a rank has failed, or this one has left.
    pub fn try_recv(&self, from: u32, tag: u32) -> Result<Option<Vec<u8>>, BootstrapError> {
        Ok(self.look(&mut self.shared.blobs(), from, tag)?)
    }

    fn look(&self, blobs: &mut Blobs, from: u32, tag: u32) -> Result<Option<Vec<u8>>, Failure> {
        if let Some(blob) = blobs.take((from, tag)) {
            return Ok(Some(blob));
        }
        self.check()?;
        if self.is_alone() {
            return Err(self.lost(&Lost::Closed));
        }
        // What it sent before is there: who takes that in needs the blobs that are locked here.
        if self.has_left(from) {
            let text = "it has left the communicator, and is waited for".to_owned();
            return Err(Failure { rank: Some(from), text });
        }
        Ok(None)
    }

    /// Every rank's blob, by rank, this one's with them.
    pub fn all_gather(
        &self,
        tag: u32,
        blob: &[u8],
        within: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.send(NOBODY, tag, blob)?;
        let of = |from| match from == self.rank {
            true => Ok(blob.to_vec()),
            false => self.recv(from, tag, within),
        };
        (0..self.nranks).map(of).collect()
    }

    /// Tells all ranks that this one can't go on. The first failure of all stays; whether it is this.
    pub fn fail(&self, text: &str) -> bool {
        let failure = Failure { rank: Some(self.rank), text: text.to_owned() };
        let first = self.shared.fail(failure);
        if first {
            let mut end = text.len().min(PIECE_BYTES);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            self.say_last(Kind::Failed, &text.as_bytes()[..end]);
        }
        first
    }

    /// A flag that is set with the first failure.
    pub fn abort(&self) -> Abort {
        self.shared.failed.clone()
    }

    /// Tells the others that this rank is done.
    pub fn leave(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.say_last(Kind::Left, &[]);
        }
    }

    /// Whether a rank has failed; costs next to nothing while none has.
    #[inline]
    pub fn check(&self) -> Result<(), Failure> {
        match self.shared.failed.is_set() {
            false => Ok(()),
            true => Err(self.shared.failure.get().cloned().expect("it is set before")),
        }
    }

    /// Whether a rank is done: what it sent before may still be under way.
    pub fn has_left(&self, rank: u32) -> bool {
        self.shared.has_left(rank)
    }

    /// Whether the hub is gone, without a failure: the rank that had it was done. What others do
    /// from now on is not heard of.
    pub fn is_alone(&self) -> bool {
        self.shared.alone.load(Ordering::Acquire)
    }

    /// Says why this rank can't go on, or that it is done.
    fn say_last(&self, kind: Kind, body: &[u8]) {
        let (mut sender, start) = (self.sender(), Instant::now());
        // Where the hub is gone everybody knows, or nobody needs to be told.
        let _ = sender
            .send(Header::new(kind, body.len()), body)
            .and_then(|()| sender.drain(|| start.elapsed() < LAST_WORDS));
    }

    fn sender(&self) -> MutexGuard<'_, Connection> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self, error: &Lost) -> Failure {
        self.shared.lost(error);
        self.shared.failure.get().cloned().expect("there is one now")
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        self.leave();
        self.shared.closing.store(true, Ordering::Release);
        self.sender.get_mut().unwrap_or_else(PoisonError::into_inner).shutdown();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

impl Shared {
    fn blobs(&self) -> MutexGuard<'_, Blobs> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first one stays. Whether this is it.
    fn fail(&self, failure: Failure) -> bool {
        let first = self.failure.set(failure).is_ok();
        self.failed.set();
        self.news.notify_all();
        first
    }

    /// Takes in what the hub says, until there is no more.
    fn watch(&self, mut connection: Connection) {
        let lost = loop {
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            match connection.recv() {
                Ok(Some((header, body))) => self.heard(header, &body),
                Ok(None) => {
                    let slept =
                        wait(&mut [PollFd::new(&connection, connection.interest(true))], TICK);
                    if let Err(error) = slept {
                        break Lost::Os(error);
                    }
                }
                Err(lost) => break lost,
            }
        };
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        if self.host_has_left() {
            self.alone.store(true, Ordering::Release);
            self.news.notify_all();
        } else {
            self.lost(&lost);
        }
    }

    /// The hub is gone, and with it the rank that has it.
    fn lost(&self, lost: &Lost) {
        let text = match self.host {
            Some(_) if self.host_has_left() => {
                "it had the rendezvous, which others need, and has left".to_owned()
            }
            Some(_) => format!("it had the rendezvous, and {lost}"),
            None => format!("the rendezvous is lost: {lost}"),
        };
        self.fail(Failure { rank: self.host, text });
    }

    fn host_has_left(&self) -> bool {
        self.host.is_some_and(|host| self.has_left(host))
    }

    fn has_left(&self, rank: u32) -> bool {
        self.left.get(rank as usize).is_some_and(|left| left.load(Ordering::Acquire))
    }

    fn heard(&self, header: Header, body: &[u8]) {
        match header.kind {
            Kind::Blob => {
                let mut blobs = self.blobs();
                blobs.bytes += body.len();
                let whole = blobs.waiting.entry((header.from, header.tag)).or_default();
                whole.extend(body);
                let full = blobs.bytes > UNASKED_BYTES_MAX;
                drop(blobs);
                self.news.notify_all();
                if full {
                    let text = "it tells more than anybody asks for".to_owned();
                    self.fail(Failure { rank: Some(header.from), text });
                }
            }
            Kind::Failed => _ = self.fail(failure(header, body)),
            Kind::Left => {
                if let Some(left) = self.left.get(header.from as usize) {
                    left.store(true, Ordering::Release);
                }
            }
            _ => {}
        }
    }
}

impl Blobs {
    /// The next blob, if it is whole.
    fn take(&mut self, from: (u32, u32)) -> Option<Vec<u8>> {
        let waiting = self.waiting.get_mut(&from)?;
        let mut len = [0; 4];
        if waiting.len() < len.len() {
            return None;
        }
        len.iter_mut().zip(waiting.iter()).for_each(|(to, byte)| *to = *byte);
        let end = u32::from_le_bytes(len) as usize + len.len();
        if waiting.len() < end {
            return None;
        }
        let blob = waiting.drain(..end).skip(len.len()).collect();
        self.bytes -= end;
        Some(blob)
    }
}

fn failure(header: Header, body: &[u8]) -> Failure {
    let rank = Some(header.from).filter(|rank| *rank != NOBODY);
    Failure { rank, text: String::from_utf8_lossy(body).into_owned() }
}
