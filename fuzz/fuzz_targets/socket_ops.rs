//! Makes any calls and moves any bytes on the two ends of a socket connection, and compares them with
//! the naive model.
#![no_main]

use invar_simulator::model::socket::{Op, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([flags], data)) = data.split_first_chunk() else { return };
    let (ops, _) = data.as_chunks::<{ Op::BYTES }>();
    World::run(u16::from(flags >> 1) % 5, flags & 1 != 0, ops.iter().copied().map(Op::decode));
});
