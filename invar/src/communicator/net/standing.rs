//! How links that ranks move themselves stand, for people who look for a hang.
//!
//! They are written behind the proxy's operations, in the notation of its dump, those that have
//! anything under way:
//!
//! ```text
//! WITHOUT PROXY
//! [-|17| Recv 1R/0]            messages that are through | what, peer state / channel
//! [X]
//! ```
//!
//! To send: `I` waits for the peer to have room, `S` sending. To receive: `R` receiving, `G` waiting
//! for the rank that is to use it.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use invar_core::proxy::Direction;

use super::link::Way;
use crate::Error;

/// One end of a link. Its rank counts, others read.
pub(super) struct Standing {
    way: Way,
    direction: Direction,
    /// Messages that were asked for, begun with (to receive: come), and are through.
    counts: [AtomicU64; 3],
}

impl Standing {
    #[inline]
    pub(super) fn set(&self, counts: [u64; 3]) {
        self.counts.iter().zip(counts).for_each(|(at, n)| at.store(n, Ordering::Relaxed));
    }

    pub(super) fn peer(&self) -> u32 {
        self.way.peer
    }

    /// An error of the rank that it is about.
    #[cold]
    pub(super) fn named(&self, error: &Error) -> Error {
        error.of_rank(self.way.peer)
    }

    /// The line of a link that has something under way.
    fn line(&self) -> Option<String> {
        let [asked, begun, through] = self.counts.each_ref().map(|n| n.load(Ordering::Relaxed));
        let state = match self.direction {
            Direction::Send if begun < asked => 'I',
            Direction::Send if through < begun => 'S',
            Direction::Recv if begun < asked => 'R',
            Direction::Recv if through < begun => 'G',
            _ => return None,
        };
        let (Way { peer, channel, .. }, direction) = (self.way, self.direction);
        Some(format!("[-|{through}| {direction:?} {peer}{state}/{channel}]"))
    }
}

/// Those of a rank that there are; clones are of the same.
#[derive(Clone, Default)]
pub(super) struct Standings(Arc<Mutex<Vec<Weak<Standing>>>>);

impl Standings {
    pub(super) fn add(&self, way: Way, direction: Direction) -> Arc<Standing> {
        let standing = Arc::new(Standing { way, direction, counts: Default::default() });
        let mut all = self.lock();
        all.retain(|standing| standing.strong_count() > 0);
        all.push(Arc::downgrade(&standing));
        standing
    }

    pub(super) fn dump(&self, to: &mut dyn Write) -> fmt::Result {
        let all = self.lock();
        let mut lines = all.iter().filter_map(|standing| standing.upgrade()?.line()).peekable();
        if lines.peek().is_none() {
            return Ok(());
        }
        to.write_str("WITHOUT PROXY\n")?;
        lines.try_for_each(|line| writeln!(to, "{line}"))?;
        to.write_str("[X]\n")
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Standing>>> {
        // Whoever panicked, a list of links is one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use invar_core::proxy::ConnectionId;

    #[test]
    fn links_are_shown_that_have_anything_under_way() {
        let standings = Standings::default();
        let way = Way { connection: ConnectionId(0), peer: 3, channel: 1 };
        let dump = |direction, counts| {
            let standing = standings.add(way, direction);
            standing.set(counts);
            let mut text = String::new();
            standings.dump(&mut text).expect("a string takes all");
            text
        };
        let shown = |line: &str| format!("WITHOUT PROXY\n{line}\n[X]\n");
        assert_eq!(dump(Direction::Send, [9, 8, 7]), shown("[-|7| Send 3I/1]"));
        assert_eq!(dump(Direction::Send, [9, 9, 7]), shown("[-|7| Send 3S/1]"));
        assert_eq!(dump(Direction::Recv, [9, 8, 8]), shown("[-|8| Recv 3R/1]"));
        assert_eq!(dump(Direction::Recv, [9, 9, 8]), shown("[-|8| Recv 3G/1]"));
        assert_eq!(dump(Direction::Send, [9, 9, 9]), "");
    }
}
