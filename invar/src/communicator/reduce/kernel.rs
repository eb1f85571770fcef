//! The inner loops, compiled for each type, operation and set of instructions.

use std::ptr;

use invar_core::coll::{DataType, RedOp};

#[cfg(target_arch = "x86_64")]
use super::element::F16c;
use super::element::{Bf16, Element, F16, Number};

/// Elements of a long block, enough that the compiler turns a loop over them into vector code.
const LONG: usize = 128;
/// Elements of a short block. The elements behind the long blocks are cut into short blocks, and the
/// last one is padded.
const SHORT: usize = 8;

/// Computes `to = a op b` for `count` elements.
pub(super) type Fold = unsafe fn(a: *const u8, b: *const u8, to: *mut u8, count: usize);
/// Computes `to = too = a op b` for `count` elements.
pub(super) type FoldTwice =
    unsafe fn(a: *const u8, b: *const u8, to: *mut u8, too: *mut u8, count: usize);
/// Computes `to = a / nranks` for `count` elements.
pub(super) type Divide = unsafe fn(a: *const u8, to: *mut u8, count: usize, nranks: u32);

/// The kernels for a type and an operation on this processor.
///
/// # Safety of all kernels
///
/// Pointers are valid for `count` elements, at any alignment. A destination is the same as an operand
/// or overlaps none. Destinations do not overlap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    pub(super) fold: Fold,
    pub(super) fold_twice: FoldTwice,
    pub(super) divide: Divide,
}

trait Op<N> {
    fn apply(a: N, b: N) -> N;
}

struct Sum;
struct Prod;
struct Max;
struct Min;

impl<N: Number> Op<N> for Sum {
    #[inline(always)]
    fn apply(a: N, b: N) -> N {
        a.add(b)
    }
}

impl<N: Number> Op<N> for Prod {
    #[inline(always)]
    fn apply(a: N, b: N) -> N {
        a.mul(b)
    }
}

impl<N: Number> Op<N> for Max {
    #[inline(always)]
    fn apply(a: N, b: N) -> N {
        a.max(b)
    }
}

impl<N: Number> Op<N> for Min {
    #[inline(always)]
    fn apply(a: N, b: N) -> N {
        a.min(b)
    }
}

/// The instructions that the kernels are compiled for, the narrowest first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instructions {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// Returns the instructions that this processor has.
    pub(super) fn present() -> impl DoubleEndedIterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let all = {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            [
                (Instructions::Baseline, true),
                (Instructions::Avx2, avx2),
                (Instructions::Avx512, avx2 && avx512),
            ]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let all = [(Instructions::Baseline, true)];
        all.into_iter().filter_map(|(instructions, present)| present.then_some(instructions))
    }
}

impl Kernels {
    /// Returns the kernels for the widest instructions that this processor has.
    pub(super) fn new(data_type: DataType, op: RedOp) -> Self {
        let widest = Instructions::present().next_back().unwrap_or(Instructions::Baseline);
        Self::with(widest, data_type, op)
    }

    /// Returns the kernels for `instructions`, which this processor must have.
    pub(super) fn with(instructions: Instructions, data_type: DataType, op: RedOp) -> Self {
        match data_type {
            DataType::I8 => Self::of_type::<i8>(instructions, op),
            DataType::U8 => Self::of_type::<u8>(instructions, op),
            DataType::I32 => Self::of_type::<i32>(instructions, op),
            DataType::U32 => Self::of_type::<u32>(instructions, op),
            DataType::I64 => Self::of_type::<i64>(instructions, op),
            DataType::U64 => Self::of_type::<u64>(instructions, op),
            DataType::F16 => match instructions {
                Instructions::Baseline => Self::of_type::<F16>(instructions, op),
                #[cfg(target_arch = "x86_64")]
                _ => Self::of_type::<F16c>(instructions, op),
            },
            DataType::F32 => Self::of_type::<f32>(instructions, op),
            DataType::F64 => Self::of_type::<f64>(instructions, op),
            DataType::Bf16 => Self::of_type::<Bf16>(instructions, op),
        }
    }

    fn of_type<T: Element>(instructions: Instructions, op: RedOp) -> Self {
        match op {
            RedOp::Sum | RedOp::Avg => Self::of_op::<T, Sum>(instructions),
            RedOp::Prod => Self::of_op::<T, Prod>(instructions),
            RedOp::Max => Self::of_op::<T, Max>(instructions),
            RedOp::Min => Self::of_op::<T, Min>(instructions),
        }
    }

    fn of_op<T: Element, O: Op<T::Number>>(instructions: Instructions) -> Self {
        match instructions {
            Instructions::Baseline => baseline::kernels::<T, O>(),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => avx2::kernels::<T, O>(),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => avx512::kernels::<T, O>(),
        }
    }
}

/// Computes `to[i] = f(from[i])` over all operands and destinations.
///
/// # Safety
///
/// The caller makes the promises of [`Kernels`].
#[inline(always)]
unsafe fn map<T: Element, const IN: usize, const OUT: usize>(
    from: [*const u8; IN],
    to: [*mut u8; OUT],
    count: usize,
    f: impl Fn([T::Number; IN]) -> T::Number,
) {
    let at = |first: usize| {
        let offset = first * size_of::<T>();
        // SAFETY: `first` is at most `count`.
        unsafe { (from.map(|a| a.add(offset)), to.map(|to| to.add(offset))) }
    };
    let (long, short) = (count - count % LONG, count - count % SHORT);
    for first in (0..long).step_by(LONG) {
        let (from, to) = at(first);
        // SAFETY: a whole block is within the elements.
        unsafe { map_block::<T, IN, OUT, LONG>(from, to, &f) };
    }
    for first in (long..short).step_by(SHORT) {
        let (from, to) = at(first);
        // SAFETY: a whole block is within the elements.
        unsafe { map_block::<T, IN, OUT, SHORT>(from, to, &f) };
    }
    if short == count {
        return;
    }
    let ((from, to), rest) = (at(short), (count - short) * size_of::<T>());
    let (mut operands, mut value) = ([[T::ZERO; SHORT]; IN], [T::ZERO; SHORT]);
    for (operand, from) in operands.iter_mut().zip(from) {
        // SAFETY: the rest is within the elements and shorter than a block.
        unsafe { ptr::copy_nonoverlapping(from, operand.as_mut_ptr().cast(), rest) };
    }
    let operands = operands.each_ref().map(|operand| operand.as_ptr().cast());
    // SAFETY: the operands and the destination are whole blocks on the stack.
    unsafe { map_block::<T, IN, 1, SHORT>(operands, [value.as_mut_ptr().cast()], &f) };
    for to in to {
        // SAFETY: the rest is within the elements and shorter than a block.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr().cast(), to, rest) };
    }
}

/// Runs [`map`] for `N` elements. It loads all elements before it stores one. So a destination may be
/// an operand, and the compiler need not prove that it is none.
///
/// # Safety
///
/// The caller makes the promises of [`Kernels`].
#[inline(always)]
unsafe fn map_block<T: Element, const IN: usize, const OUT: usize, const N: usize>(
    from: [*const u8; IN],
    to: [*mut u8; OUT],
    f: &impl Fn([T::Number; IN]) -> T::Number,
) {
    // SAFETY: the caller has promised that each operand is valid for `N` elements.
    let load = |from: *const u8| unsafe { from.cast::<[T; N]>().read_unaligned() };
    // These are plain loops, because the functions of an iterator would not be compiled with the
    // caller's instructions.
    let mut operands = [T::widen(&load(from[0])); IN];
    for at in 1..IN {
        operands[at] = T::widen(&load(from[at]));
    }
    let mut value = operands[0];
    for at in 0..N {
        value[at] = f(operands.each_ref().map(|operand| operand[at]));
    }
    let value = T::narrow(&value);
    for to in to {
        // SAFETY: the caller has promised that each destination is valid for `N` elements.
        unsafe { to.cast::<[T; N]>().write_unaligned(value) };
    }
}

/// Defines the kernels for a set of instructions.
macro_rules! kernels {
    ($name:ident $(, $feature:literal)*) => {
        mod $name {
            use super::{Element, Kernels, Number, Op, map};

            pub(super) fn kernels<T: Element, O: Op<T::Number>>() -> Kernels {
                Kernels { fold: fold::<T, O>, fold_twice: fold_twice::<T, O>, divide: divide::<T> }
            }

            /// # Safety
            ///
            /// The caller makes the promises of [`Kernels`](super::Kernels), and the processor has the
            /// instructions.
            $(#[target_feature(enable = $feature)])*
            pub(super) unsafe fn fold<T: Element, O: Op<T::Number>>(
                a: *const u8,
                b: *const u8,
                to: *mut u8,
                count: usize,
            ) {
                let apply = |[a, b]: [T::Number; 2]| O::apply(a, b);
                // SAFETY: the caller has promised what `map` demands.
                unsafe { map::<T, 2, 1>([a, b], [to], count, apply) };
            }

            /// # Safety
            ///
            /// The caller makes the promises of [`fold`].
            $(#[target_feature(enable = $feature)])*
            pub(super) unsafe fn fold_twice<T: Element, O: Op<T::Number>>(
                a: *const u8,
                b: *const u8,
                to: *mut u8,
                too: *mut u8,
                count: usize,
            ) {
                let apply = |[a, b]: [T::Number; 2]| O::apply(a, b);
                // SAFETY: the caller has promised what `map` demands.
                unsafe { map::<T, 2, 2>([a, b], [to, too], count, apply) };
            }

            /// # Safety
            ///
            /// The caller makes the promises of [`fold`].
            $(#[target_feature(enable = $feature)])*
            pub(super) unsafe fn divide<T: Element>(
                a: *const u8,
                to: *mut u8,
                count: usize,
                nranks: u32,
            ) {
                // SAFETY: the caller has promised what `map` demands.
                unsafe { map::<T, 1, 1>([a], [to], count, |[a]| a.divide(nranks)) };
            }
        }
    };
}

kernels!(baseline);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2", "f16c");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512bw", "avx512dq", "avx512vl", "f16c");
