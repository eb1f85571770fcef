//! Why the ranks of a communicator do not go on, and which rank is at fault.

use core::fmt;

use super::rank_view::RankView;

/// The knowledge of the hub about a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankState {
    /// The rank was asked and has not had time to answer.
    Unknown,
    /// The rank's view.
    View(RankView),
    /// The rank does not answer.
    Silent {
        /// The rank's last view, if there was one.
        last: Option<RankView>,
        /// Whether the rank's host acknowledges what is sent to it over TCP, if that is known.
        host_answers: Option<bool>,
    },
    /// The rank has left the communicator.
    Left,
}

/// Why the ranks do not go on. Its display is one sentence, the same at all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankVerdict<'a> {
    /// The rank at fault, if one is.
    pub culprit: Option<u32>,
    /// Why the ranks do not go on.
    pub cause: RankCause<'a>,
    /// The rank that has waited longest.
    pub waiting: (u32, &'a RankView),
}

/// Why the ranks do not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankCause<'a> {
    /// The rank at fault does not answer.
    Silent {
        /// The rank's last view, if there was one.
        last: Option<&'a RankView>,
        /// Whether the rank's host acknowledges what is sent to it over TCP, if that is known.
        host_answers: Option<bool>,
    },
    /// The rank at fault has left the communicator.
    Left,
    /// The rank at fault runs no operation.
    Outside(&'a RankView),
    /// Ranks run different operations. The rank at fault is the one that differs from most ranks.
    Mismatch {
        /// The rank at fault, or one of two ranks that differ.
        rank: (u32, &'a RankView),
        /// A rank that runs the operation of the others.
        other: (u32, &'a RankView),
    },
    /// The rank at fault runs its operation and does not wait.
    Busy(&'a RankView),
    /// Data of one rank does not arrive at another.
    Network {
        /// The rank that has sent.
        from: (u32, &'a RankView),
        /// The rank that waits.
        to: (u32, &'a RankView),
    },
    /// The ranks wait for each other: in the same collective, or in sends and receives that do not meet.
    Circle,
}

/// Returns why the ranks do not go on. Returns `None` if no rank is stuck, or if a rank that matters has not
/// answered yet.
pub fn judge_ranks(states: &[RankState]) -> Option<RankVerdict<'_>> {
    let views = || {
        states.iter().zip(0..).filter_map(|(state, rank)| match state {
            RankState::View(view) => Some((rank, view)),
            _ => None,
        })
    };
    let stuck = views().filter(|(_, view)| view.is_inside && view.is_stuck);
    // Of equal times, the first rank counts.
    let waiting = stuck.reduce(|a, b| if b.1.still_ms > a.1.still_ms { b } else { a })?;
    let verdict = |culprit, cause| Some(RankVerdict { culprit, cause, waiting });
    if let Some((culprit, rank, other)) = mismatch(views, states.len()) {
        return verdict(culprit, RankCause::Mismatch { rank, other });
    }
    let mut at = waiting;
    for _ in 0..=states.len() {
        let next = at.1.waits_for?;
        let view = match states.get(next as usize)? {
            RankState::Unknown => return None,
            RankState::Left => return verdict(Some(next), RankCause::Left),
            RankState::Silent { last, host_answers } => {
                let cause = RankCause::Silent { last: last.as_ref(), host_answers: *host_answers };
                return verdict(Some(next), cause);
            }
            RankState::View(view) => view,
        };
        let has_passed = at.1.is_collective && view.entered > at.1.entered
            || at.1.is_collective && view.entered == at.1.entered && !view.is_inside;
        if view.in_flight_to == Some(at.0) || has_passed {
            let cause = RankCause::Network { from: (next, view), to: at };
            return verdict(None, cause);
        }
        if !view.is_inside {
            return verdict(Some(next), RankCause::Outside(view));
        }
        if view.waits_for.is_none() {
            return verdict(Some(next), RankCause::Busy(view));
        }
        if !view.is_stuck {
            // The rank has moved a short time ago, so it may go on.
            return None;
        }
        at = (next, view);
    }
    verdict(None, RankCause::Circle)
}

type Viewed<'a> = (u32, &'a RankView);

/// Finds two ranks that run different operations as the same collective, or have run them: a rank may be done
/// although others wait. Returns the rank at fault, if most of all ranks run the operation of the second rank.
fn mismatch<'a, I: Iterator<Item = Viewed<'a>>>(
    views: impl Fn() -> I,
    nranks: usize,
) -> Option<(Option<u32>, Viewed<'a>, Viewed<'a>)> {
    let collective = || views().filter(|(_, view)| view.is_collective);
    let inside = collective().filter(|(_, view)| view.is_inside);
    let (_, first) = inside.min_by_key(|(_, view)| view.entered)?;
    let peers = || collective().filter(|(_, view)| view.entered == first.entered);
    let count = |of: &RankView| peers().filter(|(_, view)| view.operation == of.operation).count();
    let most = peers().max_by_key(|(rank, view)| (count(view), core::cmp::Reverse(*rank)))?;
    let other = peers().find(|(_, view)| view.operation != most.1.operation)?;
    // Ranks that are not there yet may run either operation.
    let culprit = (2 * count(most.1) > nranks).then_some(other.0);
    Some((culprit, other, most))
}

impl fmt::Display for RankVerdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, view) = self.waiting;
        let culprit = self.culprit.unwrap_or_default();
        match &self.cause {
            RankCause::Silent { last, host_answers } => {
                write!(f, "rank {culprit}")?;
                if let Some(RankView { process, .. }) = last {
                    write!(f, " ({process})")?;
                }
                f.write_str(match host_answers {
                    Some(true) => {
                        " does not answer, and its host does: its process is stopped (SIGSTOP, a \
                         debugger) or gets no processor"
                    }
                    Some(false) => {
                        " does not answer, nor does its host: it is down, frozen, or the network \
                         to it is cut"
                    }
                    None => " does not answer: its process is stopped, or its host is gone",
                })?;
            }
            RankCause::Left => write!(f, "rank {culprit} has left the communicator")?,
            RankCause::Outside(of) => {
                write!(f, "rank {culprit} ({}) ", of.process)?;
                match view.is_collective {
                    true => write!(f, "has not entered {}", named(view))?,
                    false => write!(f, "is in no call, while rank {waiting} runs {}", named(view))?,
                }
                match of.operation.as_str() {
                    "" => f.write_str("; it has made no call yet")?,
                    _ => write!(f, "; its last call, {}, ended", named(of))
                        .and_then(|()| write!(f, " {} ago", Seconds(of.still_ms)))?,
                }
            }
            RankCause::Mismatch { rank: (rank, view), other: (other, theirs) } => {
                let but = if self.culprit.is_some() { "but" } else { "and" };
                write!(f, "rank {rank} ({}) runs {}, {but} ", view.process, named(view))?;
                write!(f, "rank {other} ({}) runs {}: ", theirs.process, named(theirs))?;
                f.write_str("all ranks must make the same calls with the same count and type")?;
            }
            RankCause::Busy(of) => write!(
                f,
                "rank {culprit} ({}) is in {} and waits for nobody: it gets too little processor \
                 time, or is slow",
                of.process,
                named(of)
            )?,
            RankCause::Network { from: (from, sent), to: (to, waits) } => write!(
                f,
                "data of rank {from} ({}) does not arrive at rank {to} ({}) in {}: look at the \
                 network between them (firewall, MTU, port counters; invar doctor --peer)",
                sent.process,
                waits.process,
                named(waits)
            )?,
            RankCause::Circle if !view.is_collective => write!(
                f,
                "ranks wait for each other, one of them in {}: let peers send and receive in the same \
                 order, or put the calls into a group",
                named(view)
            )?,
            RankCause::Circle => write!(
                f,
                "all ranks are in {} and wait for each other, and no data is on its way: this is a \
                 defect, please report it",
                named(view)
            )?,
        }
        // A rank that has met a message of another length has not waited.
        if view.still_ms >= 100 {
            let still = Seconds(view.still_ms);
            write!(f, "; rank {waiting} ({}) has waited for {still}", view.process)?;
        }
        self.write_action(f)
    }
}

impl RankVerdict<'_> {
    /// Says what the user can do, if the cause has not said so.
    fn write_action(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let culprit = self.culprit.unwrap_or_default();
        match &self.cause {
            RankCause::Silent { host_answers: Some(false), .. } => {
                write!(f, "; look at the console and the link of rank {culprit}'s host")
            }
            RankCause::Silent { last: Some(last), .. } => {
                let pid = last.process.pid;
                write!(f, "; look at the state of rank {culprit} (ps -o stat,wchan -p {pid})")
            }
            RankCause::Silent { last: None, .. } => {
                write!(f, "; look at the process and the host of rank {culprit}")
            }
            RankCause::Left => {
                write!(f, "; look at the log and the exit status of rank {culprit}'s program")
            }
            RankCause::Mismatch { rank: (rank, view), other: (other, theirs) }
                if self.culprit.is_none() =>
            {
                write!(f, "; look at the stacks of rank {rank} ({})", view.process.stack())?;
                write!(f, " and rank {other} ({})", theirs.process.stack())
            }
            RankCause::Mismatch { rank: (_, of), .. }
            | RankCause::Outside(of)
            | RankCause::Busy(of) => {
                write!(f, "; look at the stack of rank {culprit} ({})", of.process.stack())
            }
            RankCause::Network { .. } | RankCause::Circle => Ok(()),
        }
    }
}

/// Displays an operation with its number.
fn named(view: &RankView) -> impl fmt::Display {
    fmt::from_fn(move |f| match view.is_collective {
        true => write!(f, "collective {}, {}", view.entered, view.operation),
        false => f.write_str(&view.operation),
    })
}

/// Displays milliseconds as seconds.
struct Seconds(u32);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} s", self.0 / 1000, self.0 % 1000 / 100)
    }
}

#[cfg(test)]
mod tests;
