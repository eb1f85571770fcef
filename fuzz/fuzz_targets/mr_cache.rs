//! Makes any sequence of MR cache calls and compares them with the naive model.
#![no_main]

use invar_simulator::model::mr_cache::{Op, World};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (ops, _) = data.as_chunks::<{ Op::BYTES }>();
    World::run(ops.iter().copied().map(Op::decode));
});
