//! The proxy's side of one rank's requests (`proxy.cc ncclProxyService`).

use core::fmt::{self, Write};

use heapless::Vec;

use super::connection::{ConnectionEntry, Connections, Setup, State};
use super::wire::{Init, Kind, ProxyRequest, RESPONSE_BYTES, Response};
use crate::inbox::{BODY_BYTES_MAX, FrameError, Inbox};
use crate::proxy::banks::BankRow;
use crate::proxy::{BankSlot, Banks};

/// The requests of one rank. A session can have one pending request for each connection. If a request
/// had to wait behind others, the others could wait for it by way of the peer.
#[derive(Debug)]
pub struct ProxySession<B> {
    number: u32,
    inbox: Inbox<ProxyRequest>,
    pending: BankRow<Pending, B>,
    /// Index of the pending request that was asked last.
    turn: u32,
}

/// A request that the proxy can't complete at once.
#[derive(Debug)]
pub struct Pending {
    header: ProxyRequest,
    body: Vec<u8, BODY_BYTES_MAX>,
}

/// A response that the host must send to the rank.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<Fd> {
    /// The header of the response, which goes before the body.
    pub header: [u8; RESPONSE_BYTES],
    /// The body of the response.
    pub body: Vec<u8, BODY_BYTES_MAX>,
    /// The file descriptor that goes with the first byte.
    pub fd: Option<Fd>,
}

/// The immediate result of a request.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "handed on at once, and the large one is usual")]
pub enum SessionEvent<Fd> {
    /// The proxy has completed or refused the request.
    Reply(Reply<Fd>),
    /// The rank is done, so the host must end the session.
    Close,
    /// The proxy must end once all sessions have ended.
    Stop,
}

impl<B: Banks<Option<Pending>>> ProxySession<B> {
    /// Creates a session. `number` must differ from the number of every other session; `banks` is the
    /// memory for pending requests.
    pub fn new(number: u32, banks: B) -> Self {
        ProxySession { number, inbox: Inbox::new(), pending: BankRow::new(banks), turn: 0 }
    }

    /// Returns the buffer that the next bytes from the rank belong in. The buffer is never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Returns the number of pending requests. One call of [`ProxySession::progress`] for each of them asks
    /// them all.
    pub fn pending(&self) -> u32 {
        self.pending.len()
    }

    /// Tells the session that `n` bytes have arrived in [`ProxySession::space`]. After an error the host
    /// must end the session.
    pub fn filled<S: Setup>(
        &mut self,
        n: usize,
        connections: &mut Connections<impl Banks<BankSlot<ConnectionEntry>>>,
        setup: &mut S,
    ) -> Result<Option<SessionEvent<S::Fd>>, FrameError> {
        let Some((header, body)) = self.inbox.filled(n)? else { return Ok(None) };
        let id = header.connection;
        let done = match header.kind {
            Kind::Close => return Ok(Some(SessionEvent::Close)),
            Kind::Stop => return Ok(Some(SessionEvent::Stop)),
            Kind::Init => open(self.number, &header, body, connections, setup),
            Kind::Setup | Kind::Connect => {
                let body = Vec::from_slice(body).unwrap_or_default();
                let pended = ready(self.number, &header, connections).and_then(|place| {
                    place.busy = self.pending.push(Pending { header, body });
                    if place.busy { Ok(()) } else { Err(SessionRefusal::NoMemory("request")) }
                });
                match pended {
                    Ok(()) => return Ok(None),
                    Err(refusal) => Err(refusal),
                }
            }
            Kind::ConvertFd => ready(self.number, &header, connections)
                .and_then(|_| body.try_into().map_err(|_| SessionRefusal::Body))
                .map(u32::from_le_bytes)
                .and_then(|handle| setup.convert_fd(id, handle).map_err(SessionRefusal::Setup))
                .map(|fd| Answer { body: Vec::new(), fd: Some(fd) }),
        };
        Ok(Some(SessionEvent::Reply(reply(&header, done))))
    }

    /// Asks the next pending request, in turn, and returns its response once it is done.
    pub fn progress<S: Setup>(
        &mut self,
        connections: &mut Connections<impl Banks<BankSlot<ConnectionEntry>>>,
        setup: &mut S,
    ) -> Option<Reply<S::Fd>> {
        self.turn = (self.turn + 1).checked_rem(self.pending.len())?;
        let Pending { header, body } = self.pending.get(self.turn)?;
        let (header, id) = (*header, header.connection);
        let mut response = Vec::<u8, BODY_BYTES_MAX>::new();
        // The inbox has checked the length.
        let _ = response.resize(header.response_len as usize, 0);
        let (asked, state) = match header.kind {
            Kind::Setup => (setup.setup(id, body, &mut response), State::SetUp),
            _ => (setup.connect(id, body, &mut response), State::Connected),
        };
        let done = match asked {
            Ok(false) => return None,
            Ok(true) => Ok(Answer { body: response, fd: None }),
            Err(error) => Err(SessionRefusal::Setup(error)),
        };
        if let Some(place) = connections.of(self.number, id) {
            place.busy = false;
            place.state = if done.is_ok() { state } else { place.state };
        }
        self.pending.swap_remove(self.turn);
        Some(reply(&header, done))
    }

    /// Ends the session: it drops the pending requests and closes the connections of the session.
    pub fn end(
        self,
        connections: &mut Connections<impl Banks<BankSlot<ConnectionEntry>>>,
        setup: &mut impl Setup,
    ) {
        connections.close_all(self.number, setup);
    }
}

struct Answer<Fd> {
    body: Vec<u8, BODY_BYTES_MAX>,
    fd: Option<Fd>,
}

/// The reason why the proxy refuses a request.
enum SessionRefusal<E> {
    Init(&'static str),
    NoMemory(&'static str),
    NotYours,
    Busy,
    State(State),
    Body,
    Response(u32),
    Setup(E),
}

impl<E: fmt::Display> fmt::Display for SessionRefusal<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionRefusal::Init(why) => f.write_str(why),
            SessionRefusal::NoMemory(what) => write!(f, "no memory for one more bank of {what}s"),
            SessionRefusal::NotYours => f.write_str("not a connection of this rank"),
            SessionRefusal::Busy => f.write_str("something else is being done with it"),
            SessionRefusal::State(state) => write!(f, "not where it is: {state:?}"),
            SessionRefusal::Body => f.write_str("its body is not of 4 bytes"),
            SessionRefusal::Response(len) => write!(f, "has no response of {len} bytes"),
            SessionRefusal::Setup(error) => error.fmt(f),
        }
    }
}

fn open<S: Setup>(
    session: u32,
    header: &ProxyRequest,
    body: &[u8],
    connections: &mut Connections<impl Banks<BankSlot<ConnectionEntry>>>,
    setup: &mut S,
) -> Result<Answer<S::Fd>, SessionRefusal<S::Error>> {
    if header.response_len != 4 {
        return Err(SessionRefusal::Response(header.response_len));
    }
    let init = Init::parse(body).map_err(SessionRefusal::Init)?;
    let id =
        connections.open(session, init.local_rank).ok_or(SessionRefusal::NoMemory("connection"))?;
    match setup.open(id, init) {
        Ok(fd) => {
            let body = Vec::from_slice(&id.0.to_le_bytes()).unwrap_or_default();
            Ok(Answer { body, fd })
        }
        Err(error) => {
            connections.forget(id);
            Err(SessionRefusal::Setup(error))
        }
    }
}

/// Returns the connection if the session owns it and its state allows the request.
fn ready<'a, E>(
    session: u32,
    header: &ProxyRequest,
    connections: &'a mut Connections<impl Banks<BankSlot<ConnectionEntry>>>,
) -> Result<&'a mut ConnectionEntry, SessionRefusal<E>> {
    let ProxyRequest { kind, connection, response_len, .. } = *header;
    if kind == Kind::ConvertFd && response_len != 0 {
        return Err(SessionRefusal::Response(response_len));
    }
    let place = connections.of(session, connection).ok_or(SessionRefusal::NotYours)?;
    if place.busy {
        return Err(SessionRefusal::Busy);
    }
    let allowed: &[State] = match kind {
        Kind::Setup => &[State::Initialized],
        Kind::Connect => &[State::SetUp],
        _ => &[State::SetUp, State::Connected],
    };
    if allowed.contains(&place.state) { Ok(place) } else { Err(SessionRefusal::State(place.state)) }
}

/// The response to a request. If the proxy refuses the request, the text names the connection and the
/// reason.
fn reply<Fd, E: fmt::Display>(
    header: &ProxyRequest,
    done: Result<Answer<Fd>, SessionRefusal<E>>,
) -> Reply<Fd> {
    let refused = done.is_err();
    let Answer { body, fd } = match done {
        Ok(answer) => answer,
        Err(refusal) => {
            let mut body = Vec::new();
            // Text that does not fit is cut off.
            let _ = write!(body, "connection {}: {refusal}", header.connection);
            Answer { body, fd: None }
        }
    };
    let response =
        Response { id: header.id, refused, has_fd: fd.is_some(), len: body.len() as u32 };
    Reply { header: response.to_bytes(), body, fd }
}
