//! One rank: what it is at, and what came of it.

use invar::ErrorKind;
use invar::communicator::net::Network;
use invar::communicator::{Links, Plan, Progress};

use super::work::{Channels, Memory, Work};

/// How long a rank that sees a peer's connection end waits for the reason.
const NEWS_WITHIN_NS: u64 = 300_000_000;
/// What is under way when nothing is.
const IDLE: &str = "ACTIVE LINKS\n[X]\n";

/// A rank that is alive.
pub(super) struct Rank {
    // In the order in which they end: what uses the links, then these.
    under_way: Option<(Plan, Memory)>,
    links: Links,
    network: Network,
    number: u32,
    /// Works that are done.
    pub(super) done: usize,
    pub(super) state: State,
}

/// How far it is.
pub(super) enum State {
    Working,
    /// Its network says so; since when.
    Failing(String, u64),
    /// It was told by others, or told them, at that time.
    Failed(String, u64),
    /// All is done, and all that it sent is there.
    Over,
}

/// What a rank does in a turn.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Share {
    /// Steps of its plan, without a look at its links.
    Steps,
    /// What moves its links alone, as while it has no step to take.
    Links,
    /// Both, as it does while it waits.
    Both,
}

impl Share {
    pub(super) const ALL: [Share; 3] = [Share::Steps, Share::Links, Share::Both];
}

/// What came of a turn.
pub(super) enum Turn {
    /// Something moved.
    Moved,
    /// It waits.
    Waiting,
    /// It has given up, and tells the others.
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

    /// Does what it can do now. `heard` is what others have told of a failure.
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

    /// Nothing that it had under way goes on.
    fn fail(&mut self, text: String, now_ns: u64) {
        self.under_way = None;
        self.state = State::Failed(text, now_ns);
    }
}
