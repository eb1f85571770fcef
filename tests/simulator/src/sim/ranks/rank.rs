//! One rank with its current work and its state.

use invar::ErrorKind;
use invar::communicator::net::Network;
use invar::communicator::{Links, Plan, Progress};

use super::MachineState;
use super::work::{Channels, Memory, Work};

/// The time that a rank waits for news after a peer's connection has ended.
const NEWS_WITHIN_NS: u64 = 300_000_000;
/// The dump of a network without operations.
const IDLE: &str = "ACTIVE LINKS\n[X]\n";

/// A rank that is alive.
pub(super) struct Rank {
    // The fields are dropped in this order: the plan uses the links, so it ends first.
    under_way: Option<(Plan, Memory)>,
    links: Links,
    network: Network,
    number: u32,
    /// The number of works that are done.
    pub(super) done: usize,
    pub(super) state: State,
}

/// The state of a rank.
pub(super) enum State {
    Working,
    /// The rank's own network has reported a failure, at this time.
    Failing(String, u64),
    /// The rank was told of a failure or told others, at this time.
    Failed(String, u64),
    /// All works are done, and the peers have everything that this rank sent.
    Over,
}

/// The share of the work that a rank does in a turn.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Share {
    /// The rank takes steps of its plan and leaves its links alone.
    Steps,
    /// The rank moves its links alone, as it does while it has no step to take.
    Links,
    /// The rank does both, as it does while it waits.
    Both,
}

impl Share {
    pub(super) const ALL: [Share; 3] = [Share::Steps, Share::Links, Share::Both];
}

/// The result of a turn.
pub(super) enum Turn {
    /// The rank made progress.
    Moved,
    /// The rank waits.
    Waiting,
    /// The rank has failed and tells the others why.
    Tells(String),
}

impl Rank {
    pub(super) fn new(number: u32, links: Links, network: Network) -> Self {
        Rank { under_way: None, links, network, number, done: 0, state: State::Working }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over | State::Failed(..))
    }

    /// The state for the record of faults.
    pub(super) fn machine(&self, works: &[Work]) -> MachineState {
        match &self.state {
            State::Working => match works.get(self.done) {
                None => MachineState::RankDraining,
                Some(_) if self.under_way.is_none() => MachineState::RankBetween,
                Some(work) => work.machine(),
            },
            State::Failing(..) => MachineState::RankFailing,
            State::Failed(..) => MachineState::RankFailed,
            State::Over => MachineState::RankOver,
        }
    }

    /// Does all work that the rank can do now. `heard` is a failure that others have reported.
    pub(super) fn turn(
        &mut self,
        works: &[Work],
        channels: &Channels,
        share: Share,
        heard: Option<String>,
        now_ns: u64,
    ) -> Turn {
        match (&self.state, heard) {
            (State::Over | State::Failed(..), _) => Turn::Waiting,
            (_, Some(text)) => {
                self.fail(text, now_ns);
                Turn::Moved
            }
            (State::Failing(_, since), None) if now_ns - since < NEWS_WITHIN_NS => Turn::Waiting,
            (State::Failing(text, _), None) => {
                let text = text.clone();
                self.fail(text.clone(), now_ns);
                Turn::Tells(text)
            }
            (State::Working, None) => match self.work(works, channels, share) {
                Ok(true) => Turn::Moved,
                Ok(false) => Turn::Waiting,
                Err(error) if matches!(error.kind(), ErrorKind::Peer | ErrorKind::Network) => {
                    self.state = State::Failing(error.to_string(), now_ns);
                    Turn::Moved
                }
                Err(error) => panic!("rank {}: {error}", self.number),
            },
        }
    }

    fn work(
        &mut self,
        works: &[Work],
        channels: &Channels,
        share: Share,
    ) -> Result<bool, invar::Error> {
        let Some(work) = works.get(self.done) else {
            self.links.progress()?;
            let is_over = self.network.dump() == IDLE;
            if is_over {
                self.state = State::Over;
            }
            return Ok(is_over);
        };
        if self.under_way.is_none() {
            let (plan, memory) = work.begin(channels, self.number);
            plan.prepare(&mut self.links)?;
            self.under_way = Some((plan, memory));
        }
        let Some((plan, memory)) = &mut self.under_way else { return Ok(false) };
        if share == Share::Links {
            self.links.progress()?;
            return Ok(false);
        }
        let progress = plan.advance(&mut self.links)?;
        if progress == Progress::Done {
            work.check(self.number, memory);
            self.under_way = None;
            self.done += 1;
        }
        if share == Share::Both {
            self.links.progress()?;
        }
        Ok(!matches!(progress, Progress::Waiting(_)))
    }

    /// Marks the rank as failed. Its plan does not go on.
    fn fail(&mut self, text: String, now_ns: u64) {
        self.under_way = None;
        self.state = State::Failed(text, now_ns);
    }
}
