//! Makes any calls and moves any bytes on the two ends of a socket connection, and compares them with
//! the naive model.
#![no_main]

use invar_simulator::model::socket::{Op, Plan, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([flags], data)) = data.split_first_chunk() else { return };
    let (ops, _) = data.as_chunks::<{ Op::BYTES }>();
    let (lanes, has) = (u16::from(flags >> 2) % 5, |flag| flags & flag != 0);
    let plan = Plan { lanes, mismatches: has(1), resumes: has(2) };
    World::run(plan, ops.iter().copied().map(Op::decode));
});
