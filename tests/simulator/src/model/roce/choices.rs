//! The source of a script's choices.

use crate::random::Random;

/// An endless source of choices.
#[derive(Clone, Debug)]
pub enum Choices<'a> {
    /// A stream without end.
    Random(Random),
    /// One or more bytes for each choice. When the bytes are used up, each choice is 0, the dullest
    /// one.
    Bytes(&'a [u8]),
}

impl Choices<'_> {
    /// A number below `n`. `n` must not be 0.
    pub fn below(&mut self, n: u32) -> u32 {
        let word = match self {
            Choices::Random(random) => random.next(),
            Choices::Bytes(bytes) => {
                let taken = if n <= 256 { 1 } else { 4 }.min(bytes.len());
                let (now, later) = bytes.split_at(taken);
                *bytes = later;
                now.iter().fold(0, |word, &byte| word << 8 | u64::from(byte))
            }
        };
        (word % u64::from(n)) as u32
    }

    /// True in `percent` of a hundred calls.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) >= 100 - percent
    }

    /// One of the given values.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }
}
