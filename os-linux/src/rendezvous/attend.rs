//! A rank's part in finding out why ranks do not go on.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use invar_core::conn::Stream;
use invar_core::rendezvous::{NOBODY, RankView, RendezvousHeader, RendezvousKind};

use super::connection::Connection;

/// Time between two messages of a rank that is stuck.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// A hub that says nothing for this long after such a message does not answer.
const HUB_SILENT_AFTER: Duration = Duration::from_secs(4);

/// Knows what a rank does, and wants to know why it is stuck.
pub trait Attendant: Send + Sync {
    /// Returns the rank's view. Called about ten times a second.
    fn view(&self) -> RankView;
    /// Takes the verdict on all ranks.
    fn verdict(&self, verdict: GroupVerdict);
    /// Takes note that the rendezvous does not answer. `host` is the rank that runs it, and `host_answers`
    /// says whether its host acknowledges what this rank sends.
    fn hub_is_silent(&self, host: Option<u32>, host_answers: Option<bool>);
}

/// Why the ranks of a communicator do not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupVerdict {
    /// Time for which the first rank has waited.
    pub still: Duration,
    /// The rank at fault, if one is.
    pub culprit: Option<u32>,
    /// Whether ranks run different operations.
    pub is_mismatch: bool,
    /// A sentence, the same at all ranks.
    pub text: String,
}

impl GroupVerdict {
    /// Reads a verdict. Control characters become question marks.
    fn parse(tag: u32, body: &[u8]) -> Option<Self> {
        let (still_ms, rest) = body.split_first_chunk()?;
        let (culprit, text) = rest.split_first_chunk()?;
        Some(GroupVerdict {
            still: Duration::from_millis(u32::from_le_bytes(*still_ms).into()),
            culprit: Some(u32::from_le_bytes(*culprit)).filter(|rank| *rank != NOBODY),
            is_mismatch: tag == 1,
            text: super::text(text),
        })
    }
}

/// The rank's exchange with the hub.
#[derive(Default)]
pub(super) struct Exchange {
    attendant: Option<Arc<dyn Attendant>>,
    said: Option<Instant>,
    /// Whether the hub knows this rank's process.
    is_introduced: bool,
    /// The first message since the hub's last one.
    unanswered: Option<Instant>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("said", &self.said).finish_non_exhaustive()
    }
}

impl Exchange {
    pub(super) fn attend(&mut self, attendant: Arc<dyn Attendant>) {
        self.attendant = Some(attendant);
    }

    /// Says that the rank is stuck, if it is and it is time. `sender` is `None` while another thread sends.
    pub(super) fn look(&mut self, sender: Option<MutexGuard<'_, Connection>>, host: Option<u32>) {
        let Some(attendant) = &self.attendant else { return };
        let view = attendant.view();
        let Some(mut sender) = sender else { return };
        if !view.is_stuck {
            (self.said, self.unanswered) = (None, None);
            if !std::mem::replace(&mut self.is_introduced, true) {
                say(&mut sender, &view);
            }
            return;
        }
        if self.said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return;
        }
        if self.unanswered.is_some_and(|since| since.elapsed() >= HUB_SILENT_AFTER) {
            attendant.hub_is_silent(host, sender.stream().host_answers());
        }
        let now = Instant::now();
        self.said = Some(now);
        self.unanswered.get_or_insert(now);
        say(&mut sender, &view);
    }

    /// Answers the hub.
    pub(super) fn heard(
        &mut self,
        header: RendezvousHeader,
        body: &[u8],
        sender: Option<MutexGuard<'_, Connection>>,
    ) {
        self.unanswered = None;
        let Some(attendant) = &self.attendant else { return };
        match (header.kind, sender) {
            (RendezvousKind::Ask, Some(mut sender)) => say(&mut sender, &attendant.view()),
            (RendezvousKind::Verdict, _) => {
                if let Some(verdict) = GroupVerdict::parse(header.tag, body) {
                    attendant.verdict(verdict);
                }
            }
            _ => {}
        }
    }
}

fn say(sender: &mut Connection, view: &RankView) {
    let bytes = view.to_bytes();
    // The watching thread notices a lost connection when it receives.
    let _ = sender.send(RendezvousHeader::new(RendezvousKind::View, bytes.len()), &bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_read_or_refused_whatever_the_bytes() {
        let body = [&7_u32.to_le_bytes()[..], &2_u32.to_le_bytes(), b"rank 2\x1b"].concat();
        let verdict = GroupVerdict::parse(1, &body).unwrap();
        let (still, is_mismatch) = (Duration::from_millis(7), true);
        let read =
            GroupVerdict { still, culprit: Some(2), is_mismatch, text: "rank 2?".to_owned() };
        assert_eq!(verdict, read);
        assert_eq!(GroupVerdict::parse(0, &body[..7]), None);
        let nobody = [&7_u32.to_le_bytes()[..], &NOBODY.to_le_bytes()].concat();
        let verdict = GroupVerdict::parse(0, &nobody).unwrap();
        assert!(verdict.culprit.is_none() && !verdict.is_mismatch);
    }
}
