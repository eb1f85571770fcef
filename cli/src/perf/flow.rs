//! One way of a pass: the messages that one end sends, and the messages that the other receives.
//!
//! The steps here are timed. They allocate nothing and make no system call of their own while messages
//! flow.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use invar::{MemoryRegion, RecvComm, Request, SendComm};

use super::message::{Kind, Pass, slot_bytes};
use super::pattern::Pattern;
use crate::failure::Failure;

/// Time after which a peer that moves nothing is stuck.
const STALL: Duration = Duration::from_secs(60);
/// Calls without progress until other threads may run, and until the clock is read.
const IDLE_CALLS: u32 = 16;

/// The places of a pass's messages in a region: slots, used one after another and again.
struct Slots {
    stride: usize,
    count: usize,
    next: usize,
}

impl Slots {
    fn new(pass: &Pass) -> Self {
        Slots { stride: slot_bytes(pass.size), count: usize::from(pass.slots), next: 0 }
    }

    /// The slot after the last one: its number and its offset.
    #[inline]
    fn advance(&mut self) -> (usize, usize) {
        let slot = self.next;
        self.next = if slot + 1 == self.count { 0 } else { slot + 1 };
        (slot, slot * self.stride)
    }
}

/// A wait for messages that has a bound.
#[derive(Default)]
pub(super) struct StallTimer {
    idle_calls: u32,
    since: Option<Instant>,
}

impl StallTimer {
    /// Notes that something moved.
    #[inline]
    pub(super) fn renew(&mut self) {
        self.idle_calls = 0;
    }

    /// Notes a call without progress, and fails if there were none for too long.
    #[inline]
    pub(super) fn idle(&mut self) -> Result<(), Failure> {
        self.idle_calls = self.idle_calls.wrapping_add(1);
        if self.idle_calls.is_multiple_of(IDLE_CALLS) { self.wait() } else { Ok(()) }
    }

    #[cold]
    fn wait(&mut self) -> Result<(), Failure> {
        if self.idle_calls == IDLE_CALLS {
            self.since = Some(Instant::now());
        }
        if self.since.is_some_and(|since| since.elapsed() >= STALL) {
            let text = format!("no message for {} s, though the peer is there", STALL.as_secs());
            return Err(Failure::new(text));
        }
        // On a busy host the peer may wait for this thread's processor.
        thread::yield_now();
        Ok(())
    }
}

/// The messages that this end sends in a pass.
pub(super) struct Sending {
    pattern: Pattern,
    pass: Pass,
    recvs: u32,
    to_start: Slots,
    to_end: Slots,
    pub(super) started: u64,
    pub(super) done: u64,
    tag: u32,
    /// The slot of the next message, whose bytes are written but whose send has not started.
    ready: Option<(usize, usize)>,
    oldest: usize,
}

impl Sending {
    /// Makes room for the requests.
    pub(super) fn new(
        pass: &Pass,
        pattern: Pattern,
        recvs: usize,
        requests: &mut Vec<Option<Request>>,
    ) -> Self {
        requests.clear();
        requests.resize_with(usize::from(pass.slots), || None);
        let (to_start, mut to_end) = (Slots::new(pass), Slots::new(pass));
        let oldest = to_end.advance().0;
        Sending {
            pattern,
            pass: *pass,
            recvs: recvs as u32,
            to_start,
            to_end,
            started: 0,
            done: 0,
            tag: 0,
            ready: None,
            oldest,
        }
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.done == self.pass.messages
    }

    /// Starts the messages for which there is room, up to `started_max`, and looks at the oldest one. The
    /// messages of the lead are done before others start. Returns whether one is done.
    #[inline]
    pub(super) fn advance(
        &mut self,
        send: &mut SendComm,
        outgoing: &MemoryRegion,
        requests: &mut [Option<Request>],
        started_max: u64,
    ) -> Result<bool, Failure> {
        let Pass { size, messages, lead, slots, kind, .. } = self.pass;
        let last = if self.done < lead { lead } else { messages }.min(started_max);
        while self.started < last && self.started - self.done < u64::from(slots) {
            let (slot, at) = match self.ready {
                Some(ready) => ready,
                None => {
                    let (slot, at) = self.to_start.advance();
                    match kind {
                        Kind::Check => self.pattern.fill(outgoing, at, self.started)?,
                        Kind::Stream | Kind::Exchange | Kind::PingPong => {
                            self.pattern.stamp(outgoing, at, self.started)?
                        }
                    }
                    *self.ready.insert((slot, at))
                }
            };
            let range = at..at + size as usize;
            let Some(request) = send.isend(outgoing, range, self.tag)? else { break };
            requests[slot] = Some(request);
            self.ready = None;
            self.started += 1;
            self.tag = if self.tag + 1 == self.recvs { 0 } else { self.tag + 1 };
        }
        let is_done = match &requests[self.oldest] {
            Some(request) => send.test(request)?.is_some(),
            None => false,
        };
        if is_done {
            requests[self.oldest] = None;
            self.oldest = self.to_end.advance().0;
            self.done += 1;
        }
        Ok(is_done)
    }
}

/// The messages that this end receives in a pass.
pub(super) struct Receiving {
    pattern: Pattern,
    pass: Pass,
    recvs: usize,
    /// The length that a receive reports.
    told: usize,
    to_post: Slots,
    to_check: Slots,
    posted: u64,
    pub(super) done: u64,
    /// How many bytes were wrong.
    pub(super) wrong: u64,
    newest: usize,
    oldest: usize,
}

impl Receiving {
    /// Makes room for the requests, of which each takes `recvs` messages.
    pub(super) fn new(
        pass: &Pass,
        pattern: Pattern,
        [recvs, told]: [usize; 2],
        requests: &mut Vec<Option<Request>>,
    ) -> Self {
        requests.clear();
        requests.resize_with(usize::from(pass.slots) / recvs, || None);
        Receiving {
            pattern,
            pass: *pass,
            recvs,
            told,
            to_post: Slots::new(pass),
            to_check: Slots::new(pass),
            posted: 0,
            done: 0,
            wrong: 0,
            newest: 0,
            oldest: 0,
        }
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.done == self.pass.messages
    }

    /// Posts the receives for which there is room, and looks at the oldest one. Returns whether its messages
    /// are there.
    #[inline]
    pub(super) fn advance(
        &mut self,
        recv: &mut RecvComm,
        incoming: &MemoryRegion,
        requests: &mut [Option<Request>],
    ) -> Result<bool, Failure> {
        let (rows, size) = (requests.len(), self.pass.size as usize);
        while self.posted < self.pass.messages && requests[self.newest].is_none() {
            let (at, stride) = (self.to_post.next * self.to_post.stride, self.to_post.stride);
            let buf = |r: usize| {
                let at = at + r * stride;
                (incoming, at..at + size, r as u32)
            };
            let bufs: [(&MemoryRegion, Range<usize>, u32); 8] = std::array::from_fn(buf);
            let Some(request) = recv.irecv(&bufs[..self.recvs])? else { break };
            requests[self.newest] = Some(request);
            self.newest = if self.newest + 1 == rows { 0 } else { self.newest + 1 };
            (0..self.recvs).for_each(|_| _ = self.to_post.advance());
            self.posted += self.recvs as u64;
        }
        let received = match &requests[self.oldest] {
            Some(request) => recv.test(request)?,
            None => None,
        };
        let Some(received) = received else { return Ok(false) };
        requests[self.oldest] = None;
        self.oldest = if self.oldest + 1 == rows { 0 } else { self.oldest + 1 };
        for got in received.sizes() {
            let (_, at) = self.to_check.advance();
            self.wrong += got.abs_diff(self.told) as u64;
            self.wrong += match self.pass.kind {
                Kind::Check => self.pattern.wrong(incoming, at, self.done)?,
                Kind::Stream | Kind::Exchange | Kind::PingPong => {
                    self.pattern.stamp_wrong(incoming, at, self.done)?
                }
            };
            self.done += 1;
        }
        Ok(true)
    }
}
