//! A listener that returns only callers that have proved themselves.
//!
//! Before its proof a caller costs its socket and about 200 bytes, has ten seconds, and delays nobody. If
//! the listener or the process has too many callers, the listener drops the oldest caller of the address with the
//! most callers.
//! Each caller first has a moment for its proof. Until then, new callers wait in the kernel's queue.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use invar_core::auth::{Answering, AuthError, Resume, Secret, Service, Session, SessionId};
use invar_core::conn::wire::QP_INFO_BYTES;
use invar_core::conn::{Handle, Stream, Wire};
use invar_core::param::PortRange;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::process::{Resource, getrlimit};

use super::{OobListener, OobStream};
use crate::fork::{CALLERS, OwnerProcess};
use crate::interest::Interest;
use crate::random::random;

/// Time within which a caller must prove itself; only time in which this end polls counts. A process on a host
/// that is too busy may need seconds. A longer time helps no stranger, who loses its place to others anyway.
pub const AUTH_WITHIN_NS: u64 = 10_000_000_000;
/// Time within which NCCL must say hello. It connects long before it creates its queue pairs and says so
/// (`net_ib.cc ncclIbConnect`).
const HELLO_WITHIN_NS: u64 = 30_000_000_000;
/// Maximum time that counts between two polls: on a busy host, this end causes longer delays. A waiter without news
/// sleeps for less.
const ATTENTION_NS: u64 = 1_000_000_000;
/// Maximum number of a listener's callers that have not proved themselves.
const PENDING_MAX: usize = 4096;
/// Number of callers for which a listener has room once callers hold a quarter of the process' descriptors.
const PENDING_CROWDED: usize = 64;
/// Number of callers for which a listener has room once callers hold half of the process' descriptors.
const PENDING_MIN: usize = 2;
/// Time that every caller has before it can lose its place to others. If many peers call at once, none
/// of them loses its connection.
const MOMENT_NS: u64 = 50_000_000;
/// Maximum number of callers that one call of [`AuthListener::poll`] accepts or hears.
const BATCH: usize = 64;
/// Whether the log says that callers wait for descriptors.
static NO_FILES: Once = Once::new();
/// Event number of the listening socket; callers are numbered from 0.
const LISTENER: u64 = u64::MAX;
/// Event number of the call to other waiters.
const CALL: u64 = LISTENER - 1;

/// The proof that callers must give.
#[derive(Clone, Copy, Debug)]
pub enum Proof {
    /// Callers must know this secret and ask for this service.
    Secret(Secret, Service),
    /// Callers must know the secret of a session that they name, and that this end expects.
    Session,
    /// Callers prove nothing, because the wire of NCCL 2.14 has no proof. The listener returns a caller
    /// once it has sent as much as NCCL's first message.
    NcclHello,
}

/// A TCP listener for callers that know a secret.
#[derive(Debug)]
pub struct AuthListener {
    listener: OobListener,
    proof: Proof,
    epoll: OwnedFd,
    /// An event descriptor, by which a waiter lets the others look.
    call: OwnedFd,
    /// Callers wait in the kernel, because there is no room for them.
    is_full: bool,
    pending: HashMap<u64, Pending>,
    /// Numbers of the callers in order of arrival; some callers are gone.
    oldest: VecDeque<u64>,
    by_source: HashMap<IpAddr, usize>,
    next: u64,
    pending_max: usize,
    /// The count of pending callers of all listeners of the process. From the number beside it on, a listener has
    /// room for fewer than `pending_max`.
    process: (&'static AtomicUsize, usize),
    /// Total time that this end has polled; all deadlines refer to it.
    attended_ns: u64,
    /// Time of the last poll.
    polled_ns: Option<u64>,
    ready: VecDeque<(OobStream, Session)>,
    /// The sessions that callers may resume.
    expected: HashMap<SessionId, Secret>,
    resumed: VecDeque<(OobStream, SessionId)>,
    turned_away: TurnedAway,
    /// The error of the last call for which this host had no descriptor, until no caller waits.
    out_of_files: Option<i32>,
}

#[derive(Debug)]
struct Pending {
    stream: OobStream,
    answering: Answering,
    source: SocketAddr,
    came_ns: u64,
    _counted: Counted,
}

/// A caller in the count of its process.
#[derive(Debug)]
struct Counted {
    count: &'static AtomicUsize,
    process: OwnerProcess,
}

impl Counted {
    fn new(count: &'static AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted { count, process: OwnerProcess::current() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A child of fork does not count the callers of its parent.
        if self.process.is_current() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The callers that a listener has turned away.
#[derive(Clone, Debug, Default)]
pub struct TurnedAway {
    /// Number of callers.
    pub count: u64,
    /// Address of the last caller, and the reason.
    pub last: Option<(SocketAddr, WhyNot)>,
}

/// The reason why the listener turned a caller away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// The caller does not speak Invar's protocol, or does not know the secret.
    Auth(AuthError),
    /// The caller sent too little within ten seconds.
    Silent,
    /// Other callers needed the caller's place.
    Crowded,
}

impl AuthListener {
    /// Listens at `addr`; if `addr` has port 0, listens at the first free port of `ports`.
    pub fn bind(addr: SocketAddr, ports: PortRange, proof: Proof) -> io::Result<Self> {
        let listener = OobListener::bind(addr, ports)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &call, epoll::EventData::new_u64(CALL), epoll::EventFlags::IN)?;
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let process_max = usize::try_from(files / 4).unwrap_or(usize::MAX).max(PENDING_MIN);
        Ok(AuthListener {
            listener,
            proof,
            epoll,
            call,
            is_full: false,
            pending: HashMap::new(),
            oldest: VecDeque::new(),
            by_source: HashMap::new(),
            next: 0,
            pending_max: process_max.min(PENDING_MAX),
            process: (&CALLERS, process_max),
            attended_ns: 0,
            polled_ns: None,
            ready: VecDeque::new(),
            expected: HashMap::new(),
            resumed: VecDeque::new(),
            turned_away: TurnedAway::default(),
            out_of_files: None,
        })
    }

    /// Listens for callers that have the handle, and the `key` if there is one.
    pub fn with_handle(
        addr: SocketAddr,
        ports: PortRange,
        wire: Wire,
        service: Service,
        key: Option<&Secret>,
    ) -> io::Result<(Self, Handle)> {
        let secret = random()?;
        let proof = |handle: &Handle| match wire {
            // Sixteen random bytes are never all zero.
            Wire::Invar => handle.secret(key).map(|secret| Proof::Secret(secret, service)),
            Wire::Nccl214 => Ok(Proof::NcclHello),
        };
        let proof = proof(&Handle::new(addr, wire, &secret)).map_err(io::Error::other)?;
        let listener = Self::bind(addr, ports, proof)?;
        let handle = Handle::new(listener.local_addr()?, wire, &secret);
        Ok((listener, handle))
    }

    /// Returns the address on which the listener listens, with its port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the callers turned away so far.
    pub fn turned_away(&self) -> &TurnedAway {
        &self.turned_away
    }

    /// Returns why callers wait: this process or host has no descriptor left.
    pub fn out_of_files(&self) -> Option<io::Error> {
        self.out_of_files.map(io::Error::from_raw_os_error)
    }

    /// Returns the next caller that has proved itself, without waiting. On `None` call again, at the
    /// latest when [`AsFd::as_fd`] is readable.
    ///
    /// # Errors
    /// A system call fails, as if this host has no memory left. Without descriptors callers wait: see
    /// [`AuthListener::out_of_files`].
    pub fn poll(&mut self, now_ns: u64) -> io::Result<Option<(OobStream, Session)>> {
        if let Some(caller) = self.ready.pop_front() {
            return Ok(Some(caller));
        }
        let since_ns = now_ns.saturating_sub(self.polled_ns.replace(now_ns).unwrap_or(now_ns));
        self.attended_ns += since_ns.min(ATTENTION_NS);
        self.is_full = false;
        let mut taken_in = Ok(());
        for number in ready(&self.epoll)? {
            match number {
                LISTENER => taken_in = self.take_in(),
                CALL => drop(rustix::io::read(&self.call, &mut [0; 8])),
                number => self.hear(number),
            }
        }
        // This comes last, so that every caller that spoke in time is heard first.
        self.turn_away_silent();
        first_or(&mut self.ready, taken_in)
    }

    /// Arms what ends the sleep of a waiter after [`AuthListener::poll`] has returned `None`.
    pub fn arm(&self, interest: &mut Interest) {
        match self.is_full {
            // The callers in the kernel's queue would end every sleep at once.
            true => interest.blind(),
            false => interest.readable(self),
        }
    }

    /// Whether callers wait in the kernel's queue because there is no room for them. Then look again soon, but do not
    /// sleep on [`AsFd::as_fd`], which is readable meanwhile.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Lets all waiters look once more. Whoever has got a connection calls this, because its poll may also have read
    /// what the others wait for.
    pub fn call_waiters(&self) {
        // The write fails only if the counter is full, and then the waiters are called already.
        let _ = rustix::io::write(&self.call, &1_u64.to_ne_bytes());
    }

    /// Expects a caller that resumes a session.
    pub(super) fn expect(&mut self, Resume { id, secret }: &Resume) {
        self.expected.insert(*id, *secret);
    }

    /// Expects no caller of a session any more.
    pub(super) fn forget(&mut self, id: &SessionId) {
        self.expected.remove(id);
    }

    /// Returns the next caller that has resumed a session, as [`AuthListener::poll`] does.
    ///
    /// # Errors
    /// See [`AuthListener::poll`].
    pub(super) fn poll_resumed(
        &mut self,
        now_ns: u64,
    ) -> io::Result<Option<(OobStream, SessionId)>> {
        let polled = if self.resumed.is_empty() { self.poll(now_ns).map(drop) } else { Ok(()) };
        first_or(&mut self.resumed, polled)
    }

    fn take_in(&mut self) -> io::Result<()> {
        for _ in 0..BATCH {
            if self.pending.len() >= self.room() && !self.make_room() {
                self.is_full = true;
                return Ok(());
            }
            let stream = match self.listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => {
                    // Nobody waits any more.
                    self.out_of_files = None;
                    return Ok(());
                }
                Err(error) if is_out_of_files(&error) => {
                    self.out_of_files = error.raw_os_error();
                    // Callers of other listeners may hold the descriptors. The caller here waits in the kernel.
                    if !self.make_room() {
                        NO_FILES.call_once(|| log::warn!("callers wait: {error}"));
                        self.is_full = true;
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(source) = stream.peer_addr() else { continue };
            let number = self.next;
            self.next += 1;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number), flags)?;
            let answering = Answering::new(random()?);
            let came_ns = self.attended_ns;
            let counted = Counted::new(self.process.0);
            let pending = Pending { stream, answering, source, came_ns, _counted: counted };
            self.pending.insert(number, pending);
            self.oldest.push_back(number);
            *self.by_source.entry(source.ip()).or_default() += 1;
        }
        Ok(())
    }

    /// Returns the number of callers for which the listener has room.
    fn room(&self) -> usize {
        let (count, process_max) = self.process;
        match count.load(Ordering::Relaxed) {
            count if count < process_max => self.pending_max,
            count if count / 2 < process_max => self.pending_max.min(PENDING_CROWDED),
            _ => PENDING_MIN,
        }
    }

    /// Continues with a caller that has sent something.
    fn hear(&mut self, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let Pending { stream, answering, .. } = pending;
        let heard = match &self.proof {
            Proof::Secret(secret, service) => answering.poll(secret, *service, stream),
            Proof::Session => {
                let secret_of = |id: &SessionId| self.expected.get(id).copied();
                match answering.poll_resumed(secret_of, stream) {
                    Ok(Some(id)) => return self.resume(number, id),
                    Ok(None) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Proof::NcclHello => {
                let waiting = rustix::io::ioctl_fionread(&*stream).unwrap_or(0);
                Ok((waiting >= QP_INFO_BYTES as u64).then_some(Session::UNKNOWN_PEER))
            }
        };
        match heard {
            Ok(None) => {}
            Ok(Some(session)) => {
                if let Some(stream) = self.let_in(number) {
                    self.ready.push_back((stream, session));
                }
            }
            Err(error) => self.turn_away(number, WhyNot::Auth(error)),
        }
    }

    /// Lets a caller in that has resumed a session.
    fn resume(&mut self, number: u64, id: SessionId) {
        if let Some(stream) = self.let_in(number) {
            self.resumed.push_back((stream, id));
        }
    }

    /// Takes the stream of a caller that has proved itself.
    fn let_in(&mut self, number: u64) -> Option<OobStream> {
        let Pending { stream, .. } = self.remove(number)?;
        // The call fails only if the descriptor does not exist.
        let _ = epoll::delete(&self.epoll, &stream);
        Some(stream)
    }

    fn turn_away_silent(&mut self) {
        let within_ns = match self.proof {
            Proof::NcclHello => HELLO_WITHIN_NS,
            Proof::Secret(..) | Proof::Session => AUTH_WITHIN_NS,
        };
        while let Some(&number) = self.oldest.front() {
            match self.pending.get(&number) {
                Some(pending) if self.attended_ns < pending.came_ns + within_ns => return,
                Some(_) => self.turn_away(number, WhyNot::Silent),
                None => {}
            }
            self.oldest.pop_front();
        }
    }

    /// Turns away the oldest of the callers whose addresses have the most callers. Returns false if that
    /// caller has only just arrived.
    fn make_room(&mut self) -> bool {
        let Some(&most) = self.by_source.values().max() else { return false };
        if self.oldest.len() > 2 * self.pending.len() {
            self.oldest.retain(|number| self.pending.contains_key(number));
        }
        let is_of_most = |number: &&u64| {
            let pending = self.pending.get(number);
            pending.is_some_and(|pending| self.by_source[&pending.source.ip()] == most)
        };
        let Some(&number) = self.oldest.iter().find(is_of_most) else { return false };
        if self.attended_ns < self.pending[&number].came_ns + MOMENT_NS {
            return false;
        }
        self.turn_away(number, WhyNot::Crowded);
        true
    }

    fn turn_away(&mut self, number: u64, why: WhyNot) {
        let Some(pending) = self.remove(number) else { return };
        self.turned_away.count += 1;
        self.turned_away.last = Some((pending.source, why));
        // The warning comes only at powers of two, so that a flood of callers does not flood the log.
        if self.turned_away.count.is_power_of_two() {
            log::warn!("{}", self.turned_away);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        let source = pending.source.ip();
        match self.by_source.get_mut(&source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => _ = self.by_source.remove(&source),
        }
        Some(pending)
    }
}

/// Takes the first of a queue. An error counts only if the queue is empty.
fn first_or<T>(queue: &mut VecDeque<T>, result: io::Result<()>) -> io::Result<Option<T>> {
    match queue.pop_front() {
        Some(first) => Ok(Some(first)),
        None => result.map(|()| None),
    }
}

/// The descriptor is readable when [`AuthListener::poll`] may have work before a caller's time is up.
impl AsFd for AuthListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl fmt::Display for TurnedAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((source, why)) = &self.last else {
            return f.write_str("no caller was turned away");
        };
        match self.count {
            1 => write!(f, "a caller from {source} was turned away: {why}"),
            count => write!(f, "{count} callers were turned away, the last from {source}: {why}"),
        }
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNot::Auth(error) => error.fmt(f),
            WhyNot::Silent => f.write_str("it did not prove itself within 10 s"),
            WhyNot::Crowded => f.write_str("too many others were calling from its address"),
        }
    }
}

/// Returns at most [`BATCH`] callers that have sent something, without waiting. The call does not use
/// rustix, which leaves a register unset that valgrind takes for an argument of the system call.
fn ready(epoll: &OwnedFd) -> io::Result<impl Iterator<Item = u64> + use<>> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    // SAFETY: `events` has room for the `BATCH` events that the call asks for.
    let n = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), BATCH as i32, 0) };
    let n = match usize::try_from(n) {
        Ok(n) => n,
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => 0,
            error => return Err(error),
        },
    };
    Ok(events.into_iter().take(n).map(|event| event.u64))
}

pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests;
