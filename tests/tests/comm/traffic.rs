//! Any calls on either end, in any order, deliver each message once, in order of its tag, with
//! its bytes and sizes, and lose no request.

use invar_core::conn::{Settings, Wire};
use invar_testkit::duo::{self, Duo};
use invar_testkit::model::comm::{Op, Shape, Traffic};
use invar_testkit::null::NullNic;
use proptest::prelude::*;

const SHAPE: Shape = Shape { message_bytes_max: 700, cells: 300, prompt: true };

/// The NIC is prompt, so this is enough to end whatever is under way.
const STEPS_MAX: usize = 10_000;

fn settings() -> impl Strategy<Value = Settings> {
    let wire = prop_oneof![3 => Just(Wire::Invar), 1 => Just(Wire::Nccl214)];
    // Messages above and below the threshold; more queue pairs than lines to split over them.
    let threshold = prop_oneof![Just(0), Just(256), Just(8192)];
    let qps = prop_oneof![2 => Just(1), 1 => Just(2), 1 => Just(4), 1 => Just(7)];
    (wire, 0..=8u32, qps, threshold, any::<bool>(), any::<bool>()).prop_map(
        |(wire, depth_log, qps, ar_threshold_bytes, use_inline, truncate)| Settings {
            wire,
            fifo_depth: 1 << depth_log,
            qps,
            ar_threshold_bytes,
            use_inline,
            truncate,
            ..Settings::default()
        },
    )
}

fn connect(nics: &[NullNic; 2], settings: Settings) -> Duo<NullNic> {
    let [a, b] = nics;
    let mut duo = duo::connect([a, b], [settings; 2], || {}).expect("connect");
    // NCCL 2.14's wire gets ready in the first calls: these let its sender be first.
    let nothing = duo.send.isend(&Default::default(), 0);
    assert_eq!(nothing, Ok(None));
    duo
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn agrees_with_a_list_of_posted_buffers(
        settings in settings(),
        ops in prop::collection::vec(any::<[u8; Op::BYTES]>(), 0..250),
    ) {
        let nics: [NullNic; 2] = NullNic::ports();
        let duo = connect(&nics, settings);
        let [a, b] = &nics;
        let mut traffic = Traffic::new([a, b], [settings; 2], duo, SHAPE);
        for op in ops {
            traffic.apply(Op::decode(op)).expect("a comm without faults");
        }
        let over = (0..STEPS_MAX).any(|_| traffic.finish().expect("a comm without faults"));
        prop_assert!(over, "requests are under way still");
    }
}
