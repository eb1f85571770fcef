//! Notices that the peer of an idle comm is gone.

use std::hint::cold_path;

use invar_core::error::Error;

/// Number of calls that find nothing to do between two reads of the clock.
const IDLE_CALLS: u32 = 256;
/// Time between two checks of the peer.
const LOOK_EVERY_NS: u64 = 50_000_000;

/// Checks now and then whether the peer is still there.
#[derive(Debug)]
pub(super) struct PeerWatch {
    /// Number of calls before the one that reads the clock.
    calls_left: u32,
    looked_ns: u64,
    seen: Seen,
}

#[derive(Debug, PartialEq)]
enum Seen {
    Open,
    /// The connection was closed at the last check. Data that the peer sent before may still be on its
    /// way.
    Closing,
    Closed,
}

impl Default for PeerWatch {
    fn default() -> Self {
        PeerWatch { calls_left: IDLE_CALLS - 1, looked_ns: 0, seen: Seen::Open }
    }
}

impl PeerWatch {
    /// Records that a call found nothing to do. `now_ns` returns the time; `check_peer` is
    /// [`invar_core::comm::SendComm::check_peer`].
    #[inline(always)]
    pub(super) fn idle(
        &mut self,
        now_ns: impl FnOnce() -> u64,
        check_peer: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.is_due() { self.count_out(now_ns, check_peer) } else { Ok(()) }
    }

    /// Counts a call that found nothing to do. Returns whether the caller must now call
    /// [`PeerWatch::idle`].
    #[inline(always)]
    pub(super) fn is_due(&mut self) -> bool {
        let (left, is_due) = self.calls_left.overflowing_sub(1);
        self.calls_left = left;
        if is_due {
            cold_path();
            self.calls_left = 0;
        }
        is_due
    }

    /// Makes the next call that finds nothing to do check the peer.
    pub(super) fn hasten(&mut self) {
        (self.calls_left, self.looked_ns) = (0, 0);
    }

    #[cold]
    #[inline(never)]
    fn count_out(
        &mut self,
        now_ns: impl FnOnce() -> u64,
        check_peer: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.calls_left = IDLE_CALLS - 1;
        let now_ns = now_ns();
        if self.seen != Seen::Closed && !self.is_time(now_ns) {
            return Ok(());
        }
        match check_peer(now_ns) {
            Err(Error::PeerClosed(_)) if self.seen == Seen::Open => {
                self.seen = Seen::Closing;
                Ok(())
            }
            Err(error) => {
                // From now on every call returns the error.
                self.seen = Seen::Closed;
                self.calls_left = 0;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

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
    use invar_core::conn::StreamError;
    use invar_linux::clock::now_ns;

    const GONE: Error = Error::PeerClosed(StreamError::Closed);

    #[test]
    fn the_peer_is_looked_at_once_in_a_while_however_often_is_asked() {
        let mut watch = PeerWatch::default();
        let start = 7 * LOOK_EVERY_NS;
        let looks = (0..10 * LOOK_EVERY_NS).step_by(1000);
        let looks = looks.filter(|after| watch.is_time(start + after)).count();
        assert_eq!(looks, 10);
    }

    #[test]
    fn a_peer_that_is_gone_is_looked_at_twice_and_then_named_by_every_call() {
        let mut watch = PeerWatch::default();
        let mut looks = Vec::new();
        for call in 1..=4 * IDLE_CALLS {
            // The test acts as if time had passed since the last check.
            watch.looked_ns = 0;
            let answer = watch.idle(now_ns, |_| {
                looks.push(call);
                Err(GONE)
            });
            assert_eq!(answer.is_err(), call >= 2 * IDLE_CALLS, "call {call}");
        }
        assert_eq!(looks[..3], [IDLE_CALLS, 2 * IDLE_CALLS, 2 * IDLE_CALLS + 1]);
    }
}
