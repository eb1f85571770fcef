//! Decides when a progress thread looks for new operations.

use super::ProxyEvent;

/// Counts the rounds of a progress thread and reports when it becomes idle or active.
///
/// Each look at the posted operations costs memory traffic with the ranks. A busy thread therefore
/// makes several rounds between two looks (`NCCL_PROGRESS_APPENDOP_FREQ`). An idle thread looks in each
/// round.
#[derive(Clone, Debug)]
pub struct Pace {
    every: u32,
    rounds: u32,
    idle: bool,
}

impl Pace {
    /// Creates a pace by which a busy thread looks once in `every` rounds.
    pub const fn new(every: u32) -> Self {
        Pace { every, rounds: 0, idle: false }
    }

    /// Records that a round is over; `moved` says whether the thread moved an operation. Returns
    /// whether to look for new operations now, and an event if idleness began or ended.
    pub fn after_round(&mut self, moved: bool) -> (bool, Option<ProxyEvent>) {
        let event = match (self.idle, moved) {
            (false, false) => Some(ProxyEvent::Idle),
            (true, true) => Some(ProxyEvent::Active),
            _ => None,
        };
        self.idle = !moved;
        self.rounds += 1;
        let look = self.idle || self.rounds >= self.every;
        if look {
            self.rounds = 0;
        }
        (look, event)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_busy_thread_looks_every_so_often_and_an_idle_one_each_time() {
        let mut pace = Pace::new(3);
        let looks = |pace: &mut Pace, moved, n| -> Vec<bool> {
            (0..n).map(|_| pace.after_round(moved).0).collect()
        };
        assert_eq!(looks(&mut pace, true, 7), [false, false, true, false, false, true, false]);
        assert_eq!(looks(&mut pace, false, 2), [true, true]);
        assert_eq!(looks(&mut pace, true, 3), [false, false, true]);
    }

    #[test]
    fn idleness_is_told_once_when_it_begins_and_once_when_it_ends() {
        let mut pace = Pace::new(8);
        let told: Vec<Option<ProxyEvent>> = [true, false, false, true, true, false]
            .into_iter()
            .map(|moved| pace.after_round(moved).1)
            .collect();
        let expected = [
            None,
            Some(ProxyEvent::Idle),
            None,
            Some(ProxyEvent::Active),
            None,
            Some(ProxyEvent::Idle),
        ];
        assert_eq!(told, expected);
    }
}
