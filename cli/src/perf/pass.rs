//! A pass: messages of one size, from the view of each end.

use std::time::{Duration, Instant};

use invar::{MemoryRegion, RecvComm, Request};

use super::flow::{Receiving, Sending, StallTimer};
use super::link::Link;
use super::message::Pass;
use super::pattern::{Flow, Pattern};
use super::usage::{Stretch, Used};
use crate::failure::Failure;

/// The receive of the peer's empty message, behind those of a pass. While it is polled, the software NIC
/// acknowledges the messages before it.
#[derive(Default)]
struct LastReceive {
    posted: Option<Request>,
    has_come: bool,
}

impl LastReceive {
    /// Posts the receive, or looks at it. Returns whether the message is there.
    fn poll(&mut self, recv: &mut RecvComm, incoming: &MemoryRegion) -> Result<bool, Failure> {
        match &self.posted {
            None => self.posted = recv.irecv(&[(incoming, 0..0, 0)])?,
            Some(posted) if !self.has_come => self.has_come = recv.test(posted)?.is_some(),
            Some(_) => {}
        }
        Ok(self.has_come)
    }
}

/// A peer's packets arrive within this time, unless they are lost.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// Pacing: the least time between the starts of two messages, and the messages from which it counts.
pub(super) struct Pace {
    pub(super) each: Duration,
    pub(super) lead: u64,
}

impl Pace {
    /// How many messages may have started, this long after those of the lead were done.
    #[inline]
    pub(super) fn started_max(&self, elapsed: Duration) -> u64 {
        let more = elapsed.as_nanos() / self.each.as_nanos().max(1);
        self.lead.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)).saturating_add(1)
    }
}

impl Link {
    /// Sends an empty message each way, so that a network that drops packets shows before anything is
    /// measured. On the wire of NCCL 2.14 these messages also end the handshake. The failure of a NIC says
    /// whether packets of the peer arrived.
    pub(super) fn try_out(&mut self) -> Result<(), Failure> {
        let Link { send, recv, outgoing, incoming, moves_in_calls: is_tcp, .. } = self;
        let start = Instant::now();
        let (mut sending, mut receiving) = (None, None);
        let (mut sent, mut received) = (false, false);
        let tried = until(|| {
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
        });
        // A message starts once the slot that the peer has written for it is there.
        let has_heard = sending.is_some() || received;
        let is_known = !*is_tcp && (has_heard || start.elapsed() >= HEARD_WITHIN);
        tried.map_err(|failure| if is_known { failure.of_device(has_heard) } else { failure })
    }

    /// Sends the messages of a pass, each at least `pace` after the one before. The clock starts once the
    /// first messages, those of the lead, are done and no other has started. Returns the time from then until
    /// all messages are done.
    pub(super) fn transmit(
        &mut self,
        pass: &Pass,
        pace: Option<Duration>,
    ) -> Result<Used, Failure> {
        let pattern = Pattern::new(self.seed, pass.number, Flow::ToServer, pass.size);
        let all_there = self.post_empty()?;
        let Link { send, outgoing, recvs, requests, .. } = self;
        let mut sending = Sending::new(pass, pattern, *recvs, requests);
        let pace = pace.map(|each| Pace { each, lead: pass.lead });
        let mut stall = StallTimer::default();
        let mut stretch = Stretch::begin();
        while !sending.is_done() {
            let started_max = match &pace {
                Some(pace) if sending.done >= pass.lead => pace.started_max(stretch.elapsed()),
                _ => u64::MAX,
            };
            if sending.advance(send, outgoing, requests, started_max)? {
                stall.renew();
                if sending.done == pass.lead {
                    stretch = Stretch::begin();
                }
            } else if sending.started == sending.done && sending.started >= started_max {
                // The peer waits for this end, which is not stuck.
                stall.renew();
            } else {
                stall.idle()?;
            }
        }
        let used = stretch.end();
        until(|| Ok(self.recv.test(&all_there)?))?;
        Ok(used)
    }

    /// Receives the messages of a pass. Returns how many bytes were wrong, and the time that the messages
    /// after the lead took. Then an empty message tells the client that all are there. While that message is
    /// polled, the software NIC acknowledges the last one of the pass.
    pub(super) fn receive(&mut self, pass: &Pass) -> Result<(u64, Used), Failure> {
        self.end_last()?;
        let pattern = Pattern::new(self.seed, pass.number, Flow::ToServer, pass.size);
        let told = self.told(pass.size) as usize;
        let Link { recv, incoming, recvs, requests, .. } = self;
        let mut receiving = Receiving::new(pass, pattern, [*recvs, told], requests);
        let mut stall = StallTimer::default();
        let mut stretch = Stretch::begin();
        let mut is_timed = pass.lead == 0;
        while !receiving.is_done() {
            if receiving.advance(recv, incoming, requests)? {
                stall.renew();
                if !is_timed && receiving.done >= pass.lead {
                    is_timed = true;
                    stretch = Stretch::begin();
                }
            } else {
                stall.idle()?;
            }
        }
        let (wrong, used) = (receiving.wrong, stretch.end());
        let Link { send, outgoing, all_there, .. } = self;
        *all_there = Some(until(|| Ok(send.isend(outgoing, 0..0, 0)?))?);
        Ok((wrong, used))
    }

    /// Sends the messages of a pass and receives as many at the same time. Returns how many bytes were wrong,
    /// and the time from the end of the lead until all messages are there and all are sent. The last message
    /// each way is empty. Each end polls until it has come.
    pub(super) fn exchange(&mut self, pass: &Pass, ours: Flow) -> Result<(u64, Used), Failure> {
        self.end_last()?;
        let (there, back) = self.flows(pass);
        let (outward, inward) = match ours {
            Flow::ToServer => (there, back),
            Flow::ToClient => (back, there),
        };
        let told = self.told(pass.size) as usize;
        let is_tcp = self.moves_in_calls;
        let Link { send, recv, outgoing, incoming, recvs, requests, receives, all_there, .. } =
            self;
        let mut last = LastReceive::default();
        let mut sending = Sending::new(pass, outward, *recvs, requests);
        let mut receiving = Receiving::new(pass, inward, [*recvs, told], receives);
        let mut stall = StallTimer::default();
        let mut stretch = Stretch::begin();
        while !sending.is_done() || !receiving.is_done() {
            let mut moved = false;
            if !sending.is_done() && sending.advance(send, outgoing, requests, u64::MAX)? {
                moved = true;
                if sending.done == pass.lead {
                    stretch = Stretch::begin();
                }
            }
            if receiving.is_done() {
                last.poll(recv, incoming)?;
            } else {
                moved |= receiving.advance(recv, incoming, receives)?;
            }
            if moved { stall.renew() } else { stall.idle()? }
        }
        let (wrong, used) = (receiving.wrong, stretch.end());
        let (mut has_started, mut has_left) = (false, false);
        until(|| {
            match all_there {
                Some(sent) => has_left = send.test(sent)?.is_some(),
                None if !has_started => *all_there = send.isend(outgoing, 0..0, 0)?,
                None => {}
            }
            has_started |= all_there.is_some();
            if has_left {
                *all_there = None;
            }
            let has_come = last.poll(recv, incoming)?;
            // Over TCP the message would not leave without a test.
            let is_on_its_way = has_left || has_started && !is_tcp;
            Ok((has_come && is_on_its_way).then_some(()))
        })?;
        Ok((wrong, used))
    }

    /// Waits for this end's empty message of the last pass. The peer's next message acknowledges it, if nothing
    /// has before.
    pub(super) fn end_last(&mut self) -> Result<(), Failure> {
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
        until(|| Ok(recv.irecv(&[(incoming, 0..0, 0)])?))
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
        until(|| Ok(recv.irecv(&bufs)?)).map(Some)
    }

    fn start(&mut self, pass: &Pass) -> Result<Request, Failure> {
        let Link { send, outgoing, .. } = self;
        until(|| Ok(send.isend(outgoing, 0..pass.size as usize, 0)?))
    }

    /// Waits until a message is sent, if there is one.
    fn finish(&mut self, sent: Option<Request>) -> Result<(), Failure> {
        let Some(sent) = sent else { return Ok(()) };
        until(|| Ok(self.send.test(&sent)?)).map(|_| ())
    }

    /// Waits for a message, and returns by how many bytes its length is wrong.
    fn arrived(&mut self, pass: &Pass, posted: &Option<Request>) -> Result<u64, Failure> {
        let Some(posted) = posted else { return Ok(0) };
        let received = until(|| Ok(self.recv.test(posted)?))?;
        Ok(received.sizes().iter().map(|got| got.abs_diff(pass.size as usize) as u64).sum())
    }
}

/// Asks until there is an answer.
#[inline]
fn until<T>(mut ask: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let mut stall = StallTimer::default();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        stall.idle()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_lets_one_message_start_each_time() {
        let pace = Pace { each: Duration::from_micros(10), lead: 5 };
        let started_max = |us| pace.started_max(Duration::from_micros(us));
        assert_eq!(
            [started_max(0), started_max(9), started_max(10), started_max(99)],
            [6, 6, 7, 15]
        );
    }
}
