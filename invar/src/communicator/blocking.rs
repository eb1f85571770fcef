//! Operations that block: each call returns once this rank's part is done.

use invar_core::coll::{Operation, RedOp};

use super::call::{Call, Span};
use super::{Communicator, Element};
use crate::Error;

impl Communicator {
    /// Reduces the inputs of all ranks and gives the result to each rank. All inputs and outputs have
    /// the same length.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn all_reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: RedOp,
    ) -> Result<(), Error> {
        self.call(self.shape(Operation::AllReduce, Some(op)).apart(input.into(), output.into())?)
    }

    /// Runs [`all_reduce`](Self::all_reduce) in place.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: RedOp) -> Result<(), Error> {
        self.call(self.shape(Operation::AllReduce, Some(op)).in_place(data.into())?)
    }

    /// Gives the inputs of all ranks, one behind the other, to each rank. All inputs have the same length.
    /// `output` has this length times the number of ranks.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.call(self.shape(Operation::AllGather, None).apart(input.into(), output.into())?)
    }

    /// Runs [`all_gather`](Self::all_gather) in place: each rank's input is already at its place in
    /// `data`.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.call(self.shape(Operation::AllGather, None).in_place(data.into())?)
    }

    /// Reduces the inputs of all ranks and gives each rank its block of the result. `input` has the length of
    /// `output` times the number of ranks.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: RedOp,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::ReduceScatter, Some(op));
        self.call(shape.apart(input.into(), output.into())?)
    }

    /// Runs [`reduce_scatter`](Self::reduce_scatter) in place: each rank's block of the result replaces
    /// that block of its input. The contents of the other blocks are unspecified afterwards.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: RedOp,
    ) -> Result<(), Error> {
        self.call(self.shape(Operation::ReduceScatter, Some(op)).in_place(data.into())?)
    }

    /// Gives the root's data to all ranks, in place.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<(), Error> {
        self.call(self.shape(Operation::Broadcast { root }, None).in_place(data.into())?)
    }

    /// Gives the root's input to all ranks; on the other ranks the input is empty.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn broadcast_from<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::Broadcast { root }, None);
        self.call(shape.apart(input.into(), output.into())?)
    }

    /// Reduces the inputs of all ranks and gives the result to the root; on the other ranks the output
    /// is empty.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn reduce<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: RedOp,
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::Reduce { root }, Some(op));
        self.call(shape.apart(input.into(), output.into())?)
    }

    /// Runs [`reduce`](Self::reduce) in place at the root; on the other ranks the data does not change.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: RedOp,
        root: u32,
    ) -> Result<(), Error> {
        let shape = self.shape(Operation::Reduce { root }, Some(op));
        self.call(shape.in_place(data.into())?)
    }

    /// Sends block *i* of the input to rank *i*. The block that rank *i* sends to this rank becomes
    /// block *i* of the output.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        self.call(self.shape(Operation::AllToAll, None).apart(input.into(), output.into())?)
    }

    /// Runs [`all_to_all`](Self::all_to_all) in place, as `MPI_IN_PLACE` does: block *i* goes to rank *i*, and the
    /// block of rank *i* replaces it. The call takes memory for a copy of the data.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        self.call(self.shape(Operation::AllToAll, None).in_place(data.into())?)
    }

    /// Sends data to a rank. The peer must receive the same number of elements, or the call fails. The
    /// call may wait until the peer receives; use a [`group`](Self::group) for several transfers at
    /// once. A message of this rank to itself needs both ends in one group.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn send<T: Element>(&self, data: &[T], peer: u32) -> Result<(), Error> {
        self.call(
            self.shape(Operation::Send { peer }, None).apart(data.into(), Span::empty::<T>())?,
        )
    }

    /// Receives data from a rank, which must send the same number of elements.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn recv<T: Element>(&self, data: &mut [T], peer: u32) -> Result<(), Error> {
        self.call(
            self.shape(Operation::Recv { peer }, None).apart(Span::empty::<T>(), data.into())?,
        )
    }

    /// Waits until all ranks have called this function.
    ///
    /// # Errors
    /// See [Errors of operations](Communicator#errors-of-operations).
    pub fn barrier(&self) -> Result<(), Error> {
        self.all_reduce_in_place(&mut [0_u8], RedOp::Max)
    }

    fn call(&self, call: Call) -> Result<(), Error> {
        // SAFETY: the call is made of borrowed slices, which outlive this function.
        unsafe { self.core.run(&[call]) }
    }
}
