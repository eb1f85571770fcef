//! The status of a rank's links, for people who look for a hang or for lost time.
//!
//! The dump lists the links that have a message in progress, in the notation of NCCL's proxy dump:
//!
//! ```text
//! ACTIVE LINKS
//! [-|17| Recv 1R/0]            messages that are through | what, peer state / channel
//! [X]
//! ```
//!
//! States of a sending link: `I` waits until the peer has room, `S` is sending. States of a receiving
//! link: `R` is receiving, `G` waits until the rank uses the message. A trace has the times of the same
//! states.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use invar_core::topology::Direction;
use invar_linux::abort::Abort;

use super::id::{EndId, LinkId};
use super::trace::LinkTrace;
use crate::Error;
use crate::error::Kind;

/// The status of one end of a link. The rank's thread updates the counts; other threads read them.
pub(super) struct LinkStatus {
    id: EndId,
    /// Number of messages that were requested, that were started (for a receiver: have arrived), and
    /// that are done.
    counts: [AtomicU64; 3],
    abort: Abort,
    trace: Option<LinkTrace>,
}

impl LinkStatus {
    #[inline]
    pub(super) fn set(&self, counts: [u64; 3]) {
        if let Some(trace) = &self.trace {
            trace.record(&self.id, self.counts(), counts);
        }
        self.counts.iter().zip(counts).for_each(|(at, n)| at.store(n, Ordering::Relaxed));
    }

    pub(super) fn link(&self) -> LinkId {
        self.id.link
    }

    /// Returns an error if the link has been aborted.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.abort.is_set() { Err(Kind::Aborted.into()) } else { Ok(()) }
    }

    /// Adds the peer's rank to an error.
    #[cold]
    pub(super) fn named(&self, error: &Error) -> Error {
        error.of_rank(self.id.link.peer)
    }

    fn counts(&self) -> [u64; 3] {
        self.counts.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    /// Returns the peer if data for it is on the way.
    fn in_flight(&self) -> Option<u32> {
        let [_, begun, through] = self.counts();
        let is_sending = self.id.direction == Direction::Send && through < begun;
        is_sending.then_some(self.id.link.peer)
    }

    /// Returns the link's line of the dump if the link has a message in progress.
    fn line(&self) -> Option<String> {
        let [asked, begun, through] = self.counts();
        let state = match self.id.direction {
            Direction::Send if begun < asked => 'I',
            Direction::Send if through < begun => 'S',
            Direction::Recv if begun < asked => 'R',
            Direction::Recv if through < begun => 'G',
            _ => return None,
        };
        let EndId { link: LinkId { peer, channel }, direction, .. } = self.id;
        Some(format!("[-|{through}| {direction:?} {peer}{state}/{channel}]"))
    }
}

/// The existing ends of links, and the number of ends that were ever made.
#[derive(Default)]
struct Ends {
    ends: Vec<Weak<LinkStatus>>,
    made: u32,
}

/// The ends of a rank's links. Clones share the same list.
#[derive(Clone)]
pub(super) struct LinkStatuses {
    ends: Arc<Mutex<Ends>>,
    abort: Abort,
    trace: Option<LinkTrace>,
}

impl LinkStatuses {
    /// Creates an empty list. `abort` ends all its links.
    pub(super) fn new(abort: Abort, trace: Option<LinkTrace>) -> Self {
        LinkStatuses { ends: Arc::default(), abort, trace }
    }

    pub(super) fn add(&self, link: LinkId, direction: Direction) -> Arc<LinkStatus> {
        let (abort, trace) = (self.abort.clone(), self.trace.clone());
        let mut all = self.lock();
        let id = EndId { number: all.made, link, direction };
        let status = Arc::new(LinkStatus { id, counts: Default::default(), abort, trace });
        all.made += 1;
        all.ends.retain(|end| end.strong_count() > 0);
        all.ends.push(Arc::downgrade(&status));
        status
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.abort.is_set()
    }

    /// Returns the operations in progress on all links.
    pub(super) fn dump(&self) -> String {
        self.lock().dump()
    }

    pub(super) fn dumper(&self) -> LinkDump {
        LinkDump(Arc::downgrade(&self.ends))
    }

    fn lock(&self) -> MutexGuard<'_, Ends> {
        lock(&self.ends)
    }
}

/// Dumps the links of a rank. It keeps neither the links nor their trace alive.
pub(in crate::communicator) struct LinkDump(Weak<Mutex<Ends>>);

impl LinkDump {
    /// Returns the dump, or an empty string once the rank is gone.
    pub(in crate::communicator) fn text(&self) -> String {
        self.0.upgrade().map_or_else(String::new, |ends| lock(&ends).dump())
    }

    /// Returns a peer for which data is on the way.
    pub(in crate::communicator) fn in_flight(&self) -> Option<u32> {
        let ends = self.0.upgrade()?;
        let ends = lock(&ends);
        ends.ends.iter().find_map(|end| end.upgrade()?.in_flight())
    }
}

impl Ends {
    fn dump(&self) -> String {
        let mut text = "ACTIVE LINKS\n".to_owned();
        for line in self.ends.iter().filter_map(|end| end.upgrade()?.line()) {
            writeln!(text, "{line}").expect("a string takes all");
        }
        text + "[X]\n"
    }
}

fn lock(ends: &Mutex<Ends>) -> MutexGuard<'_, Ends> {
    // A list of links is valid even if a thread panicked while it held the lock.
    ends.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_shown_that_have_anything_under_way() {
        let statuses = LinkStatuses::new(Abort::default(), None);
        let dump = |direction, counts| {
            let status = statuses.add(LinkId { peer: 3, channel: 1 }, direction);
            status.set(counts);
            statuses.dump()
        };
        let shown = |line: &str| format!("ACTIVE LINKS\n{line}\n[X]\n");
        assert_eq!(dump(Direction::Send, [9, 8, 7]), shown("[-|7| Send 3I/1]"));
        assert_eq!(dump(Direction::Send, [9, 9, 7]), shown("[-|7| Send 3S/1]"));
        assert_eq!(dump(Direction::Recv, [9, 8, 8]), shown("[-|8| Recv 3R/1]"));
        assert_eq!(dump(Direction::Recv, [9, 9, 8]), shown("[-|8| Recv 3G/1]"));
        assert_eq!(dump(Direction::Send, [9, 9, 9]), "ACTIVE LINKS\n[X]\n");
    }
}
