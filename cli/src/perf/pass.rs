//! A pass: messages of one size, from the view of each end.
//!
//! The loops here are timed. They allocate nothing and make no system call of their own while messages
//! flow.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use invar::{MemoryRegion, Request};

use super::link::Link;
use super::message::{Kind, Pass, slot_bytes};
use super::pattern::{Flow, Pattern};
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
struct StallTimer {
    idle_calls: u32,
    since: Option<Instant>,
}

impl StallTimer {
    /// Notes that something moved.
    #[inline]
    fn renew(&mut self) {
        self.idle_calls = 0;
    }

    /// Notes a call without progress, and fails if there were none for too long.
    #[inline]
    fn idle(&mut self) -> Result<(), Failure> {
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

impl Link {
    /// Sends an empty message each way, so that a network that drops packets shows before anything is
    /// measured. On the wire of NCCL 2.14 these messages also end the handshake.
    pub(super) fn try_out(&mut self) -> Result<(), Failure> {
        let Link { send, recv, outgoing, incoming, .. } = self;
        let (mut sending, mut receiving) = (None, None);
        let (mut sent, mut received) = (false, false);
        patiently(|| {
            if receiving.is_none() {
                receiving = recv.irecv(&[(incoming, 0..0, 0)])?;
            }
            if sending.is_none() {
                sending = send.isend(outgoing, 0..0, 0)?;
            }
            if let Some(request) = sending.as_ref().filter(|_| !sent) {
                sent = send.test(request)?.is_some();
            }
            if let Some(request) = receiving.as_ref().filter(|_| !received) {
                received = recv.test(request)?.is_some();
            }
            Ok((sent && received).then_some(()))
        })
    }

    /// Sends the messages of a pass. The clock starts once the first `lead` messages are done and no other
    /// has started. Returns the time from then until all messages are done.
    pub(super) fn transmit(&mut self, pass: &Pass, lead: u64) -> Result<Duration, Failure> {
        let pattern = Pattern::new(self.seed, pass.number, Flow::ToServer, pass.size);
        let all_there = self.post_empty()?;
        let Link { send, outgoing, recvs, requests, .. } = self;
        let size = pass.size as usize;
        requests.clear();
        requests.resize_with(usize::from(pass.slots), || None);
        let (mut to_start, mut to_end) = (Slots::new(pass), Slots::new(pass));
        let mut stall = StallTimer::default();
        let (mut started, mut done, mut tag) = (0, 0, 0);
        // The slot of the next message, whose bytes are written but whose send has not started.
        let mut ready: Option<(usize, usize)> = None;
        let mut oldest = to_end.advance().0;
        let mut start = Instant::now();
        while done < pass.messages {
            let last = if done < lead { lead } else { pass.messages };
            while started < last && started - done < u64::from(pass.slots) {
                let (slot, at) = match ready {
                    Some(ready) => ready,
                    None => {
                        let (slot, at) = to_start.advance();
                        match pass.kind {
                            Kind::Check => pattern.fill(outgoing, at, started)?,
                            Kind::Stream | Kind::PingPong => {
                                pattern.stamp(outgoing, at, started)?
                            }
                        }
                        *ready.insert((slot, at))
                    }
                };
                let Some(request) = send.isend(outgoing, at..at + size, tag)? else { break };
                requests[slot] = Some(request);
                ready = None;
                started += 1;
                tag = if tag + 1 == *recvs as u32 { 0 } else { tag + 1 };
            }
            let is_done = match &requests[oldest] {
                Some(request) => send.test(request)?.is_some(),
                None => false,
            };
            if is_done {
                requests[oldest] = None;
                oldest = to_end.advance().0;
                done += 1;
                stall.renew();
                if done == lead {
                    start = Instant::now();
                }
            } else {
                stall.idle()?;
            }
        }
        let elapsed = start.elapsed();
        patiently(|| Ok(self.recv.test(&all_there)?))?;
        Ok(elapsed)
    }

    /// Receives the messages of a pass, and returns how many bytes were wrong. Then an empty message tells
    /// the client that all are there. While that message is polled, the software NIC acknowledges the last
    /// one of the pass.
    pub(super) fn receive(&mut self, pass: &Pass) -> Result<u64, Failure> {
        self.end_last()?;
        let pattern = Pattern::new(self.seed, pass.number, Flow::ToServer, pass.size);
        let told = self.told(pass.size) as usize;
        let Link { recv, incoming, recvs, requests, .. } = self;
        let recvs = *recvs;
        let size = pass.size as usize;
        let rows = usize::from(pass.slots) / recvs;
        requests.clear();
        requests.resize_with(rows, || None);
        let (mut to_post, mut to_check) = (Slots::new(pass), Slots::new(pass));
        let mut stall = StallTimer::default();
        let (mut posted, mut done, mut wrong) = (0, 0, 0);
        let (mut newest, mut oldest) = (0, 0);
        while done < pass.messages {
            while posted < pass.messages && requests[newest].is_none() {
                let at = to_post.next * to_post.stride;
                let buf = |r: usize| {
                    let at = at + r * to_post.stride;
                    (&*incoming, at..at + size, r as u32)
                };
                let bufs: [(&MemoryRegion, Range<usize>, u32); 8] = std::array::from_fn(buf);
                let Some(request) = recv.irecv(&bufs[..recvs])? else { break };
                requests[newest] = Some(request);
                newest = if newest + 1 == rows { 0 } else { newest + 1 };
                (0..recvs).for_each(|_| _ = to_post.advance());
                posted += recvs as u64;
            }
            let received = match &requests[oldest] {
                Some(request) => recv.test(request)?,
                None => None,
            };
            let Some(received) = received else {
                stall.idle()?;
                continue;
            };
            requests[oldest] = None;
            oldest = if oldest + 1 == rows { 0 } else { oldest + 1 };
            for got in received.sizes() {
                let (_, at) = to_check.advance();
                wrong += got.abs_diff(told) as u64;
                wrong += match pass.kind {
                    Kind::Check => pattern.wrong(incoming, at, done)?,
                    Kind::Stream | Kind::PingPong => pattern.stamp_wrong(incoming, at, done)?,
                };
                done += 1;
            }
            stall.renew();
        }
        let Link { send, outgoing, all_there, .. } = self;
        *all_there = Some(patiently(|| Ok(send.isend(outgoing, 0..0, 0)?))?);
        Ok(wrong)
    }

    /// Waits for the empty message of the last pass. The client's next message acknowledges it, if nothing
    /// has before.
    fn end_last(&mut self) -> Result<(), Failure> {
        let sent = self.all_there.take();
        self.finish(sent)
    }

    /// Whether the empty message of the last pass, if there is one, is acknowledged.
    pub(super) fn has_ended_last(&mut self) -> Result<bool, Failure> {
        let Some(sent) = &self.all_there else { return Ok(true) };
        let has_ended = self.send.test(sent)?.is_some();
        if has_ended {
            self.all_there = None;
        }
        Ok(has_ended)
    }

    fn post_empty(&mut self) -> Result<Request, Failure> {
        let Link { recv, incoming, .. } = self;
        patiently(|| Ok(recv.irecv(&[(incoming, 0..0, 0)])?))
    }

    /// Sends single messages that come back. Calls `took` with the time of each round trip, and returns
    /// how many bytes were wrong.
    pub(super) fn ping(
        &mut self,
        pass: &Pass,
        mut took: impl FnMut(u64, Duration),
    ) -> Result<u64, Failure> {
        let (there, back) = self.flows(pass);
        let mut wrong = 0;
        let mut ahead = [self.post(pass, 0)?, self.post(pass, 1)?];
        for message in 0..pass.messages {
            there.stamp(&self.outgoing, 0, message)?;
            let answer = &mut ahead[(message % 2) as usize];
            let start = Instant::now();
            let mut sent = Some(self.start(pass)?);
            if self.moves_in_calls {
                // Without a test a long message would not leave.
                self.finish(sent.take())?;
            }
            wrong += self.arrived(pass, answer)?;
            took(message, start.elapsed());
            wrong += back.stamp_wrong(&self.incoming, 0, message)?;
            *answer = self.post(pass, message + 2)?;
            self.finish(sent)?;
        }
        Ok(wrong)
    }

    /// Answers the messages of [`Link::ping`].
    pub(super) fn pong(&mut self, pass: &Pass) -> Result<u64, Failure> {
        self.end_last()?;
        let (there, back) = self.flows(pass);
        let mut wrong = 0;
        let mut ahead = [self.post(pass, 0)?, self.post(pass, 1)?];
        for message in 0..pass.messages {
            back.stamp(&self.outgoing, 0, message)?;
            let call = &mut ahead[(message % 2) as usize];
            wrong += self.arrived(pass, call)?;
            // The client sends the next message only after the answer.
            wrong += there.stamp_wrong(&self.incoming, 0, message)?;
            let sent = self.start(pass)?;
            *call = self.post(pass, message + 2)?;
            self.finish(Some(sent))?;
        }
        Ok(wrong)
    }

    fn flows(&self, pass: &Pass) -> (Pattern, Pattern) {
        let flow = |flow| Pattern::new(self.seed, pass.number, flow, pass.size);
        (flow(Flow::ToServer), flow(Flow::ToClient))
    }

    /// Posts the receive of number `message`, if the pass has so many. Two receives are posted
    /// ahead, so that no message waits.
    fn post(&mut self, pass: &Pass, message: u64) -> Result<Option<Request>, Failure> {
        if message >= pass.messages {
            return Ok(None);
        }
        let Link { recv, incoming, .. } = self;
        let bufs = [(&*incoming, 0..pass.size as usize, 0)];
        patiently(|| Ok(recv.irecv(&bufs)?)).map(Some)
    }

    fn start(&mut self, pass: &Pass) -> Result<Request, Failure> {
        let Link { send, outgoing, .. } = self;
        patiently(|| Ok(send.isend(outgoing, 0..pass.size as usize, 0)?))
    }

    /// Waits until a message is sent, if there is one.
    fn finish(&mut self, sent: Option<Request>) -> Result<(), Failure> {
        let Some(sent) = sent else { return Ok(()) };
        patiently(|| Ok(self.send.test(&sent)?)).map(|_| ())
    }

    /// Waits for a message, and returns by how many bytes its length is wrong.
    fn arrived(&mut self, pass: &Pass, posted: &Option<Request>) -> Result<u64, Failure> {
        let Some(posted) = posted else { return Ok(0) };
        let received = patiently(|| Ok(self.recv.test(posted)?))?;
        Ok(received.sizes().iter().map(|got| got.abs_diff(pass.size as usize) as u64).sum())
    }
}

/// Asks until there is an answer.
#[inline]
fn patiently<T>(mut ask: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let mut stall = StallTimer::default();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        stall.idle()?;
    }
}
