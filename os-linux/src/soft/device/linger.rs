//! Destroyed queue pairs that still answer their peers.
//!
//! A peer whose last acknowledge was lost repeats its request. Without an answer the peer would report a
//! failed message, although the message has arrived. So the rest of a queue pair answers for as long as
//! the peer may retry, as TCP does in TIME_WAIT.

use std::collections::{HashMap, VecDeque};

use invar_core::roce::Packet;
use invar_core::roce::qp::{self, Transmit};

use super::path::Path;
use super::queue_pair::QueuePair;

/// Maximum number of lingering queue pairs, of about 250 bytes each. Beyond the maximum, the oldest ends
/// early.
const LINGERING_MAX: usize = 4096;
/// Maximum time that a queue pair lingers.
const LINGER_MAX_NS: u64 = 60_000_000_000;

/// The queue pairs that linger.
#[derive(Default)]
pub(super) struct Lingerers {
    by_qpn: HashMap<u32, Lingerer>,
    /// Numbers of the lingering queue pairs, in the order of their destruction.
    oldest: VecDeque<u32>,
    /// Lingering queue pairs that may have an answer to send.
    ready: VecDeque<u32>,
}

struct Lingerer {
    answers: qp::Lingering,
    path: Path,
    until_ns: u64,
}

impl Lingerers {
    /// Keeps the answering part of a destroyed queue pair, if the queue pair has a peer.
    pub(super) fn add(&mut self, now_ns: u64, qpn: u32, qp: QueuePair) {
        let retry_time_ns = qp.retry_time_ns().unwrap_or(LINGER_MAX_NS);
        let (Some(answers), Some(path)) = (qp.lingering(), qp.path) else { return };
        let until_ns = now_ns.saturating_add(retry_time_ns.min(LINGER_MAX_NS));
        while let Some(oldest) = self.oldest.front()
            && (self.oldest.len() >= LINGERING_MAX || self.by_qpn[oldest].until_ns <= now_ns)
        {
            self.by_qpn.remove(oldest);
            self.oldest.pop_front();
        }
        self.by_qpn.insert(qpn, Lingerer { answers, path, until_ns });
        self.oldest.push_back(qpn);
        self.ready.push_back(qpn);
    }

    pub(super) fn contains(&self, qpn: u32) -> bool {
        self.by_qpn.contains_key(&qpn)
    }

    /// Returns the path to the peer of a lingering queue pair.
    pub(super) fn path(&mut self, now_ns: u64, qpn: u32) -> Option<&mut Path> {
        let lingerer = self.by_qpn.get_mut(&qpn)?;
        (now_ns < lingerer.until_ns).then_some(&mut lingerer.path)
    }

    /// Handles a packet for a lingering queue pair; returns whether the queue pair answers it.
    pub(super) fn handle_packet(&mut self, qpn: u32, packet: &Packet<'_>) -> bool {
        let lingerer = self.by_qpn.get_mut(&qpn);
        let is_answered = lingerer.is_some_and(|lingerer| lingerer.answers.handle_packet(packet));
        if is_answered {
            self.ready.push_back(qpn);
        }
        is_answered
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the next answer to send, and its path.
    pub(super) fn poll_transmit(&mut self) -> Option<(Transmit, &mut Path)> {
        while let Some(qpn) = self.ready.pop_front() {
            let transmit = self.by_qpn.get_mut(&qpn).and_then(|l| l.answers.poll_transmit());
            if let Some(transmit) = transmit {
                return Some((transmit, &mut self.by_qpn.get_mut(&qpn)?.path));
            }
        }
        None
    }
}
