//! How the bytes of long messages are shared among the rails of a connection.
//!
//! Each rail has a *weight*, which is its part of the speed of all rails. The sender knows how many bytes each rail
//! has yet to finish. It divides a message so that afterwards all rails have work for the same time. So a rail that
//! falls behind gets less at once, and a rail that carries nothing any more gets nothing.
//!
//! Weights begin with the speeds of the ports and then follow the truth: a rail that finishes most messages after
//! all other rails has too large a weight.

use crate::conn::{RAILS_MAX, RailSet};
use crate::fifo::RECVS_MAX;
use crate::request::ROWS;

/// All weights together.
const WEIGHTS: u16 = 1024;
/// The number of long messages after which weights are compared.
const WINDOW: u32 = 16;
/// A weight that is too large loses one in so many parts.
const STEP: u16 = 16;
/// The parts into which a message is divided.
const PARTS: u64 = 255;

/// The bytes that each rail of a sender has yet to finish.
pub(super) struct Backlog {
    left: [u64; RAILS_MAX],
    /// The rows that are under way.
    rows: [Shares; ROWS],
    /// The division of the row that was posted last.
    pub(super) last: Shares,
}

/// The division of a row.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    bytes: u32,
    /// The part of each rail whose completion is awaited, of [`PARTS`].
    parts: [u8; RAILS_MAX],
}

impl Shares {
    pub(super) const NONE: Self = Shares { bytes: 0, parts: [0; RAILS_MAX] };

    /// All parts together, and the parts of one rail.
    #[inline(always)]
    pub(super) fn of(&self, rail: usize) -> (u64, u64) {
        let sum = self.parts.iter().map(|part| u64::from(*part)).sum();
        (sum, self.parts[rail % RAILS_MAX].into())
    }

    fn bytes_of(&self, rail: usize) -> u64 {
        u64::from(self.bytes) * u64::from(self.parts[rail]) / PARTS
    }
}

impl Backlog {
    pub(super) const NONE: Self =
        Backlog { left: [0; RAILS_MAX], rows: [Shares::NONE; ROWS], last: Shares::NONE };

    /// Divides the `bytes` of a row among rails with these weights.
    pub(super) fn divide(&mut self, weights: &[u16; RAILS_MAX], row: u8, bytes: u32) -> Shares {
        let weight: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let all = self.left.iter().sum::<u64>() + u64::from(bytes);
        let gets = |rail: usize| {
            let due = u64::from(weights[rail]) * all / weight.max(1);
            due.saturating_sub(self.left[rail])
        };
        let gets: [u64; RAILS_MAX] = core::array::from_fn(gets);
        let sum = gets.iter().sum::<u64>().max(1);
        let shares = Shares { bytes, parts: gets.map(|gets| (gets * PARTS / sum) as u8) };
        for (rail, left) in self.left.iter_mut().enumerate() {
            *left += shares.bytes_of(rail);
        }
        self.rows[usize::from(row) % ROWS] = shares;
        self.last = shares;
        shares
    }

    /// Takes a completion of the message with this token on a rail.
    #[inline(always)]
    pub(super) fn finish(&mut self, token: u32, rail: usize) {
        let rail = rail % RAILS_MAX;
        let shares = &mut self.rows[token as usize / RECVS_MAX % ROWS];
        // A small row is not divided.
        if shares.parts[rail] == 0 {
            return;
        }
        let left = &mut self.left[rail];
        *left = left.saturating_sub(shares.bytes_of(rail));
        shares.parts[rail] = 0;
    }
}

/// Divides [`WEIGHTS`] by speed.
pub(super) fn weights(speeds: &[u32; RAILS_MAX]) -> [u16; RAILS_MAX] {
    let sum: u64 = speeds.iter().map(|speed| u64::from(*speed)).sum();
    speeds.map(|speed| (u64::from(speed) * u64::from(WEIGHTS) / sum.max(1)) as u16)
}

/// Moves weight between the rails. `last` says for each rail how many long messages it finished after all
/// other rails. A rail that is last more often than its turn has too large a weight.
pub(super) fn balance(
    weights: &mut [u16; RAILS_MAX],
    in_use: RailSet,
    last: &mut [u32; RAILS_MAX],
) {
    let sum = in_use.iter().fold(0_u32, |sum, rail| sum.saturating_add(last[rail]));
    if sum < WINDOW {
        return;
    }
    let turn = sum / in_use.len() as u32;
    let slowest = in_use.iter().max_by_key(|rail| last[*rail]);
    let fastest = in_use.iter().min_by_key(|rail| last[*rail]);
    if let (Some(slowest), Some(fastest)) = (slowest, fastest)
        && last[slowest].saturating_sub(turn) > turn / 2
    {
        let moved = weights[slowest].div_ceil(STEP).min(weights[slowest]);
        weights[slowest] -= moved;
        weights[fastest] += moved;
    }
    *last = [0; RAILS_MAX];
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::VecDeque;

    use super::*;

    /// The time between two comparisons of the weights.
    const LOOK: u32 = 20;
    const MESSAGES: u32 = 2000;
    const LEN: u32 = 100_000;

    /// Sends messages over two rails, with `window` under way. In a unit of time a rail moves the bytes of
    /// `speeds`. Returns the part of both rails' speed that the messages get, and the weights at the end.
    fn send(window: usize, speeds: [u32; 2]) -> (f64, [u16; 2]) {
        let in_use = RailSet::first(2);
        let (mut weights, mut last) = (weights(&[1, 1, 0, 0, 0, 0, 0, 0]), [0; RAILS_MAX]);
        let (mut backlog, mut done, mut sent, mut time) = (Backlog::NONE, [0; 2], 0, 0);
        let mut queues = [const { VecDeque::new() }; 2];
        while done.iter().min() < Some(&MESSAGES) {
            while queues.iter().map(VecDeque::len).max() < Some(window) {
                let row = (sent % ROWS as u32) as u8;
                let shares = backlog.divide(&weights, row, LEN);
                for (rail, queue) in queues.iter_mut().enumerate() {
                    queue.push_back((u32::from(row), shares.bytes_of(rail) as u32));
                }
                sent += 1;
            }
            for (rail, (queue, mut speed)) in queues.iter_mut().zip(speeds).enumerate() {
                while let Some((row, bytes)) = queue.front_mut() {
                    let moved = speed.min(*bytes);
                    (*bytes, speed) = (*bytes - moved, speed - moved);
                    if *bytes > 0 {
                        break;
                    }
                    backlog.finish(*row * RECVS_MAX as u32, rail);
                    queue.pop_front();
                    done[rail] += 1;
                    last[rail] += u32::from(done[rail] <= done[1 - rail]);
                }
            }
            time += 1;
            if time % LOOK == 0 {
                balance(&mut weights, in_use, &mut last);
            }
        }
        let all = f64::from(MESSAGES) * f64::from(LEN);
        let could = f64::from(time) * f64::from(speeds[0] + speeds[1]);
        (all / could, [weights[0], weights[1]])
    }

    #[test]
    fn two_rails_of_any_speeds_are_both_used_if_some_messages_are_under_way() {
        for speeds in [[4000, 1000], [1000, 4000], [8000, 1000], [2500, 2500], [5000, 4500]] {
            for window in [4, 8, 32] {
                let (used, weights) = send(window, speeds);
                assert!(used > 0.85, "{speeds:?} {window}: {used} {weights:?}");
            }
        }
    }

    #[test]
    fn weights_follow_the_speeds_where_one_message_is_under_way() {
        let (used, weights) = send(1, [4000, 1000]);
        assert!(used > 0.7 && (750..880).contains(&weights[0]), "{used} {weights:?}");
    }

    #[test]
    fn a_rail_that_carries_nothing_any_more_gets_nothing() {
        let mut backlog = Backlog::NONE;
        let weights = weights(&[1, 1, 0, 0, 0, 0, 0, 0]);
        for row in 0..20 {
            backlog.divide(&weights, row, LEN);
            backlog.finish(u32::from(row) * RECVS_MAX as u32, 0);
        }
        assert_eq!(backlog.divide(&weights, 20, LEN).of(1).1, 0);
        assert!(backlog.left[1] <= u64::from(LEN), "{:?}", backlog.left);
    }

    #[test]
    fn nothing_is_left_of_rows_that_are_over() {
        let mut backlog = Backlog::NONE;
        let weights = weights(&[7, 3, 5, 1, 0, 0, 0, 0]);
        for turn in 0..3 * ROWS as u32 {
            let bytes = turn.wrapping_mul(0x9e37_79b9) % (1 << 31);
            let sum = backlog.divide(&weights, turn as u8, bytes).of(0).0;
            assert!(bytes == 0 || (PARTS - 8..=PARTS).contains(&sum), "{bytes}: {sum}");
            for rail in 0..RAILS_MAX {
                // A rail has several queue pairs, and each completes.
                (0..2).for_each(|_| backlog.finish(turn % ROWS as u32 * RECVS_MAX as u32, rail));
            }
            assert_eq!(backlog.left, [0; RAILS_MAX]);
        }
    }

    #[test]
    fn weights_begin_with_the_speeds() {
        assert_eq!(weights(&[100, 300, 0, 0, 0, 0, 0, 0])[..3], [256, 768, 0]);
        assert_eq!(weights(&[u32::MAX; RAILS_MAX]), [128; RAILS_MAX]);
    }
}
