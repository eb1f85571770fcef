//! Bytes a second that a reduction of two operands stores at one destination, beside those that a
//! plain copy does: a line "name bytes GB/s" for each.

#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::hint::black_box;
use std::time::Instant;

use invar::communicator::reduce::Reducer;
use invar_core::coll::{DataType, RedOp};

/// In the second cache, and in none.
const SIZES: [usize; 2] = [128 << 10, 64 << 20];
/// The bytes that one measurement stores.
const RUN_BYTES: usize = 256 << 20;
/// The number of measurements. The fastest one counts.
const TIMES: usize = 5;

fn main() {
    for len in SIZES {
        let (a, b, mut to) = (vec![1_u8; len], vec![2_u8; len], vec![0_u8; len]);
        show("memcpy", len, || black_box(&mut to).copy_from_slice(&a));
        for data_type in
            [DataType::F32, DataType::F64, DataType::I32, DataType::F16, DataType::Bf16]
        {
            let reducer = Reducer::new(data_type, RedOp::Sum, 2);
            let count = len / data_type.bytes();
            show(data_type.name(), len, || {
                let (operands, to) = ([a.as_ptr(), b.as_ptr()], black_box(&mut to).as_mut_ptr());
                // SAFETY: all are of `count` elements and apart from each other.
                unsafe { reducer.run(&operands, None, &[to], count, true) };
            });
        }
    }
}

fn show(name: &str, len: usize, mut once: impl FnMut()) {
    let rate = || {
        let start = Instant::now();
        (0..RUN_BYTES / len).for_each(|_| once());
        RUN_BYTES as f64 / start.elapsed().as_nanos() as f64
    };
    let best = std::iter::repeat_with(rate).take(TIMES).fold(0.0, f64::max);
    println!("{name} {len} {best:.1}");
}
