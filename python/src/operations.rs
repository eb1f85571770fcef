//! The operations, each once: its name, its arguments, and the function that prepares it.
//!
//! For each operation a macro makes two methods of `Communicator` and one of `Group`. The first waits, the
//! second returns a [`Work`], and the third adds the call to the group.

use invar::communicator::Operation;
use pyo3::prelude::*;

use crate::communicator::PyCommunicator;
use crate::group::PyGroup;
use crate::prepared::{self, Data};
use crate::work::Work;

/// An object that lends memory, or Python's None.
type MaybeData<'a, 'py> = Option<Data<'a, 'py>>;

/// Each row has the documentation, the names of the methods that wait and that start, the arguments with
/// their defaults, arguments for the examples of the other two methods, and a function that prepares the
/// operation on a communicator. A caller must name the argument behind a semicolon.
macro_rules! operations {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident, $start:ident(
            $($argument:ident: $kind:ty $(= $default:tt)?),*
            $(; $keyword:ident: $keyword_kind:ty = $keyword_default:tt)?
        ) $(as $sample:literal)? => $prepare:expr;
    )*) => {
        #[pymethods]
        impl PyCommunicator {$(
            $(#[doc = $doc])*
            #[pyo3(signature = (
                $($argument $(= $default)?,)* $(*, $keyword = $keyword_default)?
            ))]
            fn $name(
                &self, py: Python<'_>, $($argument: $kind,)* $($keyword: $keyword_kind)?
            ) -> PyResult<()> {
                self.run(py, $prepare)
            }

            #[doc = concat!(
                "Start `", stringify!($name), "`, and return a Work."
                $(, "\n\n>>> comm.", stringify!($start), "(", $sample, ").wait()")?
            )]
            #[pyo3(signature = (
                $($argument $(= $default)?,)* $(*, $keyword = $keyword_default)?
            ))]
            fn $start(
                &self, py: Python<'_>, $($argument: $kind,)* $($keyword: $keyword_kind)?
            ) -> PyResult<Work> {
                self.start(py, $prepare)
            }
        )*}

        #[pymethods]
        impl PyGroup {$(
            #[doc = concat!(
                "Add `Communicator.", stringify!($name), "`."
                $(
                    , "\n\n>>> with comm.group() as group:\n...     group.", stringify!($name),
                    "(", $sample, ")"
                )?
            )]
            #[pyo3(signature = (
                $($argument $(= $default)?,)* $(*, $keyword = $keyword_default)?
            ))]
            fn $name(
                &self, $($argument: $kind,)* $($keyword: $keyword_kind)?
            ) -> PyResult<()> {
                self.add($prepare)
            }
        )*}
    };
}

operations! {
    /// Reduce the data of all ranks, and give the result to each rank.
    ///
    /// `op` is 'sum', 'prod', 'max', 'min' or 'avg'.
    ///
    /// >>> total = np.empty(2, np.int32)
    /// >>> comm.all_reduce(np.array([7, 8], np.int32), total, op="max")
    /// >>> total
    /// array([7, 8], dtype=int32)
    all_reduce, start_all_reduce(
        data: Data<'_, '_>, output: MaybeData<'_, '_> = None, op: &str = "sum"
    ) as "np.ones(2)" => |c| prepared::collective(c, Operation::AllReduce, Some(op), Some(data), output);

    /// Give the data of all ranks, in their order, to each rank.
    ///
    /// The output is as long as the data of all ranks. In place, `data` is that long, and this rank's
    /// data is its block of it.
    ///
    /// >>> gathered = np.empty((comm.nranks, 3), np.uint16)
    /// >>> comm.all_gather(np.array([1, 2, 3], np.uint16), gathered)
    /// >>> gathered
    /// array([[1, 2, 3]], dtype=uint16)
    all_gather, start_all_gather(data: Data<'_, '_>, output: MaybeData<'_, '_> = None)
        as "np.ones(comm.nranks)" => |c| prepared::collective(c, Operation::AllGather, None, Some(data), output);

    /// Reduce the data of all ranks, and give each rank its block of the result.
    ///
    /// In place, the result replaces this rank's block of `data`; the other blocks are unspecified.
    ///
    /// >>> block = np.empty(3)
    /// >>> comm.reduce_scatter(np.ones((comm.nranks, 3)), block, op="avg")
    /// >>> block
    /// array([1., 1., 1.])
    reduce_scatter, start_reduce_scatter(
        data: Data<'_, '_>, output: MaybeData<'_, '_> = None, op: &str = "sum"
    ) as "np.ones(comm.nranks)"
        => |c| prepared::collective(c, Operation::ReduceScatter, Some(op), Some(data), output);

    /// Give the root's data to all ranks.
    ///
    /// With an output, `data` is the root's, and None on the other ranks.
    ///
    /// >>> weights = np.arange(3.0)
    /// >>> comm.broadcast(weights, root=0)
    broadcast, start_broadcast(
        data: MaybeData<'_, '_>, output: MaybeData<'_, '_> = None; root: u32 = 0
    ) as "np.ones(2)" => |c| prepared::collective(c, Operation::Broadcast { root }, None, data, output);

    /// Reduce the data of all ranks, and give the result to the root.
    ///
    /// The output is the root's, and None on the other ranks, whose data does not change.
    ///
    /// >>> most = np.empty(1)
    /// >>> comm.reduce(np.array([3.5]), most if comm.rank == 0 else None, op="max", root=0)
    /// >>> most
    /// array([3.5])
    reduce, start_reduce(
        data: Data<'_, '_>, output: MaybeData<'_, '_> = None, op: &str = "sum"; root: u32 = 0
    ) as "np.ones(2)" => |c| prepared::collective(c, Operation::Reduce { root }, Some(op), Some(data), output);

    /// Send block i of the data to rank i. The block that rank i sends to this rank becomes block i of
    /// the output.
    ///
    /// In place, as with MPI_IN_PLACE, the block that rank i sends replaces block i of `data`. The call
    /// takes memory for a copy of `data`.
    ///
    /// >>> received = bytearray(comm.nranks)
    /// >>> comm.all_to_all(bytes(range(comm.nranks)), received)
    /// >>> received
    /// bytearray(b'\x00')
    all_to_all, start_all_to_all(data: Data<'_, '_>, output: MaybeData<'_, '_> = None)
        as "np.ones(comm.nranks)" => |c| prepared::collective(c, Operation::AllToAll, None, Some(data), output);

    /// Send data to a rank, which must receive as many bytes.
    ///
    /// The call may wait until the peer receives. Use a group for several transfers at once.
    ///
    /// >>> if comm.nranks > 1 and comm.rank == 0:
    /// ...     comm.send(b"four", 1)
    send, start_send(data: Data<'_, '_>, peer: u32) => |c| prepared::send(c, data, peer);

    /// Receive data from a rank, which must send as many bytes.
    ///
    /// >>> received = bytearray(4)
    /// >>> if comm.nranks > 1 and comm.rank == 1:
    /// ...     comm.recv(received, 0)
    recv, start_recv(data: Data<'_, '_>, peer: u32) => |c| prepared::recv(c, data, peer);

    /// Wait until all ranks have called this method.
    ///
    /// >>> comm.barrier()
    barrier, start_barrier() as "" => prepared::barrier;
}
