//! A work queue: a ring that numbers its elements from 0 on without end.

/// A ring of at most `N` elements, where `N` is a power of two. Numbers wrap at 2^32. An element lies
/// at its number modulo `N`.
pub(super) struct QueueRing<T, const N: usize> {
    slots: [T; N],
    /// Number of the oldest element.
    head: u32,
    /// Number that the next element gets.
    tail: u32,
}

impl<T: Copy + Default, const N: usize> QueueRing<T, N> {
    const MASK: u32 = {
        assert!(N.is_power_of_two() && N <= 1 << 16, "a power of two, up to 65536");
        N as u32 - 1
    };

    pub(super) fn new() -> Self {
        QueueRing { slots: [T::default(); N], head: 0, tail: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Slot of the element with this number.
    pub(super) fn slot(number: u32) -> u16 {
        (number & Self::MASK) as u16
    }

    /// Adds an element and returns its number, or `None` if the ring is full.
    pub(super) fn push(&mut self, element: T) -> Option<u32> {
        let number = self.tail;
        if self.len() > Self::MASK {
            return None;
        }
        self.slots[usize::from(Self::slot(number))] = element;
        self.tail = number.wrapping_add(1);
        Some(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let there = number.wrapping_sub(self.head) < self.len();
        there.then(|| &self.slots[usize::from(Self::slot(number))])
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let there = number.wrapping_sub(self.head) < self.len();
        there.then(|| &mut self.slots[usize::from(Self::slot(number))])
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.get(self.head)
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let element = *self.front()?;
        self.head = self.head.wrapping_add(1);
        Some(element)
    }

    /// Takes back the last `count` elements, or all if there are fewer. Their numbers are given again.
    pub(super) fn withdraw(&mut self, count: u32) {
        self.tail = self.tail.wrapping_sub(count.min(self.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_as_a_bounded_queue_whose_numbers_wrap(
            start: u32,
            calls in proptest::collection::vec(0..5, 0..200),
        ) {
            let mut ring = QueueRing::<u32, 8> { head: start, tail: start, ..QueueRing::new() };
            let mut model = VecDeque::new();
            for (i, call) in (0..).zip(calls) {
                if call < 2 {
                    let number = ring.push(i);
                    prop_assert_eq!(number.is_some(), model.len() < 8);
                    model.extend(number.map(|number| (number, i)));
                } else if call < 4 {
                    prop_assert_eq!(ring.pop(), model.pop_front().map(|(_, i)| i));
                } else {
                    ring.withdraw(i % 3);
                    model.truncate(model.len().saturating_sub(i as usize % 3));
                }
                prop_assert_eq!(ring.len() as usize, model.len());
                for &(number, i) in &model {
                    prop_assert_eq!(ring.get(number), Some(&i));
                }
                prop_assert_eq!(ring.get(ring.head().wrapping_add(ring.len())), None);
                prop_assert_eq!(ring.get(ring.head().wrapping_sub(1)), None);
            }
        }
    }
}
