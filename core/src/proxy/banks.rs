//! Pools and rows that grow by banks: a host brings the memory.

/// Elements of a bank (`NCCL_PROXY_CONN_POOL_SIZE`).
pub const BANK_LEN: usize = 128;

/// Memory for elements, a bank at a time. The core allocates nothing: a host brings an
/// implementation, of a heap or of a fixed number of banks.
pub trait Banks<T> {
    /// A bank, if there are as many.
    fn bank(&self, bank: usize) -> Option<&[T; BANK_LEN]>;
    /// The same, to write in.
    fn bank_mut(&mut self, bank: usize) -> Option<&mut [T; BANK_LEN]>;
    /// Adds a bank of default values. `false` where there is no memory for it.
    fn grow(&mut self) -> bool;

    /// Element `index`, in bank `index / BANK_LEN`.
    fn at(&self, index: u32) -> Option<&T> {
        self.bank(index as usize / BANK_LEN).map(|bank| &bank[index as usize % BANK_LEN])
    }

    /// The same, to write in.
    fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.bank_mut(index as usize / BANK_LEN).map(|bank| &mut bank[index as usize % BANK_LEN])
    }
}

/// A pool of elements: taken and given back in constant time, by index.
#[derive(Debug, Default)]
pub struct Pool<T, B> {
    banks: B,
    /// One past the largest index that was ever taken.
    touched: u32,
    /// The one given back last.
    free: Option<u32>,
    element: core::marker::PhantomData<T>,
}

/// An element of a [`Pool`]'s banks.
#[derive(Debug, Default)]
pub struct Slot<T> {
    value: T,
    taken: bool,
    next_free: Option<u32>,
}

impl<T, B: Banks<Slot<T>>> Pool<T, B> {
    /// A pool in `banks`, which hold default values.
    pub fn new(banks: B) -> Self {
        Pool { banks, touched: 0, free: None, element: core::marker::PhantomData }
    }

    /// Takes an element, with the value that it was given back with. `None` where all are taken
    /// and there is no memory for more.
    pub fn take(&mut self) -> Option<(u32, &mut T)> {
        let index = match self.free {
            Some(index) => index,
            None => {
                let index = self.touched;
                if self.banks.at(index).is_none() && !self.banks.grow() {
                    return None;
                }
                self.touched += 1;
                index
            }
        };
        let slot = self.banks.at_mut(index)?;
        self.free = slot.next_free.take();
        slot.taken = true;
        Some((index, &mut slot.value))
    }

    /// Gives an element back. `false` where it is not taken.
    pub fn give_back(&mut self, index: u32) -> bool {
        let Some(slot) = self.banks.at_mut(index).filter(|slot| slot.taken) else { return false };
        slot.taken = false;
        slot.next_free = self.free.replace(index);
        true
    }

    /// One past the largest index that was ever taken.
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// An element that is taken.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.banks.at(index).filter(|slot| slot.taken).map(|slot| &slot.value)
    }

    /// The same, to write in.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.banks.at_mut(index).filter(|slot| slot.taken).map(|slot| &mut slot.value)
    }
}

/// Elements in a row, as many as there is memory for.
#[derive(Debug)]
pub(super) struct Row<T, B> {
    banks: B,
    len: u32,
    element: core::marker::PhantomData<T>,
}

impl<T, B: Banks<Option<T>>> Row<T, B> {
    /// None, in `banks`, which hold default values.
    pub(super) fn new(banks: B) -> Self {
        Row { banks, len: 0, element: core::marker::PhantomData }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds one behind the others. `false` where there is no memory for it.
    #[must_use]
    pub(super) fn push(&mut self, value: T) -> bool {
        if self.banks.at(self.len).is_none() && !self.banks.grow() {
            return false;
        }
        let Some(place) = self.banks.at_mut(self.len) else { return false };
        *place = Some(value);
        self.len += 1;
        true
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.banks.at(at)?.as_ref()
    }

    /// The place of the first that is as asked for.
    pub(super) fn position(&self, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        (0..self.len).find(|at| self.get(*at).is_some_and(&is_it))
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.banks.at_mut(at)?.as_mut()
    }

    /// Takes one out; the last has its place then.
    pub(super) fn swap_remove(&mut self, at: u32) -> Option<T> {
        let removed = self.banks.at_mut(at)?.take()?;
        self.len -= 1;
        if let Some(last) = self.banks.at_mut(self.len).and_then(Option::take)
            && let Some(place) = self.banks.at_mut(at)
        {
            *place = Some(last);
        }
        Some(removed)
    }
}
