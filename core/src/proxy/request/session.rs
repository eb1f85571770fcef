//! The proxy's side of one rank (`proxy.cc ncclProxyService`).

use core::fmt::{self, Write};

use heapless::Vec;

use super::connection::{Connections, Place, Setup, State};
use super::wire::{Init, Kind, RESPONSE_BYTES, Request, Response};
use crate::inbox::{BODY_BYTES_MAX, FrameError, Inbox};
use crate::proxy::banks::Row;
use crate::proxy::{Banks, Slot};

/// What one rank asks for. As many requests may take longer as it has connections: one that waited
/// behind others could be what those wait for, by way of the peer.
#[derive(Debug)]
pub struct Session<B> {
    number: u32,
    inbox: Inbox<Request>,
    pending: Row<Pending, B>,
    /// Which of the pending was asked last.
    turn: u32,
}

/// A request that takes longer.
#[derive(Debug)]
pub struct Pending {
    header: Request,
    body: Vec<u8, BODY_BYTES_MAX>,
}

/// A response to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<Fd> {
    /// Its bytes, in two pieces.
    pub header: [u8; RESPONSE_BYTES],
    /// The second.
    pub body: Vec<u8, BODY_BYTES_MAX>,
    /// What goes with the first byte.
    pub fd: Option<Fd>,
}

/// What a request comes to at once.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "handed on at once, and the large one is usual")]
pub enum SessionEvent<Fd> {
    /// It is done, or refused.
    Reply(Reply<Fd>),
    /// The rank is done: end the session.
    Close,
    /// The proxy is to end, once all sessions have.
    Stop,
}

impl<B: Banks<Option<Pending>>> Session<B> {
    /// A session, of a number that no other has, with memory for what is pending.
    pub fn new(number: u32, banks: B) -> Self {
        Session { number, inbox: Inbox::new(), pending: Row::new(banks), turn: 0 }
    }

    /// Where the next bytes from the rank belong; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// How many requests are pending, and [`Session::progress`] is worth as many calls.
    pub fn pending(&self) -> u32 {
        self.pending.len()
    }

    /// `n` bytes have come into [`Session::space`]. After an error the session is to be ended.
    pub fn filled<S: Setup>(
        &mut self,
        n: usize,
        connections: &mut Connections<impl Banks<Slot<Place>>>,
        setup: &mut S,
    ) -> Result<Option<SessionEvent<S::Fd>>, FrameError> {
        let Some((header, body)) = self.inbox.filled(n)? else { return Ok(None) };
        let id = header.connection;
        let word = |body: &[u8]| body.try_into().map(u32::from_le_bytes).map_err(|_| Refusal::Body);
        let done = match header.kind {
            Kind::Close => return Ok(Some(SessionEvent::Close)),
            Kind::Stop => return Ok(Some(SessionEvent::Stop)),
            Kind::Init => open(self.number, &header, body, connections, setup),
            Kind::Setup | Kind::Connect => {
                let body = Vec::from_slice(body).unwrap_or_default();
                let pended = ready(self.number, &header, connections).and_then(|place| {
                    place.busy = self.pending.push(Pending { header, body });
                    if place.busy { Ok(()) } else { Err(Refusal::NoMemory("request")) }
                });
                match pended {
                    Ok(()) => return Ok(None),
                    Err(refusal) => Err(refusal),
                }
            }
            Kind::SharedInit => ready(self.number, &header, connections)
                .and_then(|place| Ok((place, word(body)?)))
                .and_then(|(place, nchannels)| {
                    setup.shared_init(id, nchannels).map_err(Refusal::Setup)?;
                    place.state = State::SharedInitialized;
                    Ok(Answer { body: Vec::new(), fd: None })
                }),
            Kind::ConvertFd => ready(self.number, &header, connections)
                .and_then(|_| word(body))
                .and_then(|handle| setup.convert_fd(id, handle).map_err(Refusal::Setup))
                .map(|fd| Answer { body: Vec::new(), fd: Some(fd) }),
        };
        Ok(Some(SessionEvent::Reply(reply(&header, done))))
    }

    /// Asks one of the pending requests, each in its turn, and gives its response once it is done.
    pub fn progress<S: Setup>(
        &mut self,
        connections: &mut Connections<impl Banks<Slot<Place>>>,
        setup: &mut S,
    ) -> Option<Reply<S::Fd>> {
        self.turn = (self.turn + 1).checked_rem(self.pending.len())?;
        let Pending { header, body } = self.pending.get(self.turn)?;
        let (header, id) = (*header, header.connection);
        let mut response = Vec::<u8, BODY_BYTES_MAX>::new();
        // The inbox has looked at the length.
        let _ = response.resize(header.response_len as usize, 0);
        let (asked, state) = match header.kind {
            Kind::Setup => (setup.setup(id, body, &mut response), State::SetUp),
            _ => (setup.connect(id, body, &mut response), State::Connected),
        };
        let done = match asked {
            Ok(false) => return None,
            Ok(true) => Ok(Answer { body: response, fd: None }),
            Err(error) => Err(Refusal::Setup(error)),
        };
        if let Some(place) = connections.of(self.number, id) {
            place.busy = false;
            place.state = if done.is_ok() { state } else { place.state };
        }
        self.pending.swap_remove(self.turn);
        Some(reply(&header, done))
    }

    /// Ends the session: what is pending is forgotten, its connections are closed.
    pub fn end(
        self,
        connections: &mut Connections<impl Banks<Slot<Place>>>,
        setup: &mut impl Setup,
    ) {
        connections.close_all(self.number, setup);
    }
}

struct Answer<Fd> {
    body: Vec<u8, BODY_BYTES_MAX>,
    fd: Option<Fd>,
}

/// Why a request is refused.
enum Refusal<E> {
    Init(&'static str),
    NoMemory(&'static str),
    NotYours,
    Busy,
    State(State),
    Body,
    Response(u32),
    Setup(E),
}

impl<E: fmt::Display> fmt::Display for Refusal<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Init(why) => f.write_str(why),
            Refusal::NoMemory(what) => write!(f, "no memory for one more bank of {what}s"),
            Refusal::NotYours => f.write_str("not a connection of this rank"),
            Refusal::Busy => f.write_str("something else is being done with it"),
            Refusal::State(state) => write!(f, "not where it is: {state:?}"),
            Refusal::Body => f.write_str("its body is not of 4 bytes"),
            Refusal::Response(len) => write!(f, "has no response of {len} bytes"),
            Refusal::Setup(error) => error.fmt(f),
        }
    }
}

fn open<S: Setup>(
    session: u32,
    header: &Request,
    body: &[u8],
    connections: &mut Connections<impl Banks<Slot<Place>>>,
    setup: &mut S,
) -> Result<Answer<S::Fd>, Refusal<S::Error>> {
    if header.response_len != 4 {
        return Err(Refusal::Response(header.response_len));
    }
    let init = Init::parse(body).map_err(Refusal::Init)?;
    let id = connections.open(session, init.local_rank).ok_or(Refusal::NoMemory("connection"))?;
    match setup.open(id, init) {
        Ok(fd) => {
            let body = Vec::from_slice(&id.0.to_le_bytes()).unwrap_or_default();
            Ok(Answer { body, fd })
        }
        Err(error) => {
            connections.forget(id);
            Err(Refusal::Setup(error))
        }
    }
}

/// The connection, if it is the session's and where this may be asked for.
fn ready<'a, E>(
    session: u32,
    header: &Request,
    connections: &'a mut Connections<impl Banks<Slot<Place>>>,
) -> Result<&'a mut Place, Refusal<E>> {
    let Request { kind, connection, response_len, .. } = *header;
    if matches!(kind, Kind::SharedInit | Kind::ConvertFd) && response_len != 0 {
        return Err(Refusal::Response(response_len));
    }
    let place = connections.of(session, connection).ok_or(Refusal::NotYours)?;
    if place.busy {
        return Err(Refusal::Busy);
    }
    let allowed: &[State] = match kind {
        Kind::SharedInit => &[State::Initialized],
        Kind::Setup => &[State::Initialized, State::SharedInitialized],
        Kind::Connect => &[State::SetUp],
        _ => &[State::SetUp, State::Connected],
    };
    if allowed.contains(&place.state) { Ok(place) } else { Err(Refusal::State(place.state)) }
}

/// The response to a request; what is refused says of which connection and why.
fn reply<Fd, E: fmt::Display>(header: &Request, done: Result<Answer<Fd>, Refusal<E>>) -> Reply<Fd> {
    let refused = done.is_err();
    let Answer { body, fd } = match done {
        Ok(answer) => answer,
        Err(refusal) => {
            let mut body = Vec::new();
            // What does not fit is cut off.
            let _ = write!(body, "connection {}: {refusal}", header.connection);
            Answer { body, fd: None }
        }
    };
    let response =
        Response { id: header.id, refused, has_fd: fd.is_some(), len: body.len() as u32 };
    Reply { header: response.to_bytes(), body, fd }
}
