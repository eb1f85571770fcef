//! The texts of a campaign.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{Failure, Summary};

/// The progress of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The number of histories that ended well.
    pub done: u64,
    /// The number of histories of the whole campaign.
    pub of: u64,
    /// The time since the start.
    pub time: Duration,
}

impl Display for Progress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Progress { done, of, time } = *self;
        let rate = rate(done, time);
        write!(f, "{done} of {of} histories, {rate:.0} a second")?;
        if done > 0 {
            let left = (of.saturating_sub(done)) as f64 / rate;
            write!(f, ", {} left", Time(left as u64))?;
        }
        Ok(())
    }
}

/// Seconds, as people say them.
struct Time(u64);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Time(seconds) = *self;
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{} min", seconds / 60),
            _ => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Failure { seed, text, test } = self;
        writeln!(f, "the history of seed {seed} failed: {text}")?;
        writeln!(f, "to see this history alone:")?;
        write!(f, "INVAR_SIM_SEED={seed} cargo test --release -p invar-testkit --test {test}")
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Summary { simulation, time, seeds, passed, twice, total, .. } = self;
        let name = simulation.name;
        let rate = rate(*passed, *time);
        let seconds = Time(time.as_secs());
        writeln!(f, "{name}: {passed} histories passed in {seconds}, {rate:.0} a second")?;
        writeln!(f, "{twice} seeds were lived through twice, and gave equal histories")?;
        if *passed < seeds.end - seeds.start && self.failure.is_none() {
            writeln!(f, "stopped early: seeds {}..{} were asked for", seeds.start, seeds.end)?;
        }
        for event in simulation.events {
            writeln!(f, "{:>14} {}", total.counted(*event), event.name())?;
        }
        write!(f, "{}", total.coverage.table(simulation.faults, simulation.apart))?;
        if self.lacks_pairs() {
            writeln!(f, "in so many histories each of these pairs should have met")?;
        }
        match &self.failure {
            Some(failure) => writeln!(f, "{failure}"),
            None => Ok(()),
        }
    }
}

/// Histories a second.
fn rate(done: u64, time: Duration) -> f64 {
    done as f64 / time.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_long_it_takes() {
        let progress = |done, of, secs| Progress { done, of, time: Duration::from_secs(secs) };
        let text = |done, of, secs| progress(done, of, secs).to_string();
        assert_eq!(text(0, 10, 0), "0 of 10 histories, 0 a second");
        assert_eq!(text(100, 1000, 10), "100 of 1000 histories, 10 a second, 90 s left");
        assert_eq!(text(10, 10_000, 1), "10 of 10000 histories, 10 a second, 16 min left");
        assert_eq!(text(10, 100_000, 1), "10 of 100000 histories, 10 a second, 2 h 46 min left");
    }
}
