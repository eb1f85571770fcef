//! What ranks hear of each other: a model of the rendezvous, which tells all ranks of the first
//! failure, and which rank that was.

use super::Random;

/// How long the hub takes to pass something on, at most.
pub(super) const PASS_ON_NS: u64 = 2_000_000;
/// How long it takes to notice that a process has ended, at most: its connection is closed.
pub(super) const ENDED_NS: u64 = 1_000_000_000;
/// How long it takes to notice that a host is cut off.
pub(super) const CUT_OFF_NS: u64 = 30_000_000_000;

/// The first failure.
#[derive(Default)]
pub(super) struct News(Option<Failure>);

struct Failure {
    from: u32,
    text: String,
    /// When each rank hears of it.
    heard_ns: Vec<u64>,
}

impl News {
    /// Something is known to the hub at `at_ns`. What is known earlier goes before it.
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

    /// What a rank has heard of the others.
    pub(super) fn heard(&self, rank: u32, now_ns: u64) -> Option<String> {
        let Failure { from, text, heard_ns } = self.0.as_ref()?;
        (heard_ns[rank as usize] <= now_ns).then(|| format!("rank {from}: {text}"))
    }
}
