//! Prints the active operations for people who look for a hang (`proxy.cc dumpProxyState`).
//!
//! ```text
//! ACTIVE OPS
//! [0-3|7| Send 1G/0 2S/1]      bank-place | operation count | what, peer state / channel
//! | `-> [0-4|8| Send 1/0]      waits for the one above
//! v
//! [X]
//! ```
//!
//! The states are: `I` has steps to post, `R` receiving, `F` flushing, `G` waiting for the GPU, `S`
//! sending, `D` done. A sub has no state before its first step. NCCL prints states for point-to-point
//! operations only.

use core::fmt;

use super::{Args, Connection, Engine, OpStage, Sub};
use crate::math::STEPS;
use crate::proxy::{BANK_LEN, BankSlot, Banks, Pattern};
use crate::topology::Direction;

impl<A: Banks<BankSlot<Args>>, C: Banks<Option<Connection>>> fmt::Display for Engine<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ACTIVE OPS\n")?;
        let mut at = self.active.map(|(first, _)| first);
        while let Some((index, args)) = at.and_then(|index| Some((index, self.args.get(index)?))) {
            writeln!(f, "{}", Listed { index, args })?;
            let mut peer = args.next_peer;
            while let Some((index, args)) =
                peer.and_then(|index| Some((index, self.args.get(index)?)))
            {
                writeln!(f, "| `-> {}", Listed { index, args })?;
                peer = args.next_peer;
            }
            if args.next_peer.is_none() {
                f.write_str("|\n")?;
            }
            f.write_str("v\n")?;
            at = args.next;
        }
        f.write_str("[X]\n")
    }
}

struct Listed<'a> {
    index: u32,
    args: &'a Args,
}

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listed { index, args } = *self;
        let (bank, place) = (index as usize / BANK_LEN, index as usize % BANK_LEN);
        let what = match args.pattern {
            Pattern::Send => "Send",
            Pattern::Recv => "Recv",
            _ => "Coll",
        };
        write!(f, "[{bank}-{place}|{}| {what}", args.op_count)?;
        for sub in &args.subs {
            write!(f, " {}", sub.peer)?;
            if args.running {
                write!(f, "{}", state(sub, args.direction))?;
            }
            write!(f, "/{}", sub.channel)?;
        }
        f.write_str("]")
    }
}

/// The state of a sub. If a sub waits for several things, this is the first of them in the order of the
/// match.
fn state(sub: &Sub, direction: Direction) -> char {
    let past = |stage| sub.count(stage);
    let (posted, done) = (past(OpStage::Post), past(OpStage::Complete));
    match direction {
        _ if posted < sub.nsteps && posted < done.saturating_add(u64::from(STEPS)) => 'I',
        Direction::Send if past(OpStage::Transmit) < posted => 'G',
        Direction::Send if done < past(OpStage::Transmit) => 'S',
        Direction::Recv if past(OpStage::Receive) < posted => 'R',
        Direction::Recv if past(OpStage::Transmit) < past(OpStage::Receive) => 'F',
        Direction::Recv if done < past(OpStage::Transmit) => 'G',
        _ => 'D',
    }
}
