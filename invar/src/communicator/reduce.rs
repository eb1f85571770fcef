//! Copies elements, and reduces elements of several ranks to one, over raw memory with vector
//! instructions.
//!
//! The memory belongs to slots, which other processes write, and to the caller's buffers. All memory is
//! raw and may have any alignment. [`Reducer::new`] checks once which instructions the processor has.

mod element;
mod kernel;

use std::mem::MaybeUninit;
use std::ptr;

use invar_core::coll::{DataType, RedOp};

use self::kernel::Kernels;

/// Bytes of a tile. A reduction with more than two operands or two destinations goes through a separate
/// tile, which stays in the processor's first-level cache.
const TILE_BYTES: usize = 4096;

type Tile = MaybeUninit<[u64; TILE_BYTES / 8]>;

/// Reduces elements of one type by one operation, as one of `nranks` ranks.
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    element_bytes: usize,
    nranks: u32,
    /// The kernels of the reduction; `None` if the reducer only moves data.
    kernels: Option<Kernels>,
    average: Average,
}

/// The values of an average that are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Average {
    /// The reduction is no average.
    No,
    /// Each input is divided before it is added.
    Inputs,
    /// The sum is divided.
    Sum,
}

impl Reducer {
    /// Creates a reducer by `op`. An average of floating-point numbers divides each input, as NCCL
    /// does, so that the sum does not overflow. An average of integers divides the sum and rounds
    /// towards zero.
    pub fn new(data_type: DataType, op: RedOp, nranks: u32) -> Self {
        let kernels = Kernels::new(data_type, op);
        let average = match op {
            RedOp::Avg if nranks > 1 && data_type.is_float() => Average::Inputs,
            RedOp::Avg if nranks > 1 => Average::Sum,
            _ => Average::No,
        };
        Reducer { element_bytes: data_type.bytes(), nranks, kernels: Some(kernels), average }
    }

    /// Creates a reducer that only moves elements. Its [`run`](Reducer::run) takes one operand.
    pub fn copy(data_type: DataType) -> Self {
        let element_bytes = data_type.bytes();
        Reducer { element_bytes, nranks: 1, kernels: None, average: Average::No }
    }

    /// Returns whether a rank's own input is divided before it is reduced or sent.
    pub(super) fn divides_inputs(&self) -> bool {
        self.average == Average::Inputs
    }

    /// Reduces the operands in their order, and stores the value at each destination.
    ///
    /// `input` is the index of the operand that is the rank's own input, which is not divided yet for
    /// an average. `finish` says that the value contains all ranks' inputs.
    /// [`Step`](invar_core::coll::Step) has both.
    ///
    /// # Panics
    ///
    /// Panics if there is no operand, or if there are several after [`copy`](Reducer::copy).
    ///
    /// # Safety
    ///
    /// - Each operand is valid for reads of `count` elements, and each destination for writes of
    ///   `count` elements. They need not be aligned.
    /// - A destination is the same as an operand or overlaps none. No two destinations overlap.
    /// - No thread of this process writes the operands or accesses the destinations during the call. If
    ///   another process does, the value is arbitrary, and the call has no other bad effect.
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
                // SAFETY: the caller has promised what `spread` demands.
                destinations.iter().for_each(|to| unsafe { self.spread(*operand, *to, count) });
            }
            ([a, b], [to], Some(kernels)) if input.is_none() && !finish => {
                // SAFETY: the caller has promised what the kernel demands.
                unsafe { (kernels.fold)(*a, *b, *to, count) };
            }
            ([a, b], [to, too], Some(kernels)) if input.is_none() && !finish => {
                // SAFETY: the caller has promised what the kernel demands.
                unsafe { (kernels.fold_twice)(*a, *b, *to, *too, count) };
            }
            (_, _, Some(kernels)) => {
                // SAFETY: the caller has promised what `by_tiles` demands.
                unsafe { self.by_tiles(kernels, operands, input, destinations, count, finish) };
            }
            (_, _, None) => panic!("{} operands, and no operation to reduce them", operands.len()),
        }
    }

    /// Reduces in a separate tile, for reductions that take more than one pass.
    ///
    /// # Safety
    ///
    /// The caller makes the promises of [`run`](Reducer::run).
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
                // SAFETY: both operands and the tile have `count` elements, and a fold reads elements
                // before it writes them.
                unsafe { (kernels.fold)(reduced, operand(at), value, count) };
                reduced = value;
            }
            if finish {
                // SAFETY: the reduced value and the tile have `count` elements.
                unsafe { (kernels.divide)(reduced, value, count, self.nranks) };
                reduced = value;
            }
            for to in destinations {
                // SAFETY: the offset is within the elements, and the caller has promised that the
                // destination is valid.
                unsafe { self.spread(reduced, to.add(offset), count) };
            }
        }
    }

    /// # Safety
    ///
    /// The caller makes the promises of [`run`](Reducer::run).
    unsafe fn spread(&self, from: *const u8, to: *mut u8, count: usize) {
        if !ptr::eq(from, to) {
            // SAFETY: the caller has promised valid memory. The two addresses differ, so by that
            // promise the ranges do not overlap.
            unsafe { ptr::copy_nonoverlapping(from, to, count * self.element_bytes) };
        }
    }
}

#[cfg(test)]
mod tests;
