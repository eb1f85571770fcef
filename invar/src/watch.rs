//! Noticing that the peer of an idle comm is gone.

use invar_core::error::Error as CoreError;
use invar_linux::clock::now_ns;

use crate::Error;
use crate::adapter::End;

/// Calls that find nothing between two looks at the clock.
const IDLE_CALLS: u32 = 64;
/// Time between two looks at the peer.
const LOOK_EVERY_NS: u64 = 50_000_000;

/// Looks now and then whether the peer is still there.
#[derive(Debug, Default)]
pub(crate) struct PeerWatch {
    idle_calls: u32,
    looked_ns: u64,
    seen: Seen,
}

#[derive(Debug, Default, PartialEq)]
enum Seen {
    #[default]
    Open,
    /// Closed, at the last look. What the peer sent before may still be under way.
    Closing,
    Closed,
}

impl PeerWatch {
    /// A call found nothing to do.
    #[inline]
    pub(crate) fn idle(&mut self, end: &mut (impl End + ?Sized)) -> Result<(), Error> {
        if self.is_due() || self.seen == Seen::Closed { self.look(end) } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self, end: &mut (impl End + ?Sized)) -> Result<(), Error> {
        match end.check_peer() {
            Err(CoreError::PeerClosed(_)) if self.seen == Seen::Open => {
                self.seen = Seen::Closing;
                Ok(())
            }
            Err(error) => {
                self.seen = Seen::Closed;
                Err(end.failed(error))
            }
            Ok(()) => Ok(()),
        }
    }

    #[inline]
    fn is_due(&mut self) -> bool {
        self.idle_calls = self.idle_calls.wrapping_add(1);
        self.idle_calls.is_multiple_of(IDLE_CALLS) && self.is_time(now_ns())
    }

    #[cold]
    fn is_time(&mut self, now_ns: u64) -> bool {
        let due = now_ns.saturating_sub(self.looked_ns) >= LOOK_EVERY_NS;
        if due {
            self.looked_ns = now_ns;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_looked_at_once_in_a_while_however_often_is_asked() {
        let mut watch = PeerWatch::default();
        let start = 7 * LOOK_EVERY_NS;
        let looks = (0..10 * LOOK_EVERY_NS).step_by(1000);
        let looks = looks.filter(|after| watch.is_time(start + after)).count();
        assert_eq!(looks, 10);
    }

    #[test]
    fn the_clock_is_read_once_in_many_calls() {
        let mut watch = PeerWatch::default();
        let due: Vec<bool> = (0..2 * IDLE_CALLS).map(|_| watch.is_due()).collect();
        assert_eq!(due.iter().position(|due| *due), Some(IDLE_CALLS as usize - 1));
        assert_eq!(due.iter().filter(|due| **due).count(), 1);
    }
}
