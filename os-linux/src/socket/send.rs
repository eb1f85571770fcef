//! The sending end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use invar_core::comm::{Request, SendBuf};
use invar_core::conn::StreamError;
use invar_core::error::{Ends, Error};
use invar_core::fifo::DEPTH_MAX;
use invar_core::socket::{FRAME_BYTES, Links, Outgoing, Sender};

use super::RecvComm;
use super::lane::{Lanes, Way};
use crate::memory::{Gather, Scatter, read_raw};
use crate::tcp::OobStream;

/// Messages, and about how many bytes, that go into one system call.
const BATCH_MESSAGES: usize = 16;
const BATCH_BYTES: usize = 1 << 20;

/// Up to so many bytes, frame included, a message alone is rather put together here: a list of two
/// pieces takes the kernel longer.
const COPIED_BYTES: usize = 1024;

/// The sending end of a connection. Dropping it closes it; what was sent still arrives.
pub struct SendComm {
    // Its threads end before anything else.
    lanes: Lanes<usize>,
    sender: Box<Sender>,
    main: OobStream,
    control: OobStream,
    /// First bytes of the messages, by the index of their requests.
    starts: Box<[NonNull<u8>; DEPTH_MAX]>,
    /// The buffer in which a short message is put together.
    short: Box<[u8; COPIED_BYTES]>,
    ends: Ends,
}

// SAFETY: the pointers are to memory that `isend` was promised, whichever thread goes on.
unsafe impl Send for SendComm {}

impl SendComm {
    /// `truncates`: whether a message longer than its buffer is cut to it.
    pub(super) fn new(links: Links<OobStream>, threads: u16, truncates: bool) -> Self {
        let Links { control, main, lanes, ends } = links;
        let sender = Box::new(Sender::new(lanes.len() as u16).truncating(truncates));
        let lanes = Lanes::new(lanes, Way::Send, threads);
        let starts = Box::new([NonNull::dangling(); DEPTH_MAX]);
        SendComm { lanes, sender, main, control, starts, short: Box::new([0; COPIED_BYTES]), ends }
    }

    /// The receiving end of messages back, over the same sockets: each is a stream both ways, of
    /// which this end uses one. For once, where the peer does the same before it sends: an
    /// acknowledgement then travels with the next message back, and not as a packet of its own.
    ///
    /// Sockets are closed with the later of both ends. What is then unread resets them, so that
    /// both sides have to have received all that was sent.
    pub fn way_back(&mut self) -> io::Result<RecvComm> {
        let (lanes, threads) = self.lanes.streams();
        let links = cloned(&self.control, &self.main, lanes, &self.ends)?;
        let mut comm = RecvComm::new(links, threads);
        comm.goes_both_ways();
        Ok(comm)
    }

    /// Takes on a message, whether or not the peer has posted a buffer for it: up to 4 MiB in 256
    /// messages may go ahead. `None`, where that or the requests are used up: call again.
    ///
    /// The message moves when any request is tested. Keys are ignored.
    ///
    /// # Errors
    /// [`Error::SizeMismatch`] where the buffer is known and shorter, unless messages are cut
    /// ([`Settings::truncate`](super::Settings)), and [`Error::TooLong`]: the connection goes on. Others stay: every later call gives the same.
    ///
    /// # Safety
    /// The buffer stays valid, and is not written by anyone, until the request is done or this
    /// end is dropped.
    pub unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, Error> {
        let start = pointer(buf.addr, buf.len)?;
        if self.sender.wants_news(buf.len, tag) {
            self.read_control()?;
        }
        let Some((request, chunks)) = self.sender.isend(buf.len, tag)? else { return Ok(None) };
        self.starts[request.row()] = start;
        if chunks.clone().next().is_some() {
            for chunk in chunks {
                let (offset, len) = (chunk.offset as usize, chunk.len as usize);
                // SAFETY: a part of the buffer, of which the caller promises what `push` asks for.
                unsafe {
                    let start = start.add(offset);
                    self.lanes.push(chunk.lane.into(), start, len, request.row());
                }
            }
            self.lanes.wake();
        }
        Ok(Some(request))
    }

    /// The bytes of the buffer that a message with `tag` would meet; `None`, where the peer has
    /// posted none.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn room(&mut self, tag: u32) -> Result<Option<u32>, Error> {
        if self.sender.room(tag).is_none() {
            self.read_control()?;
        }
        Ok(self.sender.room(tag))
    }

    /// Whether a send is done, and then how many bytes it sent; the request is then over. Moves
    /// what there is to move, of all requests.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`]; or what ended the connection, the same on every call.
    pub fn test(&mut self, request: &Request) -> Result<Option<u32>, Error> {
        match self.sender.test(request) {
            Ok(None) => {
                self.progress();
                self.sender.test(request)
            }
            tested => tested,
        }
    }

    /// Looks whether the peer still has its end open, which an idle end does not notice by
    /// itself. Costs a system call: for now and then.
    ///
    /// # Errors
    /// The connection has failed. Requests that are done can still be tested.
    pub fn check_peer(&mut self) -> Result<(), Error> {
        self.read_control()
    }

    /// Sends under way: taken on, and not yet tested as done.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// The socket on which every message is announced.
    pub fn main_socket(&self) -> BorrowedFd<'_> {
        self.main.as_fd()
    }

    /// Both ends.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    fn progress(&mut self) {
        let Self { lanes, sender, .. } = self;
        let collected = lanes.collect(|index| sender.chunk_done(index));
        let written = if self.sender.has_outgoing() { self.write_main() } else { Ok(()) };
        if let Err(error) = collected.and(written) {
            self.broken(error);
        }
    }

    /// Writes frames and payload to main, as much as there is room for.
    fn write_main(&mut self) -> Result<(), StreamError> {
        loop {
            let (sent, bytes) = match self.sender.only_outgoing() {
                Some(only) if only.bytes() <= COPIED_BYTES => self.write_copied(&only)?,
                _ => self.write_batch()?,
            };
            self.sender.wrote(sent);
            if sent < bytes || !self.sender.has_outgoing() {
                return Ok(());
            }
        }
    }

    /// Writes a short message: how many bytes of how many.
    fn write_copied(&mut self, message: &Outgoing) -> Result<(usize, usize), StreamError> {
        let Outgoing { index, frame, frame_written, payload } = message;
        let (frame, short) = (&frame[*frame_written..], &mut self.short[..message.bytes()]);
        let (copied_frame, copied_payload) = short.split_at_mut(frame.len());
        copied_frame.copy_from_slice(frame);
        // SAFETY: within the message, which is not done, and which whoever sent it promised to keep.
        unsafe {
            let start = self.starts[*index].add(payload.start as usize);
            read_raw(start, copied_payload);
        }
        Ok((self.main.send_gather(&[Gather::bytes(short)])?, short.len()))
    }

    /// Writes several messages, or a long one: how many bytes of how many.
    fn write_batch(&mut self) -> Result<(usize, usize), StreamError> {
        let mut frames = [([0; FRAME_BYTES], 0); BATCH_MESSAGES];
        let mut payloads = [(NonNull::dangling(), 0); BATCH_MESSAGES];
        let (mut count, mut bytes) = (0, 0);
        for outgoing in self.sender.outgoing().take(BATCH_MESSAGES) {
            let offset = outgoing.payload.start as usize;
            // SAFETY: within the message.
            let start = unsafe { self.starts[outgoing.index].add(offset) };
            payloads[count] = (start, outgoing.payload.len());
            frames[count] = (outgoing.frame, outgoing.frame_written);
            bytes += outgoing.bytes();
            count += 1;
            if bytes >= BATCH_BYTES {
                break;
            }
        }
        let mut pieces = [Gather::bytes(&[]); 2 * BATCH_MESSAGES];
        for (i, (frame, written)) in frames[..count].iter().enumerate() {
            pieces[2 * i] = Gather::bytes(&frame[*written..]);
            let (start, len) = payloads[i];
            // SAFETY: a part of a message that is not done, which whoever sent it promised
            // to keep.
            pieces[2 * i + 1] = unsafe { Gather::from_raw(start, len) };
        }
        Ok((self.main.send_gather(&pieces[..2 * count])?, bytes))
    }

    /// Takes what the peer has posted.
    fn read_control(&mut self) -> Result<(), Error> {
        let mut bytes = [0; 256 * FRAME_BYTES];
        loop {
            if let Some(error) = self.sender.end() {
                return Err(error);
            }
            match self.control.recv_scatter(&mut [Scatter::bytes(&mut bytes)]) {
                Ok(received) => {
                    self.sender.take_control(&bytes[..received])?;
                    if received < bytes.len() {
                        return Ok(());
                    }
                }
                Err(error) => self.sender.fail(Error::PeerClosed(error)),
            }
        }
    }

    /// A socket is of no more use. Why, the peer may have told.
    #[cold]
    fn broken(&mut self, error: StreamError) {
        if self.read_control().is_ok() {
            self.sender.fail(Error::PeerClosed(error));
        }
    }
}

impl Drop for SendComm {
    /// Where the other way is still open, the peer learns here that nothing more comes.
    fn drop(&mut self) {
        self.main.end_sending();
        self.lanes.streams().0.for_each(OobStream::end_sending);
    }
}

/// The sockets of a connection once more, for messages the other way.
///
/// Both ends now send on all sockets, so that none is left to keepalive. Control gives up a silent
/// peer instead. The frames on it are few, since a sender reads those of its peer at the latest when
/// [`AHEAD_MESSAGES`](invar_core::socket::AHEAD_MESSAGES) are ahead. So the buffers of a peer that
/// does not read still take them in, and its host acknowledges them.
pub(super) fn cloned<'a>(
    control: &OobStream,
    main: &OobStream,
    lanes: impl Iterator<Item = &'a OobStream>,
    ends: &Ends,
) -> io::Result<Links<OobStream>> {
    control.bound_silence()?;
    Ok(Links {
        control: control.try_clone()?,
        main: main.try_clone()?,
        lanes: lanes.map(OobStream::try_clone).collect::<io::Result<_>>()?,
        ends: ends.clone(),
    })
}

/// An address of a buffer, of which an empty one may have none.
pub(super) fn pointer(addr: u64, len: u32) -> Result<NonNull<u8>, Error> {
    match NonNull::new(std::ptr::with_exposed_provenance_mut(addr as usize)) {
        Some(start) => Ok(start),
        None if len == 0 => Ok(NonNull::dangling()),
        None => Err(Error::Argument("a buffer at address 0")),
    }
}
