//! Datagrams in flight on a link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use invar_core::roce::qp::Transmit;
use invar_core::roce::{HEADERS_BYTES_MAX, ICRC_BYTES};

use super::Choices;

/// The faults of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost packets of a hundred.
    pub lost: u32,
    /// Duplicated packets of a hundred.
    pub doubled: u32,
    /// Delayed packets of a hundred.
    pub held_back: u32,
    /// The number of faults that may still happen. After them the link is good.
    pub left: u32,
}

/// A datagram in flight. Datagrams are ordered by arrival, then by sending.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Datagram {
    at: u64,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

/// Both directions of a link. Times are in nanoseconds.
pub(super) struct Link {
    faults: Faults,
    queue: BinaryHeap<Reverse<Datagram>>,
    sent: u64,
}

const DELAY_NS: u64 = 5_000;
const HELD_BACK_NS: u32 = 400_000;

impl Link {
    pub(super) fn new(faults: Faults) -> Link {
        Link { faults, queue: BinaryHeap::new(), sent: 0 }
    }

    /// The time at which the next datagram arrives.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(first)| first.at)
    }

    /// The receiving end and the UDP payload of a datagram that has arrived.
    pub(super) fn receive(&mut self, now: u64) -> Option<(usize, Vec<u8>)> {
        self.next_at().filter(|at| *at <= now)?;
        self.queue.pop().map(|Reverse(Datagram { to, bytes, .. })| (to, bytes))
    }

    /// Sends a datagram to the end `to`, or loses it.
    pub(super) fn send(&mut self, now: u64, to: usize, bytes: Vec<u8>, choices: &mut Choices<'_>) {
        let Faults { lost, doubled, held_back, .. } = self.faults;
        let mut happens = |percent| {
            let happens = percent > 0 && self.faults.left > 0 && choices.percent(percent);
            self.faults.left -= u32::from(happens);
            happens
        };
        let (lost, doubled, held_back) = (happens(lost), happens(doubled), happens(held_back));
        for copy in 0..1 + u64::from(doubled) {
            let late = held_back || copy > 0;
            let more = if late { choices.below(HELD_BACK_NS) } else { 0 };
            if !lost || copy > 0 {
                self.sent += 1;
                let at = now + DELAY_NS + u64::from(more);
                let (number, bytes) = (self.sent, bytes.clone());
                self.queue.push(Reverse(Datagram { at, number, to, bytes }));
            }
        }
    }
}

/// The UDP payload of a packet. Nothing in this model checks the ICRC.
pub(super) fn datagram(transmit: &Transmit, payload: &[u8]) -> Vec<u8> {
    let mut headers = [0; HEADERS_BYTES_MAX];
    let n = transmit.headers.encode(&mut headers);
    let trailer = usize::from(transmit.headers.bth.pad_count) + ICRC_BYTES;
    [&headers[..n], payload, &vec![0; trailer]].concat()
}
