//! A rank's side: requests under way, and the responses that have come (`proxy.cc
//! ncclProxyCallAsync`, `ncclPollProxyResponse`).

use heapless::{String, Vec};

use super::wire::{Kind, REQUEST_BYTES, Request, Response};
use crate::inbox::{BODY_BYTES_MAX, FrameError, Inbox};
use crate::proxy::banks::Row;
use crate::proxy::{Banks, ConnectionId};

/// A request that a response is expected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(super) u64);

/// Most bytes of the text that says why a request was refused.
const TEXT_BYTES: usize = 160;

/// Requests under way to one proxy, as many as there is memory for. `Fd` is what the host has for a
/// file descriptor.
#[derive(Debug)]
pub struct Calls<Fd, B> {
    last_id: u64,
    expected: Row<Expected<Fd>, B>,
    inbox: Inbox<Response>,
    /// What came with the message that is under way.
    fd: Option<Fd>,
}

/// A response that is expected.
#[derive(Debug)]
pub struct Expected<Fd> {
    id: u64,
    kind: Kind,
    len: u32,
    response: Option<Answer<Fd>>,
}

#[derive(Debug)]
struct Answer<Fd> {
    refused: bool,
    body: Vec<u8, BODY_BYTES_MAX>,
    fd: Option<Fd>,
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<Fd> {
    /// It is done.
    Done {
        /// The file descriptor that came with the response.
        fd: Option<Fd>,
    },
    /// The proxy did not do it.
    Refused {
        /// What was asked for.
        kind: Kind,
        /// What the proxy says.
        text: String<TEXT_BYTES>,
    },
}

/// Why a request can't be made, or a response not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// As many are under way as there is memory for; poll for their responses first.
    #[error("{0:?}: {1} requests to the proxy are under way already, and no memory is left")]
    TooMany(Kind, u32),
    /// A body that is larger than any.
    #[error("{0:?}: a body of {1} bytes, at most {BODY_BYTES_MAX} are allowed")]
    TooLong(Kind, usize),
    /// No such request is under way.
    #[error("request {0} is not under way")]
    NotUnderWay(u64),
    /// A response to nothing that was asked.
    #[error("the proxy answers request {0}, which is not under way")]
    Unexpected(u64),
    /// A second response.
    #[error("{0:?}: the proxy answers request {1} twice")]
    Twice(Kind, u64),
    /// A response of another size.
    #[error("{kind:?}: the proxy answers with {len} bytes instead of {expected}")]
    Mismatch {
        /// What was asked for.
        kind: Kind,
        /// Bytes that came.
        len: u32,
        /// Bytes that should have.
        expected: u32,
    },
    /// Other room for the response than the request was made with.
    #[error("{kind:?}: room for {len} bytes, but the response has {expected}")]
    Room {
        /// What was asked for.
        kind: Kind,
        /// Bytes of room.
        len: usize,
        /// Bytes to come.
        expected: u32,
    },
    /// A file descriptor is announced and not there, or the reverse.
    #[error("{0:?}: the proxy's answer and the file descriptors with it do not agree")]
    Fd(Kind),
    /// The response can't be read.
    #[error("the proxy sends {0}")]
    Frame(#[from] FrameError),
}

impl<Fd, B: Banks<Option<Expected<Fd>>>> Calls<Fd, B> {
    /// None, with memory for those that will be.
    pub fn new(banks: B) -> Self {
        Calls { last_id: 0, expected: Row::new(banks), inbox: Inbox::new(), fd: None }
    }

    /// Begins a request: the bytes to be sent before the body, and for what to
    /// [`poll`](Calls::poll).
    pub fn call(
        &mut self,
        kind: Kind,
        connection: ConnectionId,
        body: &[u8],
        response_len: usize,
    ) -> Result<(CallId, [u8; REQUEST_BYTES]), CallError> {
        if let Some(len) = [body.len(), response_len].into_iter().find(|n| *n > BODY_BYTES_MAX) {
            return Err(CallError::TooLong(kind, len));
        }
        let (id, len) = (self.last_id + 1, response_len as u32);
        if !self.expected.push(Expected { id, kind, len, response: None }) {
            return Err(CallError::TooMany(kind, self.expected.len()));
        }
        self.last_id = id;
        let header = Request { kind, connection, id, len: body.len() as u32, response_len: len };
        Ok((CallId(id), header.to_bytes()))
    }

    /// Begins a request that has no response: [`Kind::Close`] or [`Kind::Stop`].
    pub fn tell(kind: Kind) -> [u8; REQUEST_BYTES] {
        let connection = ConnectionId::default();
        Request { kind, connection, id: 0, len: 0, response_len: 0 }.to_bytes()
    }

    /// Where the next bytes from the proxy belong.
    pub fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// `n` bytes have come into [`Calls::space`], and `fd` with them. After an error the stream is
    /// of no more use.
    pub fn filled(&mut self, n: usize, fd: Option<Fd>) -> Result<(), CallError> {
        self.fd = self.fd.take().or(fd);
        let Some((header, body)) = self.inbox.filled(n)? else { return Ok(()) };
        let Response { id, refused, has_fd, len } = header;
        let place = self.expected.position(|expected| expected.id == id);
        let expected = place.and_then(|place| self.expected.get_mut(place));
        let expected = expected.ok_or(CallError::Unexpected(id))?;
        let kind = expected.kind;
        if expected.response.is_some() {
            return Err(CallError::Twice(kind, id));
        }
        if len != expected.len && !refused {
            return Err(CallError::Mismatch { kind, len, expected: expected.len });
        }
        let fd = self.fd.take();
        if fd.is_some() != has_fd {
            return Err(CallError::Fd(kind));
        }
        // No longer than a body may be: the inbox has looked.
        let body = Vec::from_slice(body).unwrap_or_default();
        expected.response = Some(Answer { refused, body, fd });
        Ok(())
    }

    /// The response, if it has come: its body is copied to `response`, which is as long as was
    /// said to [`Calls::call`].
    pub fn poll(
        &mut self,
        id: CallId,
        response: &mut [u8],
    ) -> Result<Option<Outcome<Fd>>, CallError> {
        let unknown = CallError::NotUnderWay(id.0);
        let Some(place) = self.expected.position(|expected| expected.id == id.0) else {
            return Err(unknown);
        };
        let expected = self.expected.get_mut(place).ok_or(unknown)?;
        let (kind, len) = (expected.kind, expected.len);
        if len as usize != response.len() {
            return Err(CallError::Room { kind, len: response.len(), expected: len });
        }
        let Some(Answer { refused, body, fd }) = expected.response.take() else { return Ok(None) };
        self.expected.swap_remove(place);
        if refused {
            let mut text = String::new();
            for piece in body.utf8_chunks() {
                // What does not fit is cut off.
                piece.valid().chars().all(|c| text.push(c).is_ok());
            }
            return Ok(Some(Outcome::Refused { kind, text }));
        }
        response.copy_from_slice(&body);
        Ok(Some(Outcome::Done { fd }))
    }
}
