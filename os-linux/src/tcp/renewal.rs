//! Making a connection anew with the same peer, though the kernel has given the old one up.
//!
//! The end that called calls again, at the door of its peer: one listener for each local address of a
//! process. The listener that took the first call may be closed by then. Both ends prove that they know the
//! secret of the session, so nobody else can take the place of either.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use invar_core::auth::{AuthError, Calling, Resume, Session, SessionId};
use invar_core::conn::stage::Side;
use invar_core::conn::{Stream, StreamError};
use invar_core::param::PortRange;

use super::{AuthListener, OobStream, Proof};
use crate::clock::now_ns;
use crate::random::random;

/// Time for a call to reach the peer's host. Later the kernel would wait too long before it tries again.
const REACH_WITHIN: Duration = Duration::from_secs(1);
/// Time for both ends to prove themselves.
const PROVE_WITHIN: Duration = Duration::from_secs(3);
/// The first and the longest pause between two calls.
const PAUSE: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Time between two looks at a door, which many ends share.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The doors of this process, by place.
static DOORS: Mutex<Vec<(DoorKey, Weak<Door>)>> = Mutex::new(Vec::new());

/// The place of a door. A child of `fork` needs doors of its own, and so does each network namespace.
#[derive(Clone, Copy, PartialEq)]
struct DoorKey {
    process: u32,
    namespace: u64,
    addr: SocketAddr,
}

/// A listener at which peers make connections anew.
#[derive(Debug)]
pub(super) struct Door {
    port: u16,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    listener: AuthListener,
    /// The new connections that their ends have not taken yet.
    new: HashMap<SessionId, OobStream>,
    looked: Option<Instant>,
}

impl Door {
    /// Returns the door at the local address of a connection, and opens it if there is none. Returns `None`
    /// if `ports` is a single port, since another listener needs that port.
    ///
    /// # Errors
    /// No port is free, or a system call fails.
    pub(super) fn of_process(
        stream: &TcpStream,
        ports: PortRange,
    ) -> io::Result<Option<Arc<Door>>> {
        if ports.single().is_some() {
            return Ok(None);
        }
        let mut addr = stream.local_addr()?;
        addr.set_port(0);
        let place = DoorKey { process: process::id(), namespace: namespace(stream), addr };
        let mut doors = DOORS.lock().unwrap_or_else(PoisonError::into_inner);
        doors.retain(|(_, door)| door.strong_count() > 0);
        let known = doors.iter().find(|(at, _)| *at == place);
        if let Some(door) = known.and_then(|(_, door)| door.upgrade()) {
            return Ok(Some(door));
        }
        let listener = AuthListener::bind(addr, ports, Proof::Session)?;
        let port = listener.local_addr()?.port();
        let inside = Inside { listener, new: HashMap::new(), looked: None };
        let door = Arc::new(Door { port, inside: Mutex::new(inside) });
        doors.push((place, Arc::downgrade(&door)));
        Ok(Some(door))
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the new connection of a session, if the peer has called.
    fn take(&self, id: &SessionId) -> Option<OobStream> {
        let Inside { listener, new, looked } = &mut *self.inside();
        let now = Instant::now();
        if looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            *looked = Some(now);
            // Whoever has proved itself is let in under this lock, before it can close its old connection.
            loop {
                match listener.poll_resumed(now_ns()) {
                    Ok(Some((stream, id))) => _ = new.insert(id, stream),
                    Ok(None) => break,
                    Err(error) => {
                        log::debug!("taking connections that are made anew: {error}");
                        break;
                    }
                }
            }
        }
        new.remove(id)
    }
}

/// How an end gets a new connection.
#[derive(Debug)]
pub(super) enum Renewal {
    Call(Box<Caller>),
    Answer(Expected),
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
            let door = Arc::clone(stream.door.as_ref()?);
            door.inside().listener.expect(&resume);
            return Some(Renewal::Answer(Expected { door, id: resume.id }));
        }
        let mut addr = stream.peer;
        addr.set_port(peer_port);
        let caller = Caller { addr, resume, call: None, pause: PAUSE[0], next: Instant::now() };
        (peer_port != 0).then(|| Renewal::Call(Box::new(caller)))
    }

    /// Returns the new connection, if there is one.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if the peer's end lives no more.
    pub(super) fn poll(&mut self) -> Result<Option<OobStream>, StreamError> {
        match self {
            Renewal::Call(caller) => caller.poll(),
            Renewal::Answer(expected) => Ok(expected.door.take(&expected.id)),
        }
    }
}

/// A session that a door expects, until this value is dropped.
#[derive(Debug)]
pub(super) struct Expected {
    door: Arc<Door>,
    id: SessionId,
}

impl Drop for Expected {
    fn drop(&mut self) {
        let Inside { listener, new, .. } = &mut *self.door.inside();
        listener.forget(&self.id);
        new.remove(&self.id);
    }
}

/// Calls the peer's door.
#[derive(Debug)]
pub(super) struct Caller {
    addr: SocketAddr,
    resume: Resume,
    call: Option<Call>,
    pause: Duration,
    next: Instant,
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
    fn poll(&mut self) -> Result<Option<OobStream>, StreamError> {
        let now = Instant::now();
        if self.call.is_none() && now < self.next {
            return Ok(None);
        }
        match self.go_on(now) {
            Ok(Some(stream)) => {
                self.pause = PAUSE[0];
                Ok(Some(stream))
            }
            Ok(None) => Ok(None),
            Err(AuthError::Stream(StreamError::Os(libc::ECONNREFUSED))) => Err(StreamError::Closed),
            Err(error @ (AuthError::Stream(_) | AuthError::HungUp)) => {
                log::debug!("calling {} again: {error}", self.addr);
                self.call = None;
                self.next = now + self.pause;
                self.pause = (2 * self.pause).min(PAUSE[1]);
                Ok(None)
            }
            Err(error) => {
                log::info!("calling {} again: {error}", self.addr);
                Err(StreamError::Closed)
            }
        }
    }

    fn go_on(&mut self, now: Instant) -> Result<Option<OobStream>, AuthError> {
        let call = match &mut self.call {
            Some(call) => call,
            call => {
                let stream = OobStream::connect(self.addr)?;
                let nonce = random().map_err(super::os)?;
                let calling = Calling::resuming(&self.resume, nonce);
                call.insert(Call { stream, calling, is_up: false, since: now })
            }
        };
        let is_up = call.is_up || call.stream.poll_connected()?;
        if is_up && !call.is_up {
            (call.is_up, call.since) = (true, now);
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
