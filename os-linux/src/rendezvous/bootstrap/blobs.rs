//! The blobs that have arrived and that nobody has asked for.

use std::collections::{HashMap, VecDeque};

/// Bytes that count for each tag that has blobs.
pub(super) const ENTRY_BYTES: usize = 128;

/// The blobs of each sender and tag.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    /// By sender and tag: the bytes of consecutive blobs, each behind its length.
    waiting: HashMap<(u32, u32), VecDeque<u8>>,
    bytes: usize,
}

impl Blobs {
    /// Returns the bytes of all blobs, and of their tags.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a piece of a blob.
    pub(super) fn add(&mut self, from: (u32, u32), piece: &[u8]) {
        let waiting = self.waiting.entry(from).or_insert_with(|| {
            self.bytes += ENTRY_BYTES;
            VecDeque::new()
        });
        waiting.extend(piece);
        self.bytes += piece.len();
    }

    /// Takes the next blob, if it is complete.
    pub(super) fn take(&mut self, from: (u32, u32)) -> Option<Vec<u8>> {
        let waiting = self.waiting.get_mut(&from)?;
        let mut len = [0; 4];
        if waiting.len() < len.len() {
            return None;
        }
        len.iter_mut().zip(waiting.iter()).for_each(|(to, byte)| *to = *byte);
        let end = u32::from_le_bytes(len) as usize + len.len();
        if waiting.len() < end {
            return None;
        }
        let blob = waiting.drain(..end).skip(len.len()).collect();
        self.bytes -= end;
        if waiting.is_empty() {
            self.waiting.remove(&from);
            self.bytes -= ENTRY_BYTES;
        }
        Some(blob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tag_that_nobody_asks_for_counts_until_it_is_asked_for() {
        let mut blobs = Blobs::default();
        let pieces: [&[u8]; 3] = [&[], &[1, 0, 0], &[0, 7]];
        for (tag, piece) in (0..1000).flat_map(|tag| pieces.map(|piece| (tag, piece))) {
            blobs.add((3, tag), piece);
        }
        assert_eq!(blobs.bytes, 1000 * (ENTRY_BYTES + 5));
        assert!((0..1000).all(|tag| blobs.take((3, tag)) == Some(vec![7])));
        assert_eq!((blobs.bytes, blobs.waiting.len()), (0, 0));
    }
}
