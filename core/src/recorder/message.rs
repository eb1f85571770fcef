//! The times of an end's last messages.

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::RecordError;
use crate::fifo::RECVS_MAX;
use crate::request::Request;

/// Number of messages that an end and its record keep.
pub const MESSAGES: usize = 40;
/// Bytes of the messages behind a record.
pub(super) const MESSAGES_BYTES: usize = size_of::<MessagesBytes>();

/// The time of a step that a message has not reached.
const NEVER: u64 = u64::MAX;
/// A call that follows the last one with its tag after a longer time is for another message. A program that waits
/// sleeps for two seconds at most.
const GIVEN_UP_NS: u64 = 4_000_000_000;

/// A message of an end and the times of its steps, in nanoseconds on the clock of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTimes {
    /// Number of messages that the end had posted before.
    pub number: u64,
    /// The number of the message's request, as [`Request::raw`] returns it.
    pub request: u32,
    /// Tag of the message. A receive of several buffers has the tag of its first buffer.
    pub tag: u32,
    /// Number of buffers: 1 for a send, 1 to 8 for a receive.
    pub buffers: u32,
    /// Bytes of the buffers. Once the message is tested, bytes that were sent or received.
    pub bytes: u64,
    /// The program's first call for the message. From this call to the post, a send waits for a receive with
    /// its tag, and a receive waits for a free request. Both also wait while the connection recovers.
    pub asked_ns: u64,
    /// The call that matched and posted the message.
    pub posted_ns: u64,
    /// The call of the program, or the look of its keeper, that found all completions of the message.
    pub done_ns: Option<u64>,
    /// The call that told the program that the message is done.
    pub tested_ns: Option<u64>,
}

impl MessageTimes {
    /// Nanoseconds from the program's first call to the post.
    pub fn waited_ns(&self) -> u64 {
        self.posted_ns.saturating_sub(self.asked_ns)
    }

    /// Nanoseconds from the post to the last completion.
    pub fn took_ns(&self) -> Option<u64> {
        Some(self.done_ns?.saturating_sub(self.posted_ns))
    }

    /// Nanoseconds from the last completion to the program's test.
    pub fn untested_ns(&self) -> Option<u64> {
        Some(self.tested_ns?.saturating_sub(self.done_ns?))
    }

    fn to_bytes(self) -> MessageBytes {
        MessageBytes {
            number: self.number.into(),
            request: self.request.into(),
            tag: self.tag.into(),
            buffers: self.buffers.into(),
            bytes: self.bytes.into(),
            asked_ns: self.asked_ns.into(),
            posted_ns: self.posted_ns.into(),
            done_ns: self.done_ns.unwrap_or(NEVER).into(),
            tested_ns: self.tested_ns.unwrap_or(NEVER).into(),
        }
    }

    fn parse(b: &MessageBytes) -> Self {
        let time = |ns: U64| Some(ns.get()).filter(|ns| *ns != NEVER);
        MessageTimes {
            number: b.number.get(),
            request: b.request.get(),
            tag: b.tag.get(),
            buffers: b.buffers.get(),
            bytes: b.bytes.get(),
            asked_ns: b.asked_ns.get(),
            posted_ns: b.posted_ns.get(),
            done_ns: time(b.done_ns),
            tested_ns: time(b.tested_ns),
        }
    }
}

/// The last messages of an end. A new message overwrites the oldest one.
#[derive(Clone, Debug, Default)]
pub struct MessageRing {
    messages: heapless::Deque<MessageTimes, MESSAGES>,
    /// Number of messages that were posted.
    posted: u64,
    /// Tags of calls that could not post their message yet, and the times of the first and the last such call.
    asked: heapless::Vec<(u32, [u64; 2]), RECVS_MAX>,
}

impl MessageRing {
    /// Notes a call that could not post a message with this tag yet.
    pub fn ask(&mut self, tag: u32, now_ns: u64) {
        if let Some((_, times)) = self.asked.iter_mut().find(|(asked, _)| *asked == tag) {
            *times = [first_call(*times, now_ns), now_ns];
            return;
        }
        if self.asked.is_full() {
            // The program may have given up the oldest one.
            self.asked.remove(0);
        }
        // There is room now.
        let _ = self.asked.push((tag, [now_ns; 2]));
    }

    /// Notes that a call has posted a message of `bytes` bytes in this number of buffers. The call began at `now_ns`.
    pub fn post(&mut self, request: &Request, tag: u32, bytes: u64, buffers: u32, now_ns: u64) {
        let asked = self.asked.iter().position(|(asked, _)| *asked == tag);
        let asked_ns = asked.map_or(now_ns, |at| first_call(self.asked.remove(at).1, now_ns));
        if self.messages.is_full() {
            self.messages.pop_front();
        }
        // There is room now.
        let _ = self.messages.push_back(MessageTimes {
            number: self.posted,
            request: request.raw(),
            tag,
            buffers,
            bytes,
            asked_ns,
            posted_ns: now_ns,
            done_ns: None,
            tested_ns: None,
        });
        self.posted += 1;
    }

    /// Notes the messages that have become done. `is_done` tells whether a request is done, and `now_ns` reads
    /// the clock.
    pub fn settle(&mut self, mut is_done: impl FnMut(&Request) -> bool, now_ns: impl Fn() -> u64) {
        let under_way = self.messages.iter_mut().filter(|message| message.done_ns.is_none());
        for message in under_way {
            if is_done(&Request::from_raw(message.request)) {
                message.done_ns = Some(now_ns());
            }
        }
    }

    /// Notes that the program has heard that a request is done and has moved `bytes` bytes. Other requests than those
    /// of the last messages change nothing.
    pub fn test(&mut self, request: &Request, bytes: u64, now_ns: u64) {
        let mut untested = self.messages.iter_mut().filter(|message| message.tested_ns.is_none());
        if let Some(message) = untested.find(|message| message.request == request.raw()) {
            message.bytes = bytes;
            message.done_ns = message.done_ns.or(Some(now_ns));
            message.tested_ns = Some(now_ns);
        }
    }

    /// The last messages, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &MessageTimes> {
        self.messages.iter()
    }
}

/// Returns the time of the first call for a message that is called for at `now_ns`. The first and the last earlier
/// call with its tag are given.
fn first_call([first_ns, last_ns]: [u64; 2], now_ns: u64) -> u64 {
    if now_ns.saturating_sub(last_ns) > GIVEN_UP_NS { now_ns } else { first_ns }
}

/// ```text
/// byte 0        8         12    16        20      28      36       44     52       60
///      +--------+---------+-----+---------+-------+-------+--------+------+--------+
///      | number | request | tag | buffers | bytes | asked | posted | done | tested |
///      +--------+---------+-----+---------+-------+-------+--------+------+--------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MessageBytes {
    number: U64,
    request: U32,
    tag: U32,
    buffers: U32,
    bytes: U64,
    asked_ns: U64,
    posted_ns: U64,
    done_ns: U64,
    tested_ns: U64,
}

/// The messages behind a record, between two turns. Both are the turn of the record unless the writer is at work.
///
/// ```text
/// byte 0      8          2408   2416
///      +------+----------+------+
///      | turn | messages | turn |
///      +------+----------+------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct MessagesBytes {
    turn: U64,
    messages: [MessageBytes; MESSAGES],
    turn_again: U64,
}

assert_eq_size!(MessageBytes, [u8; 60]);
assert_eq_size!(MessagesBytes, [u8; 2416]);

impl MessagesBytes {
    pub(super) fn new(messages: &[MessageTimes], turn: u64) -> Self {
        let mut b = MessagesBytes::new_zeroed();
        for (to, message) in b.messages.iter_mut().zip(messages) {
            *to = message.to_bytes();
        }
        (b.turn, b.turn_again) = (turn.into(), turn.into());
        b
    }

    /// Reads the first `len` messages of a record that was written in this turn.
    pub(super) fn parse(
        &self,
        len: u64,
        turn: u64,
    ) -> Result<heapless::Vec<MessageTimes, MESSAGES>, RecordError> {
        if [self.turn, self.turn_again].iter().any(|of| of.get() != turn) {
            return Err(RecordError::Torn);
        }
        let messages = usize::try_from(len).ok().and_then(|len| self.messages.get(..len));
        let what = "the number of messages";
        let messages = messages.ok_or(RecordError::Field { what, value: len })?;
        Ok(messages.iter().map(MessageTimes::parse).collect())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// Posts the message of a request with this number, as its tag too.
    fn post(ring: &mut MessageRing, number: u32, now_ns: u64) {
        ring.post(&Request::from_raw(number), number, 8, 1, now_ns);
    }

    #[test]
    fn a_ring_keeps_the_last_messages_in_the_order_of_their_posts() {
        let mut ring = MessageRing::default();
        for count in 0..3 * MESSAGES as u64 {
            let numbers: Vec<u64> = ring.iter().map(|message| message.number).collect();
            assert!(numbers.iter().copied().eq(count.saturating_sub(MESSAGES as u64)..count));
            post(&mut ring, count as u32, count);
        }
    }

    #[test]
    fn a_message_has_the_times_of_its_first_call_its_post_its_completion_and_its_test() {
        let mut ring = MessageRing::default();
        ring.ask(7, 10);
        ring.ask(7, 11);
        post(&mut ring, 7, 20);
        post(&mut ring, 8, 21);
        ring.settle(|request| request.raw() == 7, || 30);
        ring.settle(|_| false, || unreachable!("nothing is done"));
        ring.test(&Request::from_raw(7), 5, 42);
        ring.test(&Request::from_raw(8), 8, 50);
        let messages: Vec<MessageTimes> = ring.iter().copied().collect();
        let [first, second] = messages[..] else { panic!("{messages:?}") };
        assert_eq!((first.asked_ns, first.posted_ns), (10, 20));
        assert_eq!((first.done_ns, first.tested_ns, first.bytes), (Some(30), Some(42), 5));
        assert_eq!(
            (first.waited_ns(), first.took_ns(), first.untested_ns()),
            (10, Some(10), Some(12))
        );
        // The test found the completion itself.
        assert_eq!((second.asked_ns, second.done_ns, second.tested_ns), (21, Some(50), Some(50)));
    }

    #[test]
    fn a_test_counts_for_the_message_under_way_and_not_for_an_earlier_one_of_the_same_number() {
        let mut ring = MessageRing::default();
        for turn in 0..2 {
            post(&mut ring, 3, 10 * turn);
            ring.test(&Request::from_raw(3), 8, 10 * turn + 5);
        }
        ring.test(&Request::from_raw(4), 8, 99);
        let tested: Vec<_> = ring.iter().map(|message| message.tested_ns).collect();
        assert_eq!(tested, [Some(5), Some(15)]);
    }

    #[test]
    fn a_program_that_gives_up_tags_still_has_times_for_new_ones() {
        let mut ring = MessageRing::default();
        (0..=RECVS_MAX as u32).for_each(|tag| ring.ask(tag, u64::from(tag)));
        let last = RECVS_MAX as u32;
        [0, last].into_iter().for_each(|tag| post(&mut ring, tag, 100));
        let asked: Vec<_> = ring.iter().map(|message| message.asked_ns).collect();
        assert_eq!(asked, [100, u64::from(last)]);
    }

    #[test]
    fn a_message_does_not_wait_since_the_calls_for_an_earlier_one_that_was_given_up() {
        const LATER: u64 = 60_000_000_000;
        let mut ring = MessageRing::default();
        // The first call for the later message posts it, or does not.
        ring.ask(7, 10);
        post(&mut ring, 7, LATER);
        [10, LATER, LATER + GIVEN_UP_NS].into_iter().for_each(|now_ns| ring.ask(7, now_ns));
        post(&mut ring, 7, LATER + 2 * GIVEN_UP_NS);
        let asked: Vec<_> = ring.iter().map(|message| message.asked_ns).collect();
        assert_eq!(asked, [LATER, LATER]);
    }
}
