//! The outcome of a history.

use super::World;
use super::coverage::{Coverage, kinds};

kinds! {
    /// An event that a simulation counts.
    Event {
        PacketSent = "packets sent",
        QpTagged = "queue pairs whose packets carry tags",
        QpLong = "queue pairs that send long packets",
        LongestPosted = "work requests as long as the port carries",
        DamageDetected = "damaged packets dropped",
        PacketSentAgain = "packets sent again",
        MessageSent = "messages sent",
        CommDone = "comms that delivered all messages",
        CommFailed = "comms that failed for a good reason",
        LineRenewed = "TCP connections made anew",
        Recovery = "sets of queue pairs made after a failure",
        PartDone = "parts of operations that ranks finished",
        RankDone = "ranks that finished all of their parts",
        RankTold = "ranks that heard of a failure from others",
        RankFailed = "ranks that noticed a failure on their own network",
    }
}

/// The outcome of a history, or the sum over many histories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The digest that [`World::trace`] returns. A sum has none.
    pub trace: u64,
    /// The duration in simulated time. A sum has none.
    pub end_ns: u64,
    /// The faults, with the states that they met.
    pub coverage: Coverage,
    pub(super) events: [u64; Event::ALL.len()],
}

impl Outcome {
    /// Counts an event that happened so many times.
    pub fn count(&mut self, event: Event, times: u64) {
        self.events[event as usize] += times;
    }

    /// The number of times that an event happened.
    pub fn counted(&self, event: Event) -> u64 {
        self.events[event as usize]
    }

    /// Adds the counts of another history.
    pub fn add(&mut self, other: &Outcome) {
        self.coverage.add(&other.coverage);
        self.events.iter_mut().zip(&other.events).for_each(|(sum, count)| *sum += count);
    }

    /// Takes over what the world has recorded by its end.
    pub(super) fn end(mut self, world: &World) -> Outcome {
        self.trace = world.trace();
        self.end_ns = world.now_ns();
        self.coverage = world.coverage();
        world.events().into_iter().for_each(|(event, times)| self.count(event, times));
        self
    }
}
