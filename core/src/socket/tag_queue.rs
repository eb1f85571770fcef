//! What waits for its counterpart: first in, first out by tag.

use heapless::Deque;

/// Up to `N` things in the order in which they came, each with a tag.
///
/// As a rule the oldest is the one that is asked for, and found at once. Behind one that nobody
/// asks for, places are given back only when it goes.
#[derive(Debug)]
pub(super) struct TagQueue<T, const N: usize> {
    entries: Deque<Entry<T>, N>,
    waiting: usize,
}

#[derive(Debug)]
struct Entry<T> {
    tag: u32,
    is_taken: bool,
    value: T,
}

impl<T: Copy, const N: usize> TagQueue<T, N> {
    pub(super) const fn new() -> Self {
        TagQueue { entries: Deque::new(), waiting: 0 }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many more it has room for.
    pub(super) fn room(&self) -> usize {
        N - self.entries.len()
    }

    /// Adds to the end; `false` where there is no room.
    #[must_use]
    pub(super) fn push(&mut self, tag: u32, value: T) -> bool {
        let is_in = self.entries.push_back(Entry { tag, is_taken: false, value }).is_ok();
        self.waiting += usize::from(is_in);
        is_in
    }

    /// The oldest with this tag.
    pub(super) fn peek(&self, tag: u32) -> Option<T> {
        self.entries.iter().find(|entry| entry.is(tag)).map(|entry| entry.value)
    }

    /// Takes the oldest with this tag.
    pub(super) fn take(&mut self, tag: u32) -> Option<T> {
        let entry = self.entries.iter_mut().find(|entry| entry.is(tag))?;
        entry.is_taken = true;
        let value = entry.value;
        self.waiting -= 1;
        while self.entries.front().is_some_and(|entry| entry.is_taken) {
            self.entries.pop_front();
        }
        Some(value)
    }
}

impl<T> Entry<T> {
    fn is(&self, tag: u32) -> bool {
        !self.is_taken && self.tag == tag
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn the_oldest_of_a_tag_is_taken_as_from_a_list(
            steps in prop::collection::vec((any::<bool>(), 0u32..4), 0..200),
        ) {
            let mut queue = TagQueue::<usize, 16>::new();
            // Tag, value, whether it still waits; from the oldest that does.
            let mut list: Vec<(u32, usize, bool)> = Vec::new();
            for (i, (push, tag)) in steps.into_iter().enumerate() {
                if push {
                    prop_assert_eq!(queue.push(tag, i), list.len() < 16);
                    if list.len() < 16 {
                        list.push((tag, i, true));
                    }
                } else {
                    let found = list.iter().position(|&(of, _, waits)| waits && of == tag);
                    let value = found.map(|at| list[at].1);
                    prop_assert_eq!(queue.peek(tag), value);
                    prop_assert_eq!(queue.take(tag), value);
                    if let Some(at) = found {
                        list[at].2 = false;
                    }
                    let gone = list.iter().take_while(|(_, _, waits)| !waits).count();
                    list.drain(..gone);
                }
                prop_assert_eq!(queue.room(), 16 - list.len());
                prop_assert_eq!(queue.is_empty(), !list.iter().any(|(_, _, waits)| *waits));
            }
        }
    }
}
