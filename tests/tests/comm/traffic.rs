//! Any calls on either end, in any order, deliver each message once, with its bytes and sizes. Messages
//! arrive in the order of their tag, and no request is lost.

use invar_core::conn::{CommSettings, Wire};
use invar_testkit::model::comm::{self, Op};
use proptest::prelude::*;

fn settings() -> impl Strategy<Value = CommSettings> {
    let wire = prop_oneof![3 => Just(Wire::Invar), 1 => Just(Wire::Nccl214)];
    // Messages are above and below the threshold. There may be more queue pairs than 128-byte shares to
    // split over them.
    let threshold = prop_oneof![Just(0), Just(256), Just(8192)];
    let qps = prop_oneof![2 => Just(1), 1 => Just(2), 1 => Just(4), 1 => Just(7)];
    (wire, 0..=8u32, qps, threshold, any::<bool>(), any::<bool>()).prop_map(
        |(wire, depth_log, qps, ar_threshold_bytes, use_inline, truncate)| CommSettings {
            wire,
            fifo_depth: 1 << depth_log,
            qps,
            ar_threshold_bytes,
            use_inline,
            truncate,
            ..CommSettings::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agrees_with_a_list_of_posted_buffers(
        settings in settings(),
        ops in prop::collection::vec(any::<[u8; Op::BYTES]>(), 0..250),
    ) {
        comm::run(settings, ops.into_iter().map(Op::decode));
    }
}
