//! Timers of the queue pairs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Device;
use super::posted::DeviceEnv;

/// The deadlines of queue pairs, soonest first.
///
/// Each acknowledge moves a deadline, nearly always to a later time. So an entry keeps its time in the
/// heap. When that time comes, the device checks the queue pair and enters its current deadline. Under
/// load an entry moves once per timer period, not once per packet. Each queue pair knows the earliest
/// time of its entries (`armed_ns`); its other entries have no effect.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Timers {
    /// Makes the device check a queue pair by its deadline.
    #[inline]
    pub(super) fn arm(&mut self, qpn: u32, deadline_ns: u64, armed_ns: &mut u64) {
        if deadline_ns < *armed_ns {
            *armed_ns = deadline_ns;
            self.heap.push(Reverse((deadline_ns, qpn)));
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns a queue pair that is due now. `armed_ns` returns the armed time of a queue pair, if it
    /// exists.
    fn pop_due(&mut self, now_ns: u64, armed_ns: impl Fn(u32) -> Option<u64>) -> Option<u32> {
        while self.next_ns()? <= now_ns {
            let Reverse((at, qpn)) = self.heap.pop()?;
            if armed_ns(qpn) == Some(at) {
                return Some(qpn);
            }
        }
        None
    }
}

impl Device {
    /// Runs due timers. Call this at [`Device::next_deadline_ns`]; more calls do no harm.
    #[inline]
    pub fn handle_timers(&mut self, now_ns: u64) {
        let Device { timers, qps, regions, windows, cqs, events, srqs, notices, ready, .. } = self;
        while let Some(qpn) = timers.pop_due(now_ns, |qpn| qps.get(qpn).map(|qp| qp.armed_ns)) {
            let Some(qp) = qps.get_mut(qpn) else { continue };
            qp.armed_ns = u64::MAX;
            let deadline_ns = qp.deadline_ns();
            if deadline_ns > now_ns {
                timers.arm(qpn, deadline_ns, &mut qp.armed_ns);
                continue;
            }
            let mut env = DeviceEnv { regions, windows, cqs, events, srqs, notices };
            qp.handle_timeout(now_ns, &mut env);
            qp.follow_up(qpn, &mut env, ready);
        }
    }

    /// Returns the time at which [`Device::handle_timers`] and [`Device::transmit`] are due, on the
    /// clock of their `now_ns`. Returns `None` if nothing is due before the next other call. The result
    /// may be too early, but never too late.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QPS: usize = 4;
    const NEVER: u64 = u64::MAX;

    #[derive(Clone, Debug)]
    enum TimerStep {
        /// The deadline of a queue pair moves to this long after now, or is removed.
        Move(usize, Option<u64>),
        /// This much time passes.
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<TimerStep>> {
        let step = prop_oneof![
            (0..QPS, proptest::option::of(0u64..1000)).prop_map(|(qp, at)| TimerStep::Move(qp, at)),
            (0u64..300).prop_map(TimerStep::Pass),
        ];
        proptest::collection::vec(step, 0..300)
    }

    proptest! {
        #[test]
        fn every_deadline_is_met_in_time_and_none_is_there_twice(steps in steps()) {
            let mut timers = Timers::default();
            let (mut now, mut deadlines, mut armed) = (0, [NEVER; QPS], [NEVER; QPS]);
            for (i, step) in (1..).zip(steps) {
                match step {
                    TimerStep::Move(qp, in_ns) => {
                        // All deadlines differ, so an entry that appears twice was entered twice.
                        deadlines[qp] = in_ns.map_or(NEVER, |ns| now + ns * 1024 + i);
                        timers.arm(qp as u32, deadlines[qp], &mut armed[qp]);
                    }
                    TimerStep::Pass(ns) => now += ns * 1024,
                }
                while let Some(qpn) = timers.pop_due(now, |qpn| Some(armed[qpn as usize])) {
                    let qp = qpn as usize;
                    armed[qp] = NEVER;
                    if deadlines[qp] <= now {
                        deadlines[qp] = NEVER;
                    }
                    timers.arm(qpn, deadlines[qp], &mut armed[qp]);
                }
                let soonest = deadlines.iter().copied().min().unwrap_or(NEVER);
                prop_assert!(soonest > now, "missed");
                prop_assert!(timers.next_ns().unwrap_or(NEVER) <= soonest);
                for (qp, &at) in armed.iter().enumerate().filter(|(_, at)| **at != NEVER) {
                    let entry = Reverse((at, qp as u32));
                    prop_assert_eq!(timers.heap.iter().filter(|e| **e == entry).count(), 1);
                }
            }
        }
    }
}
