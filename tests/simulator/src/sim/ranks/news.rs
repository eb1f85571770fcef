//! A model of the rendezvous. It tells all ranks of the first failure, and the number of the rank that
//! failed.

use crate::random::Random;

/// The longest time that the hub takes to pass news on.
pub(super) const PASS_ON_NS: u64 = 2_000_000;
/// The longest time until the hub notices that a process has ended and its connection is closed.
pub(super) const ENDED_NS: u64 = 1_000_000_000;
/// The time until the hub notices that a host is cut off.
pub(super) const CUT_OFF_NS: u64 = 30_000_000_000;

/// The first failure, if there was one.
#[derive(Default)]
pub(super) struct News(Option<Failure>);

struct Failure {
    from: u32,
    text: String,
    /// The time at which each rank hears of the failure.
    heard_ns: Vec<u64>,
}

impl News {
    /// Reports a failure that the hub knows of at `at_ns`. A failure that is known earlier takes
    /// precedence.
    pub(super) fn tell(
        &mut self,
        random: &mut Random,
        at_ns: u64,
        (from, nranks): (u32, u32),
        text: String,
    ) {
        let heard_ns: Vec<u64> = (0..nranks).map(|_| at_ns + random.below(PASS_ON_NS)).collect();
        let earlier = |first: &Failure| first.heard_ns.iter().min() <= heard_ns.iter().min();
        if !self.0.as_ref().is_some_and(earlier) {
            self.0 = Some(Failure { from, text, heard_ns });
        }
    }

    /// The failure that a rank has heard of, as text.
    pub(super) fn heard(&self, rank: u32, now_ns: u64) -> Option<String> {
        let Failure { from, text, heard_ns } = self.0.as_ref()?;
        (heard_ns[rank as usize] <= now_ns).then(|| format!("rank {from}: {text}"))
    }
}
