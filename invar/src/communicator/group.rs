//! Groups of calls that a rank runs together.

use std::marker::PhantomData;

use invar_core::coll::{Operation, RedOp};

use super::call::Call;
use super::{Core, Element};
use crate::Error;

/// A group of calls that a rank runs together (`ncclGroupStart`, `ncclGroupEnd`).
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
    /// The memory of the group's barriers.
    barriers: Vec<Vec<u8>>,
}

impl<'c, 'b> Group<'c, 'b> {
    pub(super) fn new(core: &'c Core) -> Self {
        Group { core, calls: Vec::new(), buffers: PhantomData, barriers: Vec::new() }
    }

    /// Adds a [`send`](super::Communicator::send).
    ///
    /// # Errors
    /// The peer is no rank of this communicator.
    pub fn send<T: Element>(&mut self, data: &'b [T], peer: u32) -> Result<&mut Self, Error> {
        self.apart(Operation::Send { peer }, None, data, &mut [])
    }

    /// Adds a [`recv`](super::Communicator::recv).
    ///
    /// # Errors
    /// The peer is no rank of this communicator.
    pub fn recv<T: Element>(&mut self, data: &'b mut [T], peer: u32) -> Result<&mut Self, Error> {
        self.apart(Operation::Recv { peer }, None, &[], data)
    }

    /// Adds an [`all_reduce`](super::Communicator::all_reduce).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn all_reduce<T: Element>(
        &mut self,
        input: &'b [T],
        output: &'b mut [T],
        op: RedOp,
    ) -> Result<&mut Self, Error> {
        self.apart(Operation::AllReduce, Some(op), input, output)
    }

    /// Adds an [`all_reduce_in_place`](super::Communicator::all_reduce_in_place).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        data: &'b mut [T],
        op: RedOp,
    ) -> Result<&mut Self, Error> {
        self.in_place(Operation::AllReduce, Some(op), data)
    }

    /// Adds an [`all_gather`](super::Communicator::all_gather).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn all_gather<T: Element>(
        &mut self,
        input: &'b [T],
        output: &'b mut [T],
    ) -> Result<&mut Self, Error> {
        self.apart(Operation::AllGather, None, input, output)
    }

    /// Adds an [`all_gather_in_place`](super::Communicator::all_gather_in_place).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn all_gather_in_place<T: Element>(
        &mut self,
        data: &'b mut [T],
    ) -> Result<&mut Self, Error> {
        self.in_place(Operation::AllGather, None, data)
    }

    /// Adds a [`reduce_scatter`](super::Communicator::reduce_scatter).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        input: &'b [T],
        output: &'b mut [T],
        op: RedOp,
    ) -> Result<&mut Self, Error> {
        self.apart(Operation::ReduceScatter, Some(op), input, output)
    }

    /// Adds a [`reduce_scatter_in_place`](super::Communicator::reduce_scatter_in_place).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        data: &'b mut [T],
        op: RedOp,
    ) -> Result<&mut Self, Error> {
        self.in_place(Operation::ReduceScatter, Some(op), data)
    }

    /// Adds a [`broadcast`](super::Communicator::broadcast).
    ///
    /// # Errors
    /// The root is no rank of this communicator, or a length is wrong.
    pub fn broadcast<T: Element>(
        &mut self,
        data: &'b mut [T],
        root: u32,
    ) -> Result<&mut Self, Error> {
        self.in_place(Operation::Broadcast { root }, None, data)
    }

    /// Adds a [`broadcast_from`](super::Communicator::broadcast_from).
    ///
    /// # Errors
    /// The root is no rank of this communicator, or a length is wrong.
    pub fn broadcast_from<T: Element>(
        &mut self,
        input: &'b [T],
        output: &'b mut [T],
        root: u32,
    ) -> Result<&mut Self, Error> {
        self.apart(Operation::Broadcast { root }, None, input, output)
    }

    /// Adds a [`reduce`](super::Communicator::reduce).
    ///
    /// # Errors
    /// The root is no rank of this communicator, or a length is wrong.
    pub fn reduce<T: Element>(
        &mut self,
        input: &'b [T],
        output: &'b mut [T],
        op: RedOp,
        root: u32,
    ) -> Result<&mut Self, Error> {
        self.apart(Operation::Reduce { root }, Some(op), input, output)
    }

    /// Adds a [`reduce_in_place`](super::Communicator::reduce_in_place).
    ///
    /// # Errors
    /// The root is no rank of this communicator, or a length is wrong.
    pub fn reduce_in_place<T: Element>(
        &mut self,
        data: &'b mut [T],
        op: RedOp,
        root: u32,
    ) -> Result<&mut Self, Error> {
        self.in_place(Operation::Reduce { root }, Some(op), data)
    }

    /// Adds an [`all_to_all`](super::Communicator::all_to_all).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn all_to_all<T: Element>(
        &mut self,
        input: &'b [T],
        output: &'b mut [T],
    ) -> Result<&mut Self, Error> {
        self.apart(Operation::AllToAll, None, input, output)
    }

    /// Adds an [`all_to_all_in_place`](super::Communicator::all_to_all_in_place).
    ///
    /// # Errors
    /// A length is wrong.
    pub fn all_to_all_in_place<T: Element>(
        &mut self,
        data: &'b mut [T],
    ) -> Result<&mut Self, Error> {
        self.in_place(Operation::AllToAll, None, data)
    }

    /// Adds a [`barrier`](super::Communicator::barrier). The group then ends only after all ranks have
    /// run their groups.
    ///
    /// # Errors
    /// This call does not fail. It returns a `Result` so that calls can be chained.
    pub fn barrier(&mut self) -> Result<&mut Self, Error> {
        let shape = self.core.shape(Operation::AllReduce, Some(RedOp::Max));
        let mut byte = vec![0_u8];
        self.calls.push(shape.in_place(byte.as_mut_slice().into())?);
        // The vector is on the heap, so the byte stays at its address until the group is dropped.
        self.barriers.push(byte);
        Ok(self)
    }

    /// Runs all calls of the group, and returns once they are done.
    ///
    /// # Errors
    /// See [Errors of operations](super::Communicator#errors-of-operations).
    pub fn run(self) -> Result<(), Error> {
        // SAFETY: the calls are made of slices that are borrowed for `'b`, and of bytes that the group
        // owns.
        unsafe { self.core.run(&self.calls) }
    }

    fn apart<T: Element>(
        &mut self,
        operation: Operation,
        op: Option<RedOp>,
        input: &'b [T],
        output: &'b mut [T],
    ) -> Result<&mut Self, Error> {
        self.calls.push(self.core.shape(operation, op).apart(input.into(), output.into())?);
        Ok(self)
    }

    fn in_place<T: Element>(
        &mut self,
        operation: Operation,
        op: Option<RedOp>,
        data: &'b mut [T],
    ) -> Result<&mut Self, Error> {
        self.calls.push(self.core.shape(operation, op).in_place(data.into())?);
        Ok(self)
    }
}
