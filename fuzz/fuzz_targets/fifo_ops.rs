//! Makes any calls on the two ends of a connection and compares them with the naive model.
#![no_main]

use invar_core::conn::{CommSettings, Wire};
use invar_simulator::model::comm::{self, Op};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some(([flags, depth, qps, threshold], data)) = data.split_first_chunk() else { return };
    let settings = CommSettings {
        wire: if flags & 1 == 0 { Wire::Invar } else { Wire::Nccl214 },
        use_inline: flags & 2 != 0,
        truncate: flags & 4 != 0,
        fifo_depth: 1 << (depth % 9),
        qps: u16::from(qps % 8) + 1,
        ar_threshold_bytes: u32::from(*threshold) * 4,
        ..CommSettings::default()
    };
    let (ops, _) = data.as_chunks::<{ Op::BYTES }>();
    comm::run(settings, ops.iter().copied().map(Op::decode));
});
