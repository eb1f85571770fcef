//! A rank's connection to the hub.

mod blobs;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use invar_core::auth::Secret;
use invar_core::rendezvous::{
    self, JoinError, NOBODY, RendezvousHeader, RendezvousKind, SEALED_BYTES_MAX, UniqueId, join,
};
use rustix::event::PollFd;

use self::blobs::{Blobs, ENTRY_BYTES};
use super::attend::{Attendant, Exchange};
use super::connection::{Connection, Lost};
use super::error::{BootstrapError, Failure};
use super::reach::{Unreached, authenticate, connect};
use super::{TICK, deadline, text, this_member};
use crate::abort::Abort;
use crate::own_thread::OwnThread;
use crate::unix::wait;

/// Extra time in which the hub, which knows the missing ranks, can report them.
const VERDICT: Duration = Duration::from_secs(2);
/// Maximum bytes of a message; a longer blob takes several messages.
const PIECE_BYTES: usize = SEALED_BYTES_MAX;
/// Maximum bytes of blobs that nobody has asked for, including their lengths.
const UNASKED_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes of a blob, which must fit into that limit.
const BLOB_BYTES_MAX: usize = UNASKED_BYTES_MAX - ENTRY_BYTES - size_of::<u32>();
/// Maximum time for the last message of a rank that fails or leaves.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A rank's access to the others: it sends blobs of bytes to any rank (`bootstrapSend`, `bootstrapRecv`,
/// `bootstrapAllGather`) and learns of failures. Dropping it tells the others that this rank is done.
#[derive(Debug)]
pub struct Bootstrap {
    rank: u32,
    nranks: u32,
    local_ip: IpAddr,
    communicator: u64,
    key: Secret,
    sender: Arc<Mutex<Connection>>,
    /// Whether this rank has said that it is done.
    told: AtomicBool,
    shared: Arc<Shared>,
    _watch: OwnThread,
}

/// The state that the watching thread and the rank share.
#[derive(Debug)]
struct Shared {
    blobs: Mutex<Blobs>,
    news: Condvar,
    /// The rank whose process runs the hub.
    host: Option<u32>,
    /// A flag that is set with the first failure.
    failed: Abort,
    failure: OnceLock<Failure>,
    /// Whether each rank is done.
    left: Box<[AtomicBool]>,
    /// Whether the hub is gone without a failure, because the rank that runs it was done.
    alone: AtomicBool,
    closing: AtomicBool,
    exchange: Mutex<Exchange>,
}

impl Bootstrap {
    /// Joins as `rank` of `nranks`, and waits at most `within` until all ranks are there, plus two
    /// seconds for the hub's report of missing ranks. The hub may start to listen during this time.
    /// Afterwards the rank and the hub give each other up if the other's host is silent for `silence`.
    pub fn join(
        id: &UniqueId,
        (rank, nranks): (u32, u32),
        within: Duration,
        silence: Duration,
    ) -> Result<Self, BootstrapError> {
        let addr = id.addr();
        let failed = |text: String| BootstrapError::Join { rank, addr, text };
        let deadline = deadline(within);
        let stream = connect(addr, deadline).map_err(|error| match error {
            Unreached::Nobody => failed(format!(
                "nobody listens there any more, or yet, within {within:?}: either all ranks have \
                 joined already, or rank 0 has given up or not started"
            )),
            Unreached::Os(error) if addr.ip().is_loopback() => {
                failed(format!("{error}: the interface lo is down; try ip link set lo up"))
            }
            Unreached::Os(error) => failed(error.to_string()),
            Unreached::Lost(lost) => failed(lost.to_string()),
        })?;
        let local_ip = stream.local_addr()?.ip();
        let mut connection = authenticate(stream, id, deadline)?.ok_or_else(|| {
            failed(format!("the rendezvous did not prove itself within {within:?}"))
        })?;
        connection.bear_silence(silence);
        let silence_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
        let join = join(rank, nranks, this_member(), silence_ms);
        connection.say(&join).map_err(|error| failed(error.to_string()))?;
        let mut joined = false;
        let (host, communicator) = loop {
            match connection.recv().map_err(|error| failed(error.to_string()))? {
                Some((header, body)) if joined && header.kind == RendezvousKind::Started => {
                    let id = body.try_into();
                    break (header.tag, id.map_err(|_| failed(JoinError::NoHub.to_string()))?);
                }
                Some((header, body)) if joined && header.kind == RendezvousKind::Failed => {
                    return Err(failure(header, &body).into());
                }
                Some((header, body)) => {
                    rendezvous::joined(header, &body).map_err(|error| failed(error.to_string()))?;
                    if joined {
                        return Err(failed(JoinError::NoHub.to_string()));
                    }
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
        let shared = Arc::new(Shared::new(nranks, Some(host).filter(|host| *host != NOBODY)));
        let receiver = connection.receiver()?;
        let sender = Arc::new(Mutex::new(connection));
        let _watch = OwnThread::start(&format!("invar-watch {rank}"), {
            let (shared, sender) = (shared.clone(), sender.clone());
            move || shared.watch(receiver, &sender)
        })?;
        let (told, key) = (AtomicBool::new(false), id.key(&communicator));
        let communicator = u64::from_le_bytes(std::array::from_fn(|i| communicator[i]));
        Ok(Bootstrap { rank, nranks, local_ip, communicator, key, sender, told, shared, _watch })
    }

    /// Returns the random number by which all ranks know this communicator.
    pub fn communicator(&self) -> u64 {
        self.communicator
    }

    /// Returns the key that all ranks of this communicator share, and nobody else.
    pub fn key(&self) -> &Secret {
        &self.key
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// Returns this host's address towards the hub; an IPv4 address is never mapped to IPv6.
    pub fn local_ip(&self) -> IpAddr {
        self.local_ip.to_canonical()
    }

    /// Sends a blob of up to 256 MiB to a rank, and waits until the kernel has all of it. Blobs with the
    /// same tag arrive in order; the callers agree on the tags.
    pub fn send(&self, to: u32, tag: u32, blob: &[u8]) -> Result<(), BootstrapError> {
        if blob.len() > BLOB_BYTES_MAX {
            let what = format!("a blob of {} bytes: at most {BLOB_BYTES_MAX} can be", blob.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let bytes = [&(blob.len() as u32).to_le_bytes(), blob].concat();
        let mut sender = self.sender();
        for piece in bytes.chunks(PIECE_BYTES) {
            self.check()?;
            let header = RendezvousHeader {
                to,
                tag,
                ..RendezvousHeader::new(RendezvousKind::Blob, piece.len())
            };
            let sent = sender
                .send(header, piece)
                .and_then(|()| sender.drain(|| !self.shared.failed.is_set()));
            sent.map_err(|error| self.lost(&error))?;
        }
        Ok(self.check()?)
    }

    /// Receives the next blob of a rank with a tag, and waits at most `within`.
    ///
    /// # Errors
    /// No blob came in time, a rank has failed, or the sending rank has left.
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

    /// Returns the next blob of a rank with a tag, if it has arrived.
    ///
    /// # Errors
    /// The blob cannot arrive any more, because a rank has failed or the sending rank has left.
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
        // The watching thread adds a rank's blobs before it notes that the rank has left, and adding needs
        // the lock that is held here. So no blob of that rank is missing.
        if self.has_left(from) {
            let text =
                "it has left the communicator while others still wait for its data".to_owned();
            return Err(Failure { rank: Some(from), reporter: Some(from), text });
        }
        Ok(None)
    }

    /// Gathers the blobs of all ranks, including this one's, in the order of ranks. Only one thread at a time may
    /// gather with a tag.
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

    /// Tells all ranks that this rank cannot continue, because of `culprit`. Returns whether this is the first
    /// failure, which is the one that stays.
    pub fn fail(&self, culprit: u32, text: &str) -> bool {
        let (rank, reporter) = (Some(culprit), Some(self.rank));
        let failure = Failure { rank, reporter, text: text.to_owned() };
        let first = self.shared.fail(failure);
        if first {
            let mut end = text.len().min(PIECE_BYTES);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            self.say_last(
                RendezvousKind::Failed,
                culprit.saturating_add(1),
                &text.as_bytes()[..end],
            );
        }
        first
    }

    /// Returns a flag that is set with the first failure.
    pub fn abort(&self) -> Abort {
        self.shared.failed.clone()
    }

    /// Lets an attendant find out why ranks do not go on. The watching thread calls it.
    pub fn attend(&self, attendant: Arc<dyn Attendant>) {
        self.shared.exchange().attend(attendant);
    }

    /// Tells the others that this rank is done.
    pub fn leave(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.say_last(RendezvousKind::Left, 0, &[]);
        }
    }

    /// Returns the failure if a rank has failed. The check costs almost nothing while none has.
    #[inline]
    pub fn check(&self) -> Result<(), Failure> {
        match self.shared.failed.is_set() {
            false => Ok(()),
            true => Err(self.shared.failure.get().cloned().expect("it is set before")),
        }
    }

    /// Whether a rank is done. Its earlier messages may still be on the way.
    pub fn has_left(&self, rank: u32) -> bool {
        self.shared.has_left(rank)
    }

    /// Whether the hub is gone without a failure, because the rank that ran it was done. From then on
    /// this rank learns nothing of the others.
    pub fn is_alone(&self) -> bool {
        self.shared.alone.load(Ordering::Acquire)
    }

    /// Sends the last message of this rank: a failure, or that the rank is done.
    fn say_last(&self, kind: RendezvousKind, tag: u32, body: &[u8]) {
        let (mut sender, start) = (self.sender(), Instant::now());
        // If the hub is gone, everybody knows already, or nobody needs to know.
        let _ = sender
            .send(RendezvousHeader { tag, ..RendezvousHeader::new(kind, body.len()) }, body)
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
        self.sender().shutdown();
    }
}

impl Shared {
    fn new(nranks: u32, host: Option<u32>) -> Self {
        Shared {
            blobs: Mutex::default(),
            news: Condvar::new(),
            host,
            failed: Abort::default(),
            failure: OnceLock::new(),
            left: (0..nranks).map(|_| AtomicBool::new(false)).collect(),
            alone: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            exchange: Mutex::default(),
        }
    }

    fn blobs(&self) -> MutexGuard<'_, Blobs> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failure; the first one stays. Returns whether this is the first.
    fn fail(&self, failure: Failure) -> bool {
        let first = self.failure.set(failure).is_ok();
        self.failed.set();
        self.news.notify_all();
        first
    }

    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the hub's messages until the connection ends.
    fn watch(&self, mut connection: Connection, sender: &Mutex<Connection>) {
        let lost = loop {
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            self.exchange().look(sender.try_lock().ok(), self.host);
            match connection.recv() {
                Ok(Some((header, body)))
                    if matches!(header.kind, RendezvousKind::Ask | RendezvousKind::Verdict) =>
                {
                    self.exchange().heard(header, &body, sender.try_lock().ok());
                }
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

    /// Records that the hub is gone, and with it the rank that runs it.
    fn lost(&self, lost: &Lost) {
        let text = match self.host {
            Some(_) if self.host_has_left() => {
                "it had the rendezvous, which others need, and has left".to_owned()
            }
            Some(_) => format!("it had the rendezvous, and {lost}"),
            None => format!("the rendezvous is lost: {lost}"),
        };
        self.fail(Failure { rank: self.host, reporter: self.host, text });
    }

    fn host_has_left(&self) -> bool {
        self.host.is_some_and(|host| self.has_left(host))
    }

    fn has_left(&self, rank: u32) -> bool {
        self.left.get(rank as usize).is_some_and(|left| left.load(Ordering::Acquire))
    }

    fn heard(&self, header: RendezvousHeader, body: &[u8]) {
        match header.kind {
            RendezvousKind::Blob => self.keep(header, body, UNASKED_BYTES_MAX),
            RendezvousKind::Failed => _ = self.fail(failure(header, body)),
            RendezvousKind::Left => {
                if let Some(left) = self.left.get(header.from as usize) {
                    left.store(true, Ordering::Release);
                }
            }
            _ => {}
        }
    }

    /// Keeps a piece of a blob. If all kept pieces have more than `bytes_max` together, the sender has failed.
    fn keep(&self, header: RendezvousHeader, piece: &[u8], bytes_max: usize) {
        let mut blobs = self.blobs();
        // A rank that has failed asks for nothing more, and the others may still send.
        if self.failed.is_set() {
            return;
        }
        blobs.add((header.from, header.tag), piece);
        if blobs.bytes() <= bytes_max {
            drop(blobs);
            return self.news.notify_all();
        }
        *blobs = Blobs::default();
        drop(blobs);
        let text = format!("it sent more than {} MiB that no rank has asked for", bytes_max >> 20);
        let rank = Some(header.from);
        self.fail(Failure { rank, reporter: rank, text });
    }
}

fn failure(header: RendezvousHeader, body: &[u8]) -> Failure {
    let reporter = Some(header.from).filter(|rank| *rank != NOBODY);
    let rank = header.tag.checked_sub(1).or(reporter);
    Failure { rank, reporter, text: text(body) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of rank 1 to rank 0.
    fn header(kind: RendezvousKind, body: &[u8]) -> RendezvousHeader {
        RendezvousHeader { from: 1, ..RendezvousHeader::new(kind, body.len()) }
    }

    #[test]
    fn after_the_first_failure_no_blob_takes_memory() {
        const MAX: usize = 2 << 20;
        const PIECE: [u8; 1000] = [7; 1000];
        const EACH: usize = PIECE.len() + ENTRY_BYTES;
        let shared = Shared::new(2, None);
        let send = |tag| {
            let header = RendezvousHeader { tag, ..header(RendezvousKind::Blob, &PIECE) };
            shared.keep(header, &PIECE, MAX);
            shared.blobs().bytes()
        };
        let bytes: Vec<usize> = (0..3000).map(send).collect();
        let (kept, after) = bytes.split_at(MAX / EACH);
        assert_eq!(kept.last(), Some(&(kept.len() * EACH)));
        assert!(after.iter().all(|bytes| *bytes == 0), "{after:?}");
        let failure = shared.failure.get().expect("a failure");
        let text = "rank 1: it sent more than 2 MiB that no rank has asked for";
        assert_eq!(failure.to_string(), text);
    }

    #[test]
    fn a_rank_that_failed_puts_no_control_characters_on_a_terminal() {
        let body = b"out of \x1b[2Jpaper\xff";
        let failure = failure(header(RendezvousKind::Failed, body), body);
        assert_eq!(failure.to_string(), "rank 1: out of ?[2Jpaper\u{fffd}");
    }
}
