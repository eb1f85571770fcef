//! Suspicion: queue pairs that carry nothing, though both ends live, are replaced early.
//!
//! A queue pair reports a dead network only after all its retries, which take half a minute. An end whose
//! rows make no progress asks its peer over the line which rows have come (`Control::Ask`). If the peer
//! answers twice that no row has come meanwhile, the network between the queue pairs is suspected, and the
//! end begins a recovery. A false suspicion costs a recovery, and no correctness.
//!
//! A peer that is stopped or busy does not answer, so nothing is suspected. A slow network gets time for the
//! bytes of the oldest row, and more time after each suspicion in vain.

/// A port that is shared gives each connection at least this part of its speed.
const SHARE: u64 = 100;
/// The speed in Mbit/s of the slowest port that counts as such.
const SPEED_MBPS_MIN: u64 = 1_000;
/// The time doubles at most this often.
const DOUBLINGS_MAX: u32 = 6;

/// The rows of an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathRows {
    /// The rows that this end has sent or posted.
    pub(crate) said: u64,
    /// The rows of which it knows that the peer has them.
    pub(crate) over: u64,
    /// The bytes of the row after those.
    pub(crate) bytes: u64,
}

/// Watches whether the queue pairs of an end carry its rows.
#[derive(Debug, Default)]
pub(crate) struct PathWatch {
    /// The rows that were over at the last look.
    over: u64,
    /// The time of the last progress, or of the last answer.
    since_ns: Option<u64>,
    /// The rows that the peer has seen, according to its answers.
    confirmed: u64,
    /// Whether the peer has yet to answer.
    is_asked: bool,
    /// The rows that the peer has, according to its new answer.
    answer: Option<u64>,
    /// The rows that the peer had at its answer before.
    before: Option<u64>,
    /// The number of suspicions since the last progress.
    in_vain: u32,
    /// The rows that were done at the last look. They stay done.
    pub(crate) done: u64,
    /// The rows that the peer has asked about, until this end answers.
    pub(crate) owes_answer: Option<u64>,
}

/// The action that an end must take after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathVerdict {
    Fine,
    /// Ask the peer which of this end's rows it has.
    Ask,
    /// Replace the queue pairs.
    Suspect,
}

impl PathWatch {
    /// Takes the peer's answer: it has this number of rows.
    pub(crate) fn heard(&mut self, rows: u64) {
        self.answer = Some(rows);
    }

    /// Whether neither end owes the other anything.
    pub(crate) fn is_calm(&self) -> bool {
        self.since_ns.is_none() && self.owes_answer.is_none()
    }

    /// Forgets what was asked and answered, since the queue pairs are new.
    pub(crate) fn restart(&mut self) {
        let PathWatch { over, in_vain, confirmed, done, .. } = *self;
        *self = PathWatch { over, in_vain, confirmed, done, ..PathWatch::default() };
    }

    /// Looks at the progress. A peer that has seen rows counts as progress if `seen_counts`: the rows then
    /// await a later message. `suspect_after_ns` is the time without progress after which the queue pairs are
    /// suspected.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        rows: PathRows,
        seen_counts: bool,
        suspect_after_ns: u64,
    ) -> PathVerdict {
        let answer = self.answer.take();
        if let Some(seen) = answer.filter(|_| seen_counts) {
            self.confirmed = self.confirmed.max(seen.min(rows.said));
        }
        let over = rows.over.max(self.confirmed);
        if over != self.over {
            (self.over, self.in_vain) = (over, 0);
            (self.since_ns, self.before, self.is_asked) = (None, None, false);
        }
        if over >= rows.said {
            (self.since_ns, self.before, self.is_asked) = (None, None, false);
            return PathVerdict::Fine;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if let Some(seen) = answer.filter(|_| self.is_asked) {
            self.is_asked = false;
            self.since_ns = Some(now_ns);
            let is_stuck = self.before.is_some_and(|before| seen <= before);
            self.before = Some(seen);
            if is_stuck {
                self.in_vain += 1;
                self.before = None;
                return PathVerdict::Suspect;
            }
            return PathVerdict::Fine;
        }
        let pause_ns = (suspect_after_ns / 2) << self.in_vain.min(DOUBLINGS_MAX);
        if self.is_asked || now_ns.saturating_sub(since_ns) < pause_ns {
            return PathVerdict::Fine;
        }
        self.is_asked = true;
        PathVerdict::Ask
    }
}

/// The time without progress after which queue pairs are suspected that carry a row of `bytes` over a port
/// of this speed. `least_ns` is the time for an empty row.
pub(crate) fn suspect_after_ns(least_ns: u64, bytes: u64, speed_mbps: u32) -> u64 {
    let speed_mbps = u64::from(speed_mbps).max(SPEED_MBPS_MIN);
    least_ns.saturating_add(bytes.saturating_mul(8 * 1000 * SHARE) / speed_mbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const STUCK: PathRows = PathRows { said: 5, over: 3, bytes: 0 };

    fn look(watch: &mut PathWatch, ms: u64, rows: PathRows) -> PathVerdict {
        watch.look(ms * MS, rows, false, 500 * MS)
    }

    #[test]
    fn a_peer_that_says_twice_that_nothing_has_come_makes_an_end_suspect_the_network() {
        let mut watch = PathWatch::default();
        assert_eq!(look(&mut watch, 0, STUCK), PathVerdict::Fine);
        assert_eq!(look(&mut watch, 249, STUCK), PathVerdict::Fine);
        assert_eq!(look(&mut watch, 250, STUCK), PathVerdict::Ask);
        watch.heard(3);
        assert_eq!(look(&mut watch, 300, STUCK), PathVerdict::Fine);
        assert_eq!(look(&mut watch, 549, STUCK), PathVerdict::Fine);
        assert_eq!(look(&mut watch, 550, STUCK), PathVerdict::Ask);
        watch.heard(3);
        assert_eq!(look(&mut watch, 600, STUCK), PathVerdict::Suspect);
        // It waits twice as long before it suspects again.
        watch.restart();
        assert_eq!(look(&mut watch, 1000, STUCK), PathVerdict::Fine);
        assert_eq!(look(&mut watch, 1499, STUCK), PathVerdict::Fine);
        assert_eq!(look(&mut watch, 1500, STUCK), PathVerdict::Ask);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_no_reason() {
        let mut watch = PathWatch::default();
        for ms in 0..100_000 {
            let is_asked = look(&mut watch, ms, STUCK) == PathVerdict::Ask;
            assert_eq!(is_asked, ms == 250);
        }
    }

    #[test]
    fn progress_at_either_end_is_no_reason() {
        let mut watch = PathWatch::default();
        let mut asked = 0;
        for ms in 0..10_000 {
            // The peer takes a row each second, and this end does not learn of it.
            match look(&mut watch, ms, PathRows { said: 50, over: 3, bytes: 0 }) {
                PathVerdict::Ask => {
                    watch.heard(3 + ms / 250);
                    asked += 1;
                }
                verdict => assert_eq!(verdict, PathVerdict::Fine),
            }
        }
        assert!(asked > 10, "{asked}");
        for ms in 10_000..20_000 {
            let rows = PathRows { said: 500, over: ms / 200, bytes: 0 };
            assert_eq!(look(&mut watch, ms, rows), PathVerdict::Fine);
        }
    }

    #[test]
    fn slots_that_the_peer_has_seen_await_no_more() {
        let mut watch = PathWatch::default();
        let mut look = |ms: u64, answer: Option<u64>| {
            answer.into_iter().for_each(|rows| watch.heard(rows));
            watch.look(ms * MS, STUCK, true, 500 * MS)
        };
        assert_eq!([look(0, None), look(250, None)], [PathVerdict::Fine, PathVerdict::Ask]);
        assert_eq!(look(260, Some(5)), PathVerdict::Fine);
        assert!((261..10_000).all(|ms| look(ms, None) == PathVerdict::Fine));
    }

    #[test]
    fn long_rows_get_more_time() {
        assert_eq!(suspect_after_ns(500 * MS, 0, 100_000), 500 * MS);
        // A hundredth of 100 Gbit/s is 125 MB/s.
        assert_eq!(suspect_after_ns(500 * MS, 125_000_000, 100_000), 1500 * MS);
    }
}
