//! Windows of blocks. Each rank has a block of the same length, and the blocks lie one behind the other.
//! An `iallgather` or `ireducescatter` covers a window of them: NCCL cuts long collectives into windows
//! that it has in progress at once (`coll_net.cc calcAlgoOffset`).
//!
//! ```text
//! blocks   | rank 0        | rank 1        | rank 2        |
//! window            |=====================|                 offset, bytes
//! pieces            | 0    | 1            |
//! ```
//!
//! If the window is all blocks, the call is one all-gather or reduce-scatter. Otherwise each piece is a
//! broadcast from its rank, or a reduction to it. A window of a long collective mostly has one piece.

use std::ops::Range;

use invar::communicator::{Operation, RawOperation};
use invar::{DataType, RedOp};

use crate::outcome::{Failed, misused};

/// A window of the blocks of all ranks, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) block: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// A reduction and its type; for an all-gather, bytes without a reduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub(super) data_type: DataType,
    pub(super) redop: Option<RedOp>,
}

impl Window {
    /// Checks that the window lies within the blocks of `nranks` ranks, and consists of whole elements.
    pub(super) fn check(
        &self,
        function: &str,
        nranks: u32,
        element_bytes: usize,
    ) -> Result<(), Failed> {
        let Window { block, offset, len } = *self;
        let all = block.checked_mul(nranks as usize);
        let end = offset.checked_add(len);
        if end.zip(all).is_none_or(|(end, all)| end > all) {
            return Err(misused(format_args!(
                "{function}: {len} bytes at {offset} are beyond {nranks} blocks of {block} bytes"
            )));
        }
        if [block, offset, len].iter().any(|bytes| !bytes.is_multiple_of(element_bytes)) {
            return Err(misused(format_args!(
                "{function}: {len} bytes at {offset} of blocks of {block} bytes are not whole elements \
                 of {element_bytes} bytes"
            )));
        }
        Ok(())
    }

    /// Returns the part of the window that is in a rank's block, as bytes of the window.
    pub(super) fn piece(&self, rank: u32) -> Range<usize> {
        let first = self.block.saturating_mul(rank as usize);
        let place = |at: usize| at.clamp(self.offset, self.offset + self.len) - self.offset;
        place(first)..place(first.saturating_add(self.block))
    }

    /// Whether the window is all blocks.
    fn is_all(&self, nranks: u32) -> bool {
        self.offset == 0 && self.len == self.block * nranks as usize
    }

    /// Returns the collectives of an `iallgather`. `own` is where this rank's piece comes from, and
    /// `window` is where all pieces go.
    pub(super) fn gather(
        &self,
        (rank, nranks): (u32, u32),
        own: *const u8,
        window: *mut u8,
    ) -> Vec<RawOperation> {
        let (data_type, redop) = (DataType::U8, None);
        if self.is_all(nranks) {
            let (operation, count) = (Operation::AllGather, self.block);
            let all =
                RawOperation { operation, count, data_type, redop, input: own, output: window };
            return vec![all];
        }
        let piece = |root: u32| {
            let piece = self.piece(root);
            let output = window.wrapping_add(piece.start);
            let input = if root == rank { own } else { output };
            let (operation, count) = (Operation::Broadcast { root }, piece.len());
            RawOperation { operation, count, data_type, redop, input, output }
        };
        self.ranks().map(piece).collect()
    }

    /// Returns the collectives of an `ireducescatter`. `window` has all pieces of this rank's input, and
    /// `own` is where this rank's piece of the result goes.
    pub(super) fn scatter(
        &self,
        (rank, nranks): (u32, u32),
        Elements { data_type, redop }: Elements,
        window: *const u8,
        own: *mut u8,
    ) -> Vec<RawOperation> {
        if self.is_all(nranks) {
            let (operation, count) = (Operation::ReduceScatter, self.block / data_type.bytes());
            let all =
                RawOperation { operation, count, data_type, redop, input: window, output: own };
            return vec![all];
        }
        let piece = |root: u32| {
            let piece = self.piece(root);
            let input = window.wrapping_add(piece.start);
            let output = if root == rank { own } else { input.cast_mut() };
            let (operation, count) = (Operation::Reduce { root }, piece.len() / data_type.bytes());
            RawOperation { operation, count, data_type, redop, input, output }
        };
        self.ranks().map(piece).collect()
    }

    /// Returns the ranks that have a piece of the window.
    fn ranks(&self) -> Range<u32> {
        match self.len {
            0 => 0..0,
            // The window lies within the blocks, so the block is not empty.
            len => {
                let (first, last) =
                    (self.offset / self.block, (self.offset + len - 1) / self.block);
                first as u32..last as u32 + 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn operations(collectives: &[RawOperation]) -> Vec<(Operation, usize)> {
        collectives.iter().map(|one| (one.operation, one.count)).collect()
    }

    #[test]
    fn a_window_of_all_blocks_is_one_collective_and_any_other_has_a_piece_for_each_rank_in_it() {
        let window = Window { block: 10, offset: 0, len: 30 };
        let gather =
            |window: Window| operations(&window.gather((1, 3), ptr::null(), ptr::null_mut()));
        assert_eq!(gather(window), [(Operation::AllGather, 10)]);
        let broadcast = |root| Operation::Broadcast { root };
        let part = Window { offset: 8, len: 14, ..window };
        assert_eq!(gather(part), [(broadcast(0), 2), (broadcast(1), 10), (broadcast(2), 2)]);
        assert_eq!(gather(Window { offset: 10, len: 10, ..window }), [(broadcast(1), 10)]);
        assert_eq!(gather(Window { offset: 10, len: 0, ..window }), []);
    }

    #[test]
    fn a_rank_receives_its_own_piece_of_the_reduced_window() {
        let window = Window { block: 8, offset: 4, len: 8 };
        let elements = Elements { data_type: DataType::F32, redop: Some(RedOp::Sum) };
        let (mut input, mut own) = ([0_u8; 8], [0_u8; 4]);
        let (input, own) = (input.as_mut_ptr(), own.as_mut_ptr());
        let pieces = window.scatter((1, 2), elements, input, own);
        let reduce = |root| (Operation::Reduce { root }, 1);
        assert_eq!(operations(&pieces), [reduce(0), reduce(1)]);
        assert_eq!((pieces[1].input, pieces[1].output), (input.wrapping_add(4).cast_const(), own));
        assert_eq!([0, 1].map(|rank| window.piece(rank)), [0..4, 4..8]);
    }

    #[test]
    fn windows_beyond_the_blocks_or_of_half_elements_are_refused() {
        let is_refused =
            |block, offset, len| Window { block, offset, len }.check("f", 2, 4).is_err();
        assert!(!is_refused(8, 4, 12));
        for (block, offset, len) in [(8, 4, 16), (8, usize::MAX, 4), (usize::MAX, 0, 0)] {
            assert!(is_refused(block, offset, len), "{block} {offset} {len}");
        }
        for (block, offset, len) in [(6, 0, 8), (8, 2, 4), (8, 4, 6)] {
            assert!(is_refused(block, offset, len), "{block} {offset} {len}");
        }
    }
}
