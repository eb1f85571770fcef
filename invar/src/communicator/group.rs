//! Calls that are made together.

use std::marker::PhantomData;

use invar_core::coll::{Operation, RedOp};

use super::call::{Call, in_place, typed};
use super::{Core, Element};
use crate::Error;

/// Calls that are made together (`ncclGroupStart`, `ncclGroupEnd`).
///
/// ```no_run
/// # fn ring(communicator: &invar::Communicator) -> Result<(), invar::Error> {
/// let (rank, nranks) = (communicator.rank(), communicator.nranks());
/// let (ours, mut theirs) = ([rank; 100], [0; 100]);
/// let mut group = communicator.group();
/// group.send(&ours, (rank + 1) % nranks)?;
/// group.recv(&mut theirs, (rank + nranks - 1) % nranks)?;
/// group.run()
/// # }
/// ```
#[must_use = "nothing is done before `run`"]
pub struct Group<'c, 'b> {
    core: &'c Core,
    calls: Vec<Call>,
    buffers: PhantomData<&'b mut [u8]>,
}

impl<'c, 'b> Group<'c, 'b> {
    pub(super) fn new(core: &'c Core) -> Self {
        Group { core, calls: Vec::new(), buffers: PhantomData }
    }

    /// See [`Communicator::send`](super::Communicator::send).
    pub fn send<T: Element>(&mut self, data: &'b [T], peer: u32) -> Result<&mut Self, Error> {
        let shape = self.core.shape(Operation::Send { peer }, None);
        self.add(typed(shape, data.len(), data, &mut []))
    }

    /// See [`Communicator::recv`](super::Communicator::recv).
    pub fn recv<T: Element>(&mut self, data: &'b mut [T], peer: u32) -> Result<&mut Self, Error> {
        let shape = self.core.shape(Operation::Recv { peer }, None);
        self.add(typed(shape, data.len(), &[], data))
    }

    /// See [`Communicator::all_reduce_in_place`](super::Communicator::all_reduce_in_place).
    pub fn all_reduce<T: Element>(
        &mut self,
        data: &'b mut [T],
        op: RedOp,
    ) -> Result<&mut Self, Error> {
        let shape = self.core.shape(Operation::AllReduce, Some(op));
        self.add(in_place(shape, data.len(), data))
    }

    /// See [`Communicator::broadcast`](super::Communicator::broadcast).
    pub fn broadcast<T: Element>(
        &mut self,
        data: &'b mut [T],
        root: u32,
    ) -> Result<&mut Self, Error> {
        let shape = self.core.shape(Operation::Broadcast { root }, None);
        self.add(in_place(shape, data.len(), data))
    }

    /// Does all of it.
    pub fn run(self) -> Result<(), Error> {
        // SAFETY: made of slices that are borrowed for `'b`.
        unsafe { self.core.run(&self.calls) }
    }

    fn add(&mut self, call: Result<Call, Error>) -> Result<&mut Self, Error> {
        self.calls.push(call?);
        Ok(self)
    }
}
