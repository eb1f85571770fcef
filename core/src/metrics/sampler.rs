//! Measures a message of a sender now and then.

use super::Histogram;

/// A sample begins at one of so many looks.
const EVERY: u32 = 4;

/// Picks the first message that starts after a look, and measures it. Until that message is done, every call
/// of the program is to be noted.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    looks: u32,
    is_armed: bool,
    /// Number of rows that had begun at the last look or call.
    begun: u64,
    /// The row that is measured, and when it began.
    sample: Option<(u64, u64)>,
    /// The time of the last call that found no receive, since the last look.
    lacked_receive: bool,
    looked_ns: u64,
    receive_wait_ns: u64,
    latency: Histogram,
}

impl Sampler {
    /// Whether the next call of the program is to be noted.
    pub fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// The row that is measured.
    pub fn row(&self) -> Option<u64> {
        self.sample.map(|(row, _)| row)
    }

    /// Takes a look: `begun` rows have begun, and `is_idle` says whether all of them are done.
    pub fn look(&mut self, begun: u64, is_idle: bool, now_ns: u64) {
        if self.lacked_receive && begun == self.begun && is_idle {
            let waited_ns = now_ns.saturating_sub(self.looked_ns);
            self.receive_wait_ns = self.receive_wait_ns.saturating_add(waited_ns);
        }
        (self.lacked_receive, self.begun, self.looked_ns) = (false, begun, now_ns);
        self.looks = self.looks.wrapping_add(1);
        self.is_armed |= self.looks.is_multiple_of(EVERY);
    }

    /// Notes a call, after which `begun` rows have begun. `lacked_receive` says that the call found no receive
    /// to send to, and `is_done` whether the measured row is done.
    pub fn called(&mut self, begun: u64, lacked_receive: bool, is_done: bool, now_ns: u64) {
        self.lacked_receive |= lacked_receive;
        if !self.is_armed {
            return;
        }
        match self.sample {
            Some((_, began_ns)) if is_done => {
                self.latency.add(now_ns.saturating_sub(began_ns));
                (self.sample, self.is_armed) = (None, false);
            }
            Some(_) => {}
            None if begun > self.begun => self.sample = Some((begun - 1, now_ns)),
            None => {}
        }
        self.begun = begun;
    }

    /// Gives up the message that is measured, as after a recovery.
    pub fn give_up(&mut self) {
        (self.sample, self.is_armed) = (None, false);
    }

    /// Nanoseconds for which the sender waited for receives.
    pub fn receive_wait_ns(&self) -> u64 {
        self.receive_wait_ns
    }

    /// The times of the measured messages.
    pub fn latency(&self) -> Histogram {
        self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed() -> Sampler {
        let mut sampler = Sampler::default();
        (0..EVERY).for_each(|look| sampler.look(0, true, u64::from(look)));
        assert!(sampler.is_armed());
        sampler
    }

    #[test]
    fn one_message_after_a_look_is_measured_from_start_to_end() {
        let mut sampler = armed();
        sampler.called(0, false, false, 100);
        assert_eq!(sampler.row(), None);
        sampler.called(1, false, false, 1_000);
        sampler.called(2, false, false, 1_500);
        assert_eq!(sampler.row(), Some(0));
        sampler.called(2, false, true, 3_500);
        assert!(!sampler.is_armed() && sampler.row().is_none());
        assert_eq!((sampler.latency().count(), sampler.latency().sum_ns), (1, 2_500));
        // The next message is not measured.
        sampler.called(3, false, false, 4_000);
        assert_eq!(sampler.row(), None);
    }

    #[test]
    fn a_sender_waits_for_a_receive_from_look_to_look_if_nothing_else_is_under_way() {
        let mut sampler = armed();
        sampler.called(0, true, false, 5);
        sampler.look(0, true, 53);
        assert_eq!(sampler.receive_wait_ns(), 50);
        // Nobody has tried to send since.
        sampler.look(0, true, 103);
        // A message is under way.
        sampler.called(0, true, false, 110);
        sampler.look(1, false, 153);
        sampler.called(1, true, false, 160);
        sampler.look(1, false, 203);
        assert_eq!(sampler.receive_wait_ns(), 50);
    }
}
