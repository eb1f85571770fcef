//! An operation and the memory that it works on.

use invar::communicator::{Operation, RawOperation};
use invar::{Communicator, RedOp};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::element::ElementType;
use crate::error::raised;
use crate::memory::Memory;

/// An object of Python that lends memory.
pub(crate) type Data<'a, 'py> = &'a Bound<'py, PyAny>;

/// An operation that can start, with its memory.
pub(crate) struct Prepared {
    pub(crate) raw: RawOperation,
    memory: Vec<Memory>,
    /// Which of the memory the operation writes.
    writes: Vec<bool>,
}

// SAFETY: the pointers lead into the memory, which the structure holds.
unsafe impl Send for Prepared {}

/// Prepares a collective. Without an `output` it works in place.
pub(crate) fn collective(
    communicator: &Communicator,
    operation: Operation,
    op: Option<&str>,
    data: Option<Data<'_, '_>>,
    output: Option<Data<'_, '_>>,
) -> PyResult<Prepared> {
    let redop = op.map(str::parse::<RedOp>).transpose();
    let redop = redop.map_err(|error| PyValueError::new_err(error.to_string()))?;
    if let Operation::Broadcast { root } | Operation::Reduce { root } = operation {
        check_rank(communicator, "root", root)?;
    }
    match (data, output) {
        (Some(data), None) => in_place(communicator, operation, redop, Memory::of(data)?),
        (data, Some(output)) => {
            let input = data.map(Memory::of).transpose()?;
            apart(communicator, operation, redop, input, Some(Memory::of(output)?))
        }
        (None, None) => Err(PyTypeError::new_err("neither data nor an output is given")),
    }
}

/// Prepares an all-reduce of a byte, which waits until all ranks have called it.
pub(crate) fn barrier(communicator: &Communicator) -> PyResult<Prepared> {
    let byte = Memory::own_byte();
    in_place(communicator, Operation::AllReduce, Some(RedOp::Max), byte)
}

/// Prepares a send.
pub(crate) fn send(
    communicator: &Communicator,
    data: Data<'_, '_>,
    peer: u32,
) -> PyResult<Prepared> {
    check_rank(communicator, "peer", peer)?;
    let (operation, data) = (Operation::Send { peer }, Memory::of(data)?);
    apart(communicator, operation, None, Some(data), None)
}

/// Prepares a receive.
pub(crate) fn recv(
    communicator: &Communicator,
    data: Data<'_, '_>,
    peer: u32,
) -> PyResult<Prepared> {
    check_rank(communicator, "peer", peer)?;
    let (operation, data) = (Operation::Recv { peer }, Memory::of(data)?);
    apart(communicator, operation, None, None, Some(data))
}

/// Checks that operations may run together as a group: their memory does not overlap where one writes it,
/// and this rank receives what it sends to itself.
pub(crate) fn check_group(communicator: &Communicator, group: &[Prepared]) -> PyResult<()> {
    let memory = || group.iter().enumerate().flat_map(|(number, prepared)| prepared.used(number));
    for (number, one, writes) in memory() {
        let clash = memory().find(|(other_number, other, other_writes)| {
            *other_number > number && (writes || *other_writes) && one.overlaps(other)
        });
        if let Some((other_number, ..)) = clash {
            let text = format!(
                "operations {number} and {other_number} of the group overlap in memory that one of them \
                 writes"
            );
            return Err(PyValueError::new_err(text));
        }
    }
    let own = communicator.rank();
    let count =
        |transfer| group.iter().filter(|prepared| prepared.raw.operation == transfer).count();
    let (sends, recvs) =
        (count(Operation::Send { peer: own }), count(Operation::Recv { peer: own }));
    if sends != recvs {
        let text = format!(
            "rank {own} sends to itself {sends} times and receives from itself {recvs} times: put both \
             into one group"
        );
        return Err(PyValueError::new_err(text));
    }
    Ok(())
}

impl Prepared {
    /// Takes the memory, which the caller must keep until the operation is done.
    pub(crate) fn into_memory(self) -> Vec<Memory> {
        self.memory
    }

    fn used(&self, number: usize) -> impl Iterator<Item = (usize, &Memory, bool)> {
        self.memory.iter().zip(&self.writes).map(move |(memory, writes)| (number, memory, *writes))
    }
}

fn in_place(
    communicator: &Communicator,
    operation: Operation,
    redop: Option<RedOp>,
    data: Memory,
) -> PyResult<Prepared> {
    check_element(operation, redop, data.element)?;
    let rank = communicator.rank();
    let writes = match operation {
        Operation::Reduce { root } => root == rank,
        Operation::Broadcast { root } => root != rank,
        _ => true,
    };
    check_writable(&data, writes)?;
    let (data_type, bytes) = (data.element.data_type(), data.bytes());
    let raw = communicator.raw_in_place(operation, redop, data_type, bytes).map_err(misfit)?;
    Ok(Prepared { raw, memory: vec![data], writes: vec![writes] })
}

fn apart(
    communicator: &Communicator,
    operation: Operation,
    redop: Option<RedOp>,
    input: Option<Memory>,
    output: Option<Memory>,
) -> PyResult<Prepared> {
    const NOTHING: *mut [u8] = std::ptr::slice_from_raw_parts_mut(std::ptr::dangling_mut(), 0);
    let given = input.iter().chain(&output);
    for memory in given.clone() {
        check_element(operation, redop, memory.element)?;
    }
    if let Some(output) = &output {
        check_writable(output, true)?;
    }
    if let (Some(input), Some(output)) = (&input, &output) {
        if input.element.data_type() != output.element.data_type() {
            let (input, output) = (input.element.data_type(), output.element.data_type());
            let text = format!("the input has elements of {input}, and the output of {output}");
            return Err(PyTypeError::new_err(text));
        }
        if input.overlaps(output) {
            let text = "the input and the output overlap: leave out the output to work in place";
            return Err(PyValueError::new_err(text));
        }
    }
    let data_type = given.clone().next().map_or(invar::DataType::U8, |m| m.element.data_type());
    let bytes = |memory: &Option<Memory>| memory.as_ref().map_or(NOTHING, Memory::bytes);
    let raw = communicator.raw(operation, redop, data_type, bytes(&input), bytes(&output));
    let raw = raw.map_err(misfit)?;
    let writes = given.map(|memory| output.as_ref().is_some_and(|o| std::ptr::eq(o, memory)));
    let writes = writes.collect();
    Ok(Prepared { raw, writes, memory: input.into_iter().chain(output).collect() })
}

/// Fails if the elements cannot be reduced so.
fn check_element(operation: Operation, redop: Option<RedOp>, element: ElementType) -> PyResult<()> {
    let text = match (redop, element) {
        (None, _) | (Some(_), ElementType::Number(_)) => return Ok(()),
        (Some(RedOp::Max | RedOp::Min | RedOp::Prod), ElementType::Bool) => return Ok(()),
        (Some(redop), ElementType::Bool) => {
            format!("{operation:?}: truth values have no {redop}; max is their or, min their and")
        }
        (Some(_), ElementType::Opaque) => format!(
            "{operation:?}: elements of this type can't be reduced; known are int8, uint8, int32, \
             uint32, int64, uint64, float16, bfloat16, float32 and float64"
        ),
    };
    Err(PyTypeError::new_err(text))
}

fn check_writable(memory: &Memory, writes: bool) -> PyResult<()> {
    match writes && memory.readonly {
        true => Err(PyValueError::new_err("the memory of the output is read-only")),
        false => Ok(()),
    }
}

/// The exception for memory of a wrong length.
fn misfit(error: invar::Error) -> PyErr {
    Python::attach(|py| raised(py, &error))
}

fn check_rank(communicator: &Communicator, what: &str, rank: u32) -> PyResult<()> {
    let nranks = communicator.nranks();
    match rank < nranks {
        true => Ok(()),
        false => {
            let text = format!("{what} {rank} where the ranks are 0 to {}", nranks - 1);
            Err(PyValueError::new_err(text))
        }
    }
}
