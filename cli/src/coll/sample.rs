//! Elements whose reductions, except averages, fit every type without rounding.

use half::{bf16, f16};
use invar::{Element, RedOp};

/// A type of element that this command can make up and compare.
pub(super) trait Sample: Element {
    /// The element with the value of a small number.
    fn of(number: u32) -> Self;
    /// The value of the element.
    fn value(self) -> f64;
    /// The largest relative error of a reduction.
    const TOLERANCE: f64;
}

macro_rules! samples {
    ($($element:ty, $of:expr, $value:expr, $tolerance:expr;)+) => {$(
        impl Sample for $element {
            fn of(number: u32) -> Self {
                $of(number)
            }

            fn value(self) -> f64 {
                $value(self)
            }

            const TOLERANCE: f64 = $tolerance;
        }
    )+};
}

samples! {
    i8, |n| n as i8, f64::from, 0.0;
    u8, |n| n as u8, f64::from, 0.0;
    i32, |n| n as i32, f64::from, 0.0;
    u32, |n| n, f64::from, 0.0;
    i64, i64::from, |n: i64| n as f64, 0.0;
    u64, u64::from, |n: u64| n as f64, 0.0;
    f16, |n| f16::from_f32(n as f32), f64::from, 1e-2;
    bf16, |n| bf16::from_f32(n as f32), f64::from, 6e-2;
    f32, |n| n as f32, f64::from, 1e-5;
    f64, f64::from, |n| n, 1e-12;
}

/// Element `i` of a rank's input for an operation among `nranks`. Sums stay below 128 as long as
/// there are fewer ranks.
pub(super) fn input(op: RedOp, i: usize, rank: u32, nranks: u32) -> u32 {
    match op {
        // One rank has a 2.
        RedOp::Prod => 1 + u32::from(i % nranks as usize == rank as usize),
        _ if nranks <= 16 => (i as u32).wrapping_mul(7).wrapping_add(rank * 3) % 8,
        _ => (i as u32).wrapping_add(rank) % 2,
    }
}

/// The reduced element `i` of all ranks' inputs.
pub(super) fn reduced(op: RedOp, i: usize, nranks: u32) -> f64 {
    let all = (0..nranks).map(|rank| f64::from(input(op, i, rank, nranks)));
    match op {
        RedOp::Sum => all.sum(),
        RedOp::Prod => all.product(),
        RedOp::Max => all.fold(f64::NEG_INFINITY, f64::max),
        RedOp::Min => all.fold(f64::INFINITY, f64::min),
        RedOp::Avg => all.sum::<f64>() / f64::from(nranks),
    }
}

/// Whether an element has the expected value. Integers are cut off to their type.
pub(super) fn is_right<T: Sample>(got: T, want: f64) -> bool {
    match T::TOLERANCE {
        0.0 => got.value() == want.trunc(),
        tolerance => (got.value() - want).abs() <= tolerance * want.abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_are_of_all_inputs() {
        let nranks = 3;
        let inputs = [0, 1, 2].map(|rank| input(RedOp::Sum, 5, rank, nranks));
        assert_eq!(inputs, [3, 6, 1]);
        let reduced = |op| reduced(op, 5, nranks);
        assert_eq!([RedOp::Sum, RedOp::Max, RedOp::Min].map(reduced), [10.0, 6.0, 1.0]);
        assert_eq!(reduced(RedOp::Prod), 2.0);
        assert!(is_right(3_i32, reduced(RedOp::Avg)) && !is_right(4_i32, reduced(RedOp::Avg)));
        assert!(is_right(10.0_f32 / 3.0, reduced(RedOp::Avg)));
        assert!(!is_right(3.34_f32, reduced(RedOp::Avg)));
        assert!(!is_right(f32::NAN, 1.0));
    }
}
