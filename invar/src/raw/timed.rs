//! Ends that keep the times of their messages, for `INVAR_RECORDER=2`.
//!
//! Such an end wraps another one and has no fast paths, so it sees each call. At the other levels of the flight
//! recorder ends are not wrapped, and their calls pay nothing.

use std::slice;

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::error::{Ends, Error as CoreError};
use invar_core::fifo::RECVS_MAX;
use invar_core::recorder::MessageRing;
use invar_core::stall::FlightRecorder;
use invar_linux::clock::now_ns;
use invar_linux::interest::Interest;

use super::end::{Carrier, End, RecvEnd, SendEnd, copy_sizes};
use super::keeper::{Attention, Rest};
use super::kind::{AnyRecv, AnySend};
use super::recorded::Snapshot;
use crate::Error;

/// The outcome of a call that starts a message.
type Started = Result<Option<Request>, CoreError>;

/// An end, and the times of its last messages.
struct TimedEnd<E> {
    end: E,
    messages: MessageRing,
}

/// Returns a sending end as `wrap` makes it. If the flight recorder keeps the times of messages, returns an end that
/// notes them.
pub(super) fn send_end<E: SendEnd + 'static>(
    end: Box<E>,
    recorder: FlightRecorder,
    wrap: impl FnOnce(Box<E>) -> AnySend,
) -> AnySend {
    match recorder {
        FlightRecorder::Messages => {
            AnySend::Custom(Box::new(TimedEnd::<Box<dyn SendEnd>>::new(end)))
        }
        FlightRecorder::Off | FlightRecorder::Events => wrap(end),
    }
}

/// Returns a receiving end, as [`send_end`] returns a sending one.
pub(super) fn recv_end<E: RecvEnd + 'static>(
    end: Box<E>,
    recorder: FlightRecorder,
    wrap: impl FnOnce(Box<E>) -> AnyRecv,
) -> AnyRecv {
    match recorder {
        FlightRecorder::Messages => {
            AnyRecv::Custom(Box::new(TimedEnd::<Box<dyn RecvEnd>>::new(end)))
        }
        FlightRecorder::Off | FlightRecorder::Events => wrap(end),
    }
}

impl<E: End> TimedEnd<E> {
    fn new(end: E) -> Self {
        TimedEnd { end, messages: MessageRing::default() }
    }

    /// Notes the messages that have become done.
    fn settle(&mut self) {
        let Self { end, messages } = self;
        messages.settle(|request| end.is_done(request), now_ns);
    }
}

impl<E: End> End for TimedEnd<E> {
    fn ends(&self) -> Ends {
        self.end.ends()
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        self.end.carriers(request)
    }

    fn needs_calls(&self) -> bool {
        self.end.needs_calls()
    }

    fn arm(&mut self, interest: &mut Interest) {
        self.end.arm(interest);
    }

    fn close(self: Box<Self>) {
        Box::new(self.end).close();
    }

    fn look(&mut self) -> Attention {
        let attention = self.end.look();
        self.settle();
        attention
    }

    fn attention(&self) -> Attention {
        self.end.attention()
    }

    fn rest(&self) -> Option<Rest<'_>> {
        self.end.rest()
    }

    fn park(&mut self, is_asleep: bool) {
        self.end.park(is_asleep);
    }

    fn called(&mut self) {
        self.end.called();
    }

    fn snapshot(&self, counts: bool) -> Option<Snapshot> {
        let messages = self.messages.iter().copied().collect();
        Some(Snapshot { messages, ..self.end.snapshot(counts)? })
    }

    fn is_done(&mut self, request: &Request) -> bool {
        self.end.is_done(request)
    }
}

impl SendEnd for TimedEnd<Box<dyn SendEnd>> {
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Started {
        // A call over TCP may write the whole message.
        let now_ns = now_ns();
        // SAFETY: the caller has promised what `isend` demands.
        let started = unsafe { self.end.isend(buf, tag) }?;
        match &started {
            Some(request) => self.messages.post(request, tag, buf.len.into(), 1, now_ns),
            None => self.messages.ask(tag, now_ns),
        }
        Ok(started)
    }

    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        let room = self.end.room(tag)?;
        if room.is_none() {
            self.messages.ask(tag, now_ns());
        }
        Ok(room)
    }

    fn is_settled(&self) -> bool {
        self.end.is_settled()
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        let sent = self.end.test(request)?;
        self.settle();
        if let Some(sent) = sent {
            self.messages.test(request, sent.into(), now_ns());
        }
        Ok(sent)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        // The recorder keeps nothing of the way back.
        self.end.way_back()
    }
}

impl TimedEnd<Box<dyn RecvEnd>> {
    /// Posts a receive, and notes it.
    fn post(
        &mut self,
        bufs: &[RecvBuf],
        post: impl FnOnce(&mut Box<dyn RecvEnd>) -> Started,
    ) -> Started {
        let now_ns = now_ns();
        let started = post(&mut self.end)?;
        let tag = bufs.first().map_or(0, |buf| buf.tag);
        match &started {
            Some(request) => {
                let bytes = bufs.iter().map(|buf| u64::from(buf.len)).sum();
                self.messages.post(request, tag, bytes, bufs.len() as u32, now_ns);
            }
            None => self.messages.ask(tag, now_ns),
        }
        Ok(started)
    }
}

impl RecvEnd for TimedEnd<Box<dyn RecvEnd>> {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Started {
        // SAFETY: the caller has promised what `irecv` demands.
        self.post(bufs, |end| unsafe { end.irecv(bufs) })
    }

    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Started {
        // SAFETY: the caller has promised what `irecv_ahead` demands.
        self.post(slice::from_ref(buf), |end| unsafe { end.irecv_ahead(buf) })
    }

    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        // SAFETY: the caller has promised what `iflush` demands.
        unsafe { self.end.iflush(bufs) }
    }

    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        let mut received = [0; RECVS_MAX];
        // SAFETY: no receive has more buffers than `received` has sizes.
        let buffers = unsafe { self.end.test(request, received.as_mut_ptr()) }?;
        self.settle();
        if let Some(buffers) = buffers {
            let received = &received[..buffers.min(RECVS_MAX)];
            let bytes = received.iter().map(|size| u64::from(*size)).sum();
            self.messages.test(request, bytes, now_ns());
            // SAFETY: the caller has promised that `sizes` is null or has room for all sizes.
            unsafe { copy_sizes(received, sizes) };
        }
        Ok(buffers)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        // The recorder keeps nothing of the way back.
        self.end.way_back()
    }
}

#[cfg(test)]
mod tests;
