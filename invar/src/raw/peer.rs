//! Whether the peer of an end is still there.

use invar_core::error::Error;

/// Data that a peer sent before it closed may still be on its way for this long.
const LAST_DATA_NS: u64 = 50_000_000;

/// The state of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum PeerState {
    #[default]
    Open,
    /// The peer closed before this time.
    Closing { since_ns: u64 },
    /// Every call returns the error of the peer.
    Closed,
}

impl PeerState {
    /// Records the error of a check. Returns `Ok` while the last data of a closed peer may still come.
    pub(super) fn failed(&mut self, error: Error, now_ns: u64) -> Result<(), Error> {
        let since_ns = match *self {
            PeerState::Open => now_ns,
            PeerState::Closing { since_ns } => since_ns,
            PeerState::Closed => return Err(error),
        };
        let is_early = now_ns.saturating_sub(since_ns) < LAST_DATA_NS;
        if is_early && matches!(error, Error::PeerClosed(_)) {
            *self = PeerState::Closing { since_ns };
            return Ok(());
        }
        *self = PeerState::Closed;
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use invar_core::conn::StreamError;

    const GONE: Error = Error::PeerClosed(StreamError::Closed);

    #[test]
    fn a_peer_that_has_closed_gets_time_for_its_last_data() {
        let mut peer = PeerState::default();
        assert_eq!(peer.failed(GONE, 7), Ok(()));
        assert_eq!(peer.failed(GONE, 7 + LAST_DATA_NS - 1), Ok(()));
        assert_ne!(peer, PeerState::Closed);
        assert_eq!(peer.failed(GONE, 7 + LAST_DATA_NS), Err(GONE));
        assert_eq!((peer, peer.failed(GONE, 7)), (PeerState::Closed, Err(GONE)));
    }

    #[test]
    fn any_other_error_counts_at_once() {
        let mut peer = PeerState::default();
        assert_eq!(peer.failed(Error::PeerFailed, 7), Err(Error::PeerFailed));
        assert_eq!(peer, PeerState::Closed);
    }
}
