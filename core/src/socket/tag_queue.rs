//! A queue of entries that wait for their counterparts: first in, first out by tag.

use heapless::Deque;

/// A queue of up to `N` values in the order of their arrival, each with a tag.
///
/// Callers usually take the oldest value, which the queue finds at once. A value that nobody takes
/// keeps the places behind it occupied until it is taken.
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

    /// Returns whether no value waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Number of values that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Tag of the oldest value that waits.
    pub(super) fn oldest_tag(&self) -> Option<u32> {
        // Taken values leave the front at once.
        self.entries.front().map(|entry| entry.tag)
    }

    /// Number of further values that fit.
    pub(super) fn room(&self) -> usize {
        N - self.entries.len()
    }

    /// Adds a value to the end, or returns `false` if there is no room.
    #[must_use]
    pub(super) fn push(&mut self, tag: u32, value: T) -> bool {
        let is_in = self.entries.push_back(Entry { tag, is_taken: false, value }).is_ok();
        self.waiting += usize::from(is_in);
        is_in
    }

    /// Returns the oldest value with this tag.
    pub(super) fn peek(&self, tag: u32) -> Option<T> {
        self.entries.iter().find(|entry| entry.is(tag)).map(|entry| entry.value)
    }

    /// Takes the oldest value with this tag.
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
            // Entries of tag, value, and whether the value still waits. The list starts at the oldest
            // waiting entry.
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
                prop_assert_eq!(queue.oldest_tag(), list.first().map(|(tag, ..)| *tag));
                prop_assert_eq!(queue.len(), list.iter().filter(|(_, _, waits)| *waits).count());
                prop_assert_eq!(queue.is_empty(), !list.iter().any(|(_, _, waits)| *waits));
            }
        }
    }
}
