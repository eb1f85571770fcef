//! Making a connection anew with the same peer, though the kernel has given the old one up.
//!
//! The end that called calls again, at the doors of its peer: one listener for each local address of a
//! process. The listener that took the first call may be closed by then. A connection over several rails has a
//! door at the address of each. Both ends prove that they know the secret of the session, so nobody else can
//! take the place of either.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use invar_core::auth::{AuthError, Calling, Resume, Session, SessionId};
use invar_core::conn::stage::Side;
use invar_core::conn::{RAILS_MAX, Stream, StreamError};
use invar_core::param::PortRange;

use super::{AuthListener, OobStream, Proof};
use crate::clock::now_ns;
use crate::random::random;

/// Time for a call to reach the peer's host. Later the kernel would wait too long before it tries again.
const REACH_WITHIN: Duration = Duration::from_secs(1);
/// Time after which a host that has not answered counts as silent.
const SILENT_AFTER: Duration = Duration::from_millis(300);
/// Time for both ends to prove themselves.
const PROVE_WITHIN: Duration = Duration::from_secs(3);
/// The first and the longest pause between two calls.
const PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Time between two looks at a door, which many ends share.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The most doors of a connection: at the address of the first call, and at that of each rail.
const DOORS_MAX: usize = RAILS_MAX + 1;

/// The doors of this process, by place.
static DOORS: Mutex<Vec<(DoorKey, Weak<Door>)>> = Mutex::new(Vec::new());

/// The place of a door. A child of `fork` needs doors of its own, and so does each network namespace.
#[derive(Clone, Copy, PartialEq)]
struct DoorKey {
    process: u32,
    namespace: u64,
    /// Its port is 0.
    addr: SocketAddr,
}

/// A listener at which peers make connections anew.
#[derive(Debug)]
pub(super) struct Door {
    addr: SocketAddr,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    listener: AuthListener,
    /// The new connections that their ends have not taken yet, and when they came.
    new: HashMap<SessionId, (Instant, OobStream)>,
    looked: Option<Instant>,
}

impl Door {
    /// Returns the door at a local address, and opens it if there is none. `stream` is a connection of the
    /// same host. Returns `None` if `ports` is a single port, since another listener needs that port.
    ///
    /// # Errors
    /// No port is free, or a system call fails.
    pub(super) fn of_process(
        mut addr: SocketAddr,
        stream: &TcpStream,
        ports: PortRange,
    ) -> io::Result<Option<Arc<Door>>> {
        if ports.single().is_some() {
            return Ok(None);
        }
        addr.set_port(0);
        let place = DoorKey { process: process::id(), namespace: namespace(stream), addr };
        let mut doors = DOORS.lock().unwrap_or_else(PoisonError::into_inner);
        doors.retain(|(_, door)| door.strong_count() > 0);
        let known = doors.iter().find(|(at, _)| *at == place);
        if let Some(door) = known.and_then(|(_, door)| door.upgrade()) {
            return Ok(Some(door));
        }
        let listener = AuthListener::bind(addr, ports, Proof::Session)?;
        let addr = listener.local_addr()?;
        let inside = Inside { listener, new: HashMap::new(), looked: None };
        let door = Arc::new(Door { addr, inside: Mutex::new(inside) });
        doors.push((place, Arc::downgrade(&door)));
        Ok(Some(door))
    }

    pub(super) fn port(&self) -> u16 {
        self.addr.port()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the new connection of a session, if the peer has called, and the time at which it came.
    fn take(&self, id: &SessionId) -> Option<(Instant, OobStream)> {
        let mut inside = self.inside();
        inside.let_in();
        inside.new.remove(id)
    }
}

impl Inside {
    /// Lets the peers in that call.
    fn let_in(&mut self) {
        let Inside { listener, new, looked } = self;
        let now = Instant::now();
        if looked.is_some_and(|looked| now.duration_since(looked) < LOOK_EVERY) {
            return;
        }
        *looked = Some(now);
        // Whoever has proved itself is let in under the lock, before it can close its old connection.
        loop {
            match listener.poll_resumed(now_ns()) {
                Ok(Some((stream, id))) => _ = new.insert(id, (now, stream)),
                Ok(None) => break,
                Err(error) => {
                    log::debug!("taking connections that are made anew: {error}");
                    break;
                }
            }
        }
    }
}

/// Lets peers in that make connections of this process anew. Returns whether a connection waits for its end, which
/// takes it by [`Stream::renew`].
pub fn attend_renewals() -> bool {
    let waits = |door: &Arc<Door>| {
        let mut inside = door.inside();
        inside.let_in();
        !inside.new.is_empty()
    };
    open_doors().iter().filter(|door| waits(door)).count() > 0
}

/// The doors of this process.
fn open_doors() -> Vec<Arc<Door>> {
    let here = process::id();
    let doors = DOORS.lock().unwrap_or_else(PoisonError::into_inner);
    let doors = doors.iter().filter(|(place, _)| place.process == here);
    doors.filter_map(|(_, door)| door.upgrade()).collect()
}

/// How an end gets a new connection.
#[derive(Debug)]
pub(super) enum Renewal {
    Call(Box<Caller>),
    Answer(Answers),
}

impl Renewal {
    /// Prepares for the loss of a connection. Returns `None` if the connection cannot be made anew.
    pub(super) fn new(
        stream: &OobStream,
        side: Side,
        session: &Session,
        peer_port: u16,
    ) -> Option<Self> {
        let resume = session.resume()?;
        if side == Side::Acceptor {
            let (door, ports) = stream.door.as_ref()?;
            let expected = vec![Expected::new(Arc::clone(door), &resume)];
            return Some(Renewal::Answer(Answers { resume, ports: *ports, expected }));
        }
        let mut addr = stream.peer;
        addr.set_port(peer_port);
        let caller = Caller {
            addrs: vec![addr],
            turn: 0,
            resume,
            call: None,
            pause: PAUSE[0],
            next: Instant::now(),
            host_answers: None,
        };
        (peer_port != 0).then(|| Renewal::Call(Box::new(caller)))
    }

    /// Returns the new connection, if there is one.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if the peer's end lives no more.
    pub(super) fn poll(&mut self) -> Result<Option<OobStream>, StreamError> {
        match self {
            Renewal::Call(caller) => caller.poll(),
            Renewal::Answer(answers) => Ok(answers.poll()),
        }
    }
}

/// Answers at the doors of a connection.
#[derive(Debug)]
pub(super) struct Answers {
    resume: Resume,
    ports: PortRange,
    /// The first door is at the address of the first call.
    expected: Vec<Expected>,
}

impl Answers {
    /// Answers at another address of this host too. Returns the port there, or 0.
    pub(super) fn answer_at(&mut self, own: IpAddr, stream: &TcpStream) -> u16 {
        let is_there = |expected: &&Expected| expected.door.addr.ip().to_canonical() == own;
        if let Some(expected) = self.expected.iter().find(is_there) {
            return expected.door.port();
        }
        match Door::of_process(SocketAddr::new(own, 0), stream, self.ports) {
            Ok(Some(door)) => {
                if self.expected.len() == DOORS_MAX {
                    // A rail has another address now.
                    self.expected.remove(1);
                }
                let port = door.port();
                self.expected.push(Expected::new(door, &self.resume));
                port
            }
            Ok(None) => 0,
            Err(error) => {
                log::debug!("a lost TCP connection is not made anew at {own}: {error}");
                0
            }
        }
    }

    /// Takes the newest connection: the caller has given up the others.
    fn poll(&self) -> Option<OobStream> {
        let all = self.expected.iter().filter_map(|expected| expected.door.take(&expected.id));
        all.max_by_key(|(came, _)| *came).map(|(_, stream)| stream)
    }
}

/// A session that a door expects, until this value is dropped.
#[derive(Debug)]
pub(super) struct Expected {
    door: Arc<Door>,
    id: SessionId,
}

impl Expected {
    fn new(door: Arc<Door>, resume: &Resume) -> Self {
        door.inside().listener.expect(resume);
        Expected { door, id: resume.id }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let Inside { listener, new, .. } = &mut *self.door.inside();
        listener.forget(&self.id);
        new.remove(&self.id);
    }
}

/// Calls the peer's doors in turn, one at a time.
#[derive(Debug)]
pub(super) struct Caller {
    /// The first door is at the address of the first call.
    addrs: Vec<SocketAddr>,
    /// The door that is called, or that is the next.
    turn: usize,
    resume: Resume,
    call: Option<Call>,
    pause: Duration,
    next: Instant,
    /// Whether the peer's host has answered the last call, once that is known.
    host_answers: Option<bool>,
}

/// A call under way.
#[derive(Debug)]
struct Call {
    stream: OobStream,
    calling: Calling,
    is_up: bool,
    since: Instant,
}

impl Caller {
    /// Calls at another address of the peer too. An address of the peer's loopback is one of this host.
    pub(super) fn call_at(&mut self, addr: SocketAddr) {
        let is_elsewhere = addr.ip().is_loopback() && !self.addrs[0].ip().is_loopback();
        if is_elsewhere || self.addrs.contains(&addr) {
            return;
        }
        if self.addrs.len() == DOORS_MAX {
            self.give_up();
            self.turn = 0;
            self.addrs.remove(1);
        }
        self.addrs.push(addr);
        if self.call.is_none() {
            // The door that the connection goes through comes last.
            self.turn = self.turn.max(1);
        }
    }

    /// Whether the peer's host answers, if that is known.
    pub(super) fn host_answers(&self) -> Option<bool> {
        self.host_answers
    }

    fn poll(&mut self) -> Result<Option<OobStream>, StreamError> {
        let now = Instant::now();
        if self.call.is_none() && now < self.next {
            return Ok(None);
        }
        match self.go_on(now) {
            Ok(Some(stream)) => {
                (self.pause, self.host_answers) = (PAUSE[0], None);
                self.next_turn();
                Ok(Some(stream))
            }
            Ok(None) => Ok(None),
            // At the address of a rail, a firewall may be what refuses.
            Err(AuthError::Stream(StreamError::Os(libc::ECONNREFUSED))) if self.turn == 0 => {
                Err(StreamError::Closed)
            }
            Err(error @ (AuthError::Stream(_) | AuthError::HungUp)) => {
                log::debug!("calling {} again: {error}", self.addrs[self.turn]);
                if matches!(&error, AuthError::Stream(error) if super::is_unreachable(error)) {
                    let is_up = self.call.as_ref().is_some_and(|call| call.is_up);
                    self.host_answers = Some(is_up);
                }
                self.give_up();
                self.next_turn();
                if self.turn == 0 {
                    self.next = now + self.pause;
                    self.pause = (2 * self.pause).min(PAUSE[1]);
                }
                Ok(None)
            }
            Err(error) => {
                log::info!("calling {} again: {error}", self.addrs[self.turn]);
                Err(StreamError::Closed)
            }
        }
    }

    fn next_turn(&mut self) {
        self.turn = (self.turn + 1) % self.addrs.len();
    }

    /// Gives up a call. Nothing of it may reach the peer later, for the peer takes the newest call.
    fn give_up(&mut self) {
        if let Some(call) = self.call.take() {
            // This fails only if the socket does not exist.
            let _ = call.stream.leave_nothing_behind();
        }
    }

    fn go_on(&mut self, now: Instant) -> Result<Option<OobStream>, AuthError> {
        let call = match &mut self.call {
            Some(call) => call,
            call => {
                let stream = OobStream::connect(self.addrs[self.turn])?;
                let nonce = random().map_err(super::os)?;
                let calling = Calling::resuming(&self.resume, nonce);
                call.insert(Call { stream, calling, is_up: false, since: now })
            }
        };
        let is_up = call.is_up || call.stream.poll_connected()?;
        if is_up && !call.is_up {
            (call.is_up, call.since) = (true, now);
            self.host_answers = Some(true);
        }
        if !is_up && now.duration_since(call.since) >= SILENT_AFTER {
            self.host_answers = Some(false);
        }
        if is_up && call.calling.poll(&mut call.stream)?.is_some() {
            return Ok(self.call.take().map(|call| call.stream));
        }
        let within = if is_up { PROVE_WITHIN } else { REACH_WITHIN };
        if now.duration_since(call.since) >= within {
            return Err(StreamError::Os(libc::ETIMEDOUT).into());
        }
        Ok(None)
    }
}

/// Returns a number for the network namespace of a socket; 0 where the kernel has none.
fn namespace(socket: &impl AsRawFd) -> u64 {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    let value = (&raw mut cookie).cast();
    // SAFETY: `cookie` has room for the `len` bytes that the kernel may write.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len) };
    if got == 0 { cookie } else { 0 }
}
