//! Buffers to send from and to receive into, within one registered region.

use std::sync::atomic::{AtomicU64, Ordering};

use invar_core::nic::{Memory, Nic};

use crate::duo::Buffer;
use crate::pattern::pattern;

/// The bytes on either side of a message that nobody may touch.
const GUARD: usize = 16;
const UNTOUCHED: u8 = 0xee;
const UNTOUCHED_WORD: u64 = u64::from_ne_bytes([UNTOUCHED; 8]);

/// One buffer, and the offset from its 8-byte boundary at which it is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    index: usize,
    shift: usize,
}

pub(super) struct Cells<N: Nic> {
    buffer: Buffer<N>,
    /// Bytes from one cell to the next, in whole words.
    stride: usize,
    free: Vec<usize>,
}

impl<N: Nic> Cells<N> {
    pub(super) fn new(nic: &N, pd: &N::Pd, count: usize, message_bytes_max: usize) -> Self {
        let stride = (2 * GUARD + 8 + message_bytes_max).next_multiple_of(8);
        let buffer = Buffer::new(nic, pd, count * stride);
        wipe(buffer.memory.words());
        Cells { buffer, stride, free: (0..count).collect() }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn take(&mut self, shift: usize) -> Cell {
        let index = self.free.pop().expect("asked before");
        self.check_free(index);
        Cell { index, shift: shift % 8 }
    }

    /// Gives a cell back. From now on nobody may write it, and what it had is gone.
    pub(super) fn give(&mut self, cell: Cell) {
        wipe(self.words(cell.index));
        self.free.push(cell.index);
    }

    /// Checks that nobody has written to a cell since it was given back.
    pub(super) fn check_all_free(&self) {
        self.free.iter().for_each(|index| self.check_free(*index));
    }

    fn check_free(&self, index: usize) {
        let touched = |word: &AtomicU64| word.load(Ordering::Acquire) != UNTOUCHED_WORD;
        let at = self.words(index).iter().position(touched);
        assert_eq!(at, None, "a word of a buffer that was given back was written");
    }

    fn words(&self, index: usize) -> &[AtomicU64] {
        let words = self.stride / size_of::<u64>();
        &self.buffer.memory.words()[index * words..][..words]
    }

    pub(super) fn buffer(&self) -> &Buffer<N> {
        &self.buffer
    }

    pub(super) fn addr(&self, cell: &Cell) -> u64 {
        self.buffer.addr(self.start(cell))
    }

    /// Writes a message into the cell.
    pub(super) fn fill(&self, cell: &Cell, message: u64, len: u32) {
        self.buffer.write(self.start(cell), &pattern(message as usize, len as usize));
    }

    /// Checks that the message is in the cell and that no other byte was written.
    pub(super) fn check(&self, cell: &Cell, message: u64, len: u32) {
        let found = self.buffer.read(cell.index * self.stride, self.stride);
        let mut expected = vec![UNTOUCHED; self.stride];
        let start = GUARD + cell.shift;
        expected[start..][..len as usize].copy_from_slice(&pattern(message as usize, len as usize));
        if found != expected {
            let at = (0..self.stride).find(|at| found[*at] != expected[*at]);
            panic!("byte {at:?} is wrong where message {message} has {start}..+{len}");
        }
    }

    fn start(&self, cell: &Cell) -> usize {
        cell.index * self.stride + GUARD + cell.shift
    }
}

fn wipe(words: &[AtomicU64]) {
    words.iter().for_each(|word| word.store(UNTOUCHED_WORD, Ordering::Relaxed));
}
