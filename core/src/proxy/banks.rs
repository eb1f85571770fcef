//! Pools and rows that grow by banks, in memory that the host provides.

/// Number of elements in a bank (`NCCL_PROXY_CONN_POOL_SIZE`).
pub const BANK_LEN: usize = 128;

/// Memory for elements, which grows by one bank at a time. The core allocates nothing. The host
/// implements this trait over a heap or over a fixed number of banks.
pub trait Banks<T> {
    /// Returns bank number `bank`, or `None` if there are not so many banks.
    fn bank(&self, bank: usize) -> Option<&[T; BANK_LEN]>;
    /// Returns bank number `bank` for writing, or `None` if there are not so many banks.
    fn bank_mut(&mut self, bank: usize) -> Option<&mut [T; BANK_LEN]>;
    /// Adds a bank of default values. Returns `false` if there is no memory for the bank.
    fn grow(&mut self) -> bool;

    /// Returns element `index`, which is in bank `index / BANK_LEN`.
    fn at(&self, index: u32) -> Option<&T> {
        self.bank(index as usize / BANK_LEN).map(|bank| &bank[index as usize % BANK_LEN])
    }

    /// Returns element `index` for writing.
    fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.bank_mut(index as usize / BANK_LEN).map(|bank| &mut bank[index as usize % BANK_LEN])
    }
}

/// A pool of elements. The caller takes elements and gives them back by index, in constant time.
#[derive(Debug, Default)]
pub struct Pool<T, B> {
    banks: B,
    /// One past the largest index that was ever taken.
    touched: u32,
    /// The index of the element that was given back last.
    free: Option<u32>,
    element: core::marker::PhantomData<T>,
}

/// An element of a [`Pool`]'s banks.
#[derive(Debug, Default)]
pub struct BankSlot<T> {
    value: T,
    taken: bool,
    next_free: Option<u32>,
}

impl<T, B: Banks<BankSlot<T>>> Pool<T, B> {
    /// Creates a pool in `banks`, which must hold default values.
    pub fn new(banks: B) -> Self {
        Pool { banks, touched: 0, free: None, element: core::marker::PhantomData }
    }

    /// Takes an element, which still has the value that it was given back with. Returns `None` if all
    /// elements are taken and there is no memory for more.
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

    /// Gives an element back. Returns `false` if the element is not taken.
    pub fn give_back(&mut self, index: u32) -> bool {
        let Some(slot) = self.banks.at_mut(index).filter(|slot| slot.taken) else { return false };
        slot.taken = false;
        slot.next_free = self.free.replace(index);
        true
    }

    /// Returns one past the largest index that was ever taken.
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// Returns the element `index` if it is taken.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.banks.at(index).filter(|slot| slot.taken).map(|slot| &slot.value)
    }

    /// Returns the element `index` for writing if it is taken.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.banks.at_mut(index).filter(|slot| slot.taken).map(|slot| &mut slot.value)
    }
}

/// A growing row of elements, limited by the memory of its banks.
#[derive(Debug)]
pub(super) struct BankRow<T, B> {
    banks: B,
    len: u32,
    element: core::marker::PhantomData<T>,
}

impl<T, B: Banks<Option<T>>> BankRow<T, B> {
    /// Creates an empty row in `banks`, which must hold default values.
    pub(super) fn new(banks: B) -> Self {
        BankRow { banks, len: 0, element: core::marker::PhantomData }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds an element at the end. Returns `false` if there is no memory for the element.
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

    /// Returns the index of the first element for which `is_it` is true.
    pub(super) fn position(&self, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        (0..self.len).find(|at| self.get(*at).is_some_and(&is_it))
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.banks.at_mut(at)?.as_mut()
    }

    /// Takes the element at `at` out and moves the last element to its index.
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
