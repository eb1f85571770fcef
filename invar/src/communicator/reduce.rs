//! Elements of several ranks become one: copies and reductions over raw memory, vectorised.
//!
//! The memory is that of slots, which other processes write, and of the caller's buffers; all of it
//! is raw, at any alignment. Which instructions the processor has is asked once, by
//! [`Reducer::new`].

mod element;
mod kernel;

use std::mem::MaybeUninit;
use std::ptr;

use invar_core::coll::{DataType, RedOp};

use self::kernel::Kernels;

/// Bytes of a piece that passes through a buffer of its own where two operands and two destinations
/// do not do: it stays in the processor's first cache.
const TILE_BYTES: usize = 4096;

type Tile = MaybeUninit<[u64; TILE_BYTES / 8]>;

/// Reduces elements of one type by one operation, as one of `nranks` ranks.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    element_bytes: usize,
    nranks: u32,
    /// None where data is only moved.
    kernels: Option<Kernels>,
    average: Average,
}

/// When an average is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Average {
    /// It is none.
    No,
    /// Each input, before it is added.
    Inputs,
    /// The sum.
    Sum,
}

impl Reducer {
    /// Reduces by `op`. Averages of floating-point numbers divide each input, as NCCL does, so that
    /// the sum does not overflow; those of integers divide the sum, and round towards zero.
    pub fn new(data_type: DataType, op: RedOp, nranks: u32) -> Self {
        let kernels = Kernels::new(data_type, op);
        let average = match op {
            RedOp::Avg if nranks > 1 && data_type.is_float() => Average::Inputs,
            RedOp::Avg if nranks > 1 => Average::Sum,
            _ => Average::No,
        };
        Reducer { element_bytes: data_type.bytes(), nranks, kernels: Some(kernels), average }
    }

    /// Moves elements and reduces none: [`run`](Reducer::run) takes one operand then.
    pub fn copy(data_type: DataType) -> Self {
        let element_bytes = data_type.bytes();
        Reducer { element_bytes, nranks: 1, kernels: None, average: Average::No }
    }

    /// Whether a rank's own input is divided before it is reduced or sent.
    pub(super) fn divides_inputs(&self) -> bool {
        self.average == Average::Inputs
    }

    /// Reduces the operands in their order, and stores the value at each destination.
    ///
    /// `input` says which of the operands is the rank's own input, not yet divided for an average;
    /// `finish`, that all ranks' inputs are in the value now. [`Step`](invar_core::coll::Step) has
    /// both.
    ///
    /// # Panics
    ///
    /// Without an operand, or with several after [`copy`](Reducer::copy).
    ///
    /// # Safety
    ///
    /// - Each operand is valid for reads, each destination for writes of `count` elements. They
    ///   need not be aligned.
    /// - A destination is the same as an operand or overlaps none; no two destinations overlap.
    /// - No thread of this process writes the operands or touches the destinations meanwhile. If
    ///   another process does, the value is any, and nothing else happens.
    pub unsafe fn run(
        &self,
        operands: &[*const u8],
        input: Option<usize>,
        destinations: &[*mut u8],
        count: usize,
        finish: bool,
    ) {
        let input = input.filter(|_| self.average == Average::Inputs);
        let finish = finish && self.average == Average::Sum;
        match (operands, destinations, &self.kernels) {
            ([operand], _, _) if input.is_none() && !finish => {
                // SAFETY: the caller's promise.
                destinations.iter().for_each(|to| unsafe { self.spread(*operand, *to, count) });
            }
            ([a, b], [to], Some(kernels)) if input.is_none() && !finish => {
                // SAFETY: the caller's promise.
                unsafe { (kernels.fold)(*a, *b, *to, count) };
            }
            ([a, b], [to, too], Some(kernels)) if input.is_none() && !finish => {
                // SAFETY: the caller's promise.
                unsafe { (kernels.fold_twice)(*a, *b, *to, *too, count) };
            }
            (_, _, Some(kernels)) => {
                // SAFETY: the caller's promise.
                unsafe { self.by_tiles(kernels, operands, input, destinations, count, finish) };
            }
            (_, _, None) => panic!("{} operands, and no operation to reduce them", operands.len()),
        }
    }

    /// Reduces in a buffer of its own what takes more than one pass.
    ///
    /// # Safety
    ///
    /// As for [`run`](Reducer::run).
    unsafe fn by_tiles(
        &self,
        kernels: &Kernels,
        operands: &[*const u8],
        input: Option<usize>,
        destinations: &[*mut u8],
        count: usize,
        finish: bool,
    ) {
        let (mut value, mut divided) = (Tile::uninit(), Tile::uninit());
        let (value, divided) = (value.as_mut_ptr().cast::<u8>(), divided.as_mut_ptr().cast::<u8>());
        let tile_count = TILE_BYTES / self.element_bytes;
        for first in (0..count).step_by(tile_count) {
            let (offset, count) = (first * self.element_bytes, tile_count.min(count - first));
            let operand = |at: usize| {
                // SAFETY: the offset is within the elements.
                let operand = unsafe { operands[at].add(offset) };
                if input != Some(at) {
                    return operand;
                }
                // SAFETY: the operand is valid for `count` elements, and a tile has room for them.
                unsafe { (kernels.divide)(operand, divided, count, self.nranks) };
                divided.cast_const()
            };
            let mut reduced = operand(0);
            for at in 1..operands.len() {
                // SAFETY: as above; a fold reads elements before it writes them.
                unsafe { (kernels.fold)(reduced, operand(at), value, count) };
                reduced = value;
            }
            if finish {
                // SAFETY: as above.
                unsafe { (kernels.divide)(reduced, value, count, self.nranks) };
                reduced = value;
            }
            for to in destinations {
                // SAFETY: the offset is within the elements, and the caller's promise.
                unsafe { self.spread(reduced, to.add(offset), count) };
            }
        }
    }

    /// # Safety
    ///
    /// As for [`run`](Reducer::run).
    unsafe fn spread(&self, from: *const u8, to: *mut u8, count: usize) {
        if !ptr::eq(from, to) {
            // SAFETY: the caller's promise; they are not the same, so they do not overlap.
            unsafe { ptr::copy_nonoverlapping(from, to, count * self.element_bytes) };
        }
    }
}

#[cfg(test)]
mod tests;
