//! The rank's side of requests: requests in progress, and the responses that have arrived (`proxy.cc
//! ncclProxyCallAsync`, `ncclPollProxyResponse`).

use heapless::{String, Vec};

use super::wire::{Kind, ProxyRequest, REQUEST_BYTES, Response};
use crate::inbox::{BODY_BYTES_MAX, FrameError, Inbox};
use crate::proxy::banks::BankRow;
use crate::proxy::{Banks, ConnectionId};

/// Number of a request that expects a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(super) u64);

/// Most bytes of the text that says why the proxy refused a request.
const TEXT_BYTES: usize = 160;

/// The requests in progress to one proxy, limited by the memory of the banks. `Fd` is the host's type
/// for a file descriptor.
#[derive(Debug)]
pub struct Calls<Fd, B> {
    last_id: u64,
    expected: BankRow<Expected<Fd>, B>,
    inbox: Inbox<Response>,
    /// The file descriptor that came with the message that is still arriving.
    fd: Option<Fd>,
}

/// A response that the rank expects.
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

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<Fd> {
    /// The proxy has completed the request.
    Done {
        /// The file descriptor that came with the response.
        fd: Option<Fd>,
    },
    /// The proxy has refused the request.
    Refused {
        /// The kind of the refused request.
        kind: Kind,
        /// The text that the proxy sent as the reason.
        text: String<TEXT_BYTES>,
    },
}

/// The reason why a rank can't make a request or read a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Requests in progress fill the memory; poll for their responses first.
    #[error("{0:?}: {1} requests to the proxy are under way already, and no memory is left")]
    TooMany(Kind, u32),
    /// A body is longer than [`BODY_BYTES_MAX`].
    #[error("{0:?}: a body of {1} bytes, at most {BODY_BYTES_MAX} are allowed")]
    TooLong(Kind, usize),
    /// No request with this number is in progress.
    #[error("request {0} is not under way")]
    NotUnderWay(u64),
    /// The proxy has answered a request that is not in progress.
    #[error("the proxy answers request {0}, which is not under way")]
    Unexpected(u64),
    /// The proxy has answered a request twice.
    #[error("{0:?}: the proxy answers request {1} twice")]
    Twice(Kind, u64),
    /// The response has another length than the request asked for.
    #[error("{kind:?}: the proxy answers with {len} bytes instead of {expected}")]
    Mismatch {
        /// The kind of the request.
        kind: Kind,
        /// Bytes of the response.
        len: u32,
        /// Bytes that the request asked for.
        expected: u32,
    },
    /// The caller's buffer has another length than the request asked for.
    #[error("{kind:?}: room for {len} bytes, but the response has {expected}")]
    Room {
        /// The kind of the request.
        kind: Kind,
        /// Bytes of the caller's buffer.
        len: usize,
        /// Bytes of the response.
        expected: u32,
    },
    /// The response announces a file descriptor that did not come, or the reverse.
    #[error("{0:?}: the proxy's answer and the file descriptors with it do not agree")]
    Fd(Kind),
    /// The response is malformed.
    #[error("the proxy sends {0}")]
    Frame(#[from] FrameError),
}

impl<Fd, B: Banks<Option<Expected<Fd>>>> Calls<Fd, B> {
    /// Creates a set without requests; `banks` is the memory for later ones.
    pub fn new(banks: B) -> Self {
        Calls { last_id: 0, expected: BankRow::new(banks), inbox: Inbox::new(), fd: None }
    }

    /// Begins a request. Returns its number for [`poll`](Calls::poll) and the header that the caller
    /// must send before the body.
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
        let header =
            ProxyRequest { kind, connection, id, len: body.len() as u32, response_len: len };
        Ok((CallId(id), header.to_bytes()))
    }

    /// Returns the header of a request that has no response: [`Kind::Close`] or [`Kind::Stop`].
    pub fn tell(kind: Kind) -> [u8; REQUEST_BYTES] {
        let connection = ConnectionId::default();
        ProxyRequest { kind, connection, id: 0, len: 0, response_len: 0 }.to_bytes()
    }

    /// Returns the buffer that the next bytes from the proxy belong in.
    pub fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Tells the calls that `n` bytes have arrived in [`Calls::space`], and `fd` with them. After an
    /// error the caller must stop using the stream.
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
        // The inbox has checked that the body is not longer than [`BODY_BYTES_MAX`].
        let body = Vec::from_slice(body).unwrap_or_default();
        expected.response = Some(Answer { refused, body, fd });
        Ok(())
    }

    /// Returns the result of a request if its response has arrived, and copies the body to `response`.
    /// The length of `response` must be the one given to [`Calls::call`].
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
                // Text that does not fit is cut off.
                piece.valid().chars().all(|c| text.push(c).is_ok());
            }
            return Ok(Some(Outcome::Refused { kind, text }));
        }
        response.copy_from_slice(&body);
        Ok(Some(Outcome::Done { fd }))
    }
}
