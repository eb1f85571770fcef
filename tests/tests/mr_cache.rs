//! Compares the MR cache with a list of registrations and a linear search.

use invar_core::nic::Access;
use invar_testkit::model::mr_cache::{Op, PAGE, Request, World};
use proptest::prelude::*;

fn request(pages: u64) -> impl Strategy<Value = Request> {
    let access = prop_oneof![
        Just(Access::LOCAL_WRITE),
        Just(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        Just(Access::LOCAL_WRITE | Access::RELAXED_ORDERING),
    ];
    // Most ranges are short, and a few cover many others.
    let len = prop_oneof![8 => 0..4 * PAGE, 1 => 0..pages * PAGE];
    (prop_oneof![Just(0), Just(7), Just(u32::MAX)], access, 0..pages * PAGE, len)
        .prop_map(|(domain, access, addr, len)| Request { domain, access, addr, len })
}

fn op(pages: u64) -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => request(pages).prop_map(Op::Register),
        1 => request(pages).prop_map(Op::FailToRegister),
        2 => (request(pages), request(pages)).prop_map(|(a, b)| Op::Race(a, b)),
        // Two random requests are seldom for the same pages.
        1 => request(pages).prop_map(|a| Op::Race(a, a)),
        5 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::ReleaseAgain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn agrees_with_a_list_where_ranges_overlap(ops in prop::collection::vec(op(16), 0..200)) {
        World::run(ops);
    }

    #[test]
    fn agrees_with_a_list_where_ranges_are_many(ops in prop::collection::vec(op(4096), 0..200)) {
        World::run(ops);
    }

    #[test]
    fn any_bytes_are_operations(bytes in prop::collection::vec(any::<[u8; Op::BYTES]>(), 0..100)) {
        World::run(bytes.into_iter().map(Op::decode));
    }
}
