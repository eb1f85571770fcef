//! The socket protocol brings every message to its buffer, however short its writes and reads are.

use invar_testkit::model::socket::{Op, Plan, World};
use proptest::prelude::*;

/// Sends and receives of a few tags, and moves of bytes.
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u8..3, any::<u16>()).prop_map(|(tag, len)| Op::Send(tag, len)),
        4 => (0u32..3, any::<u16>()).prop_map(|(tag, len)| Op::Recv(0, tag, len)),
        1 => (0u8..8, any::<u32>(), any::<u16>())
            .prop_map(|(nreqs, tags, len)| Op::Recv(nreqs, tags & 0x1111_1111, len)),
        2 => any::<u8>().prop_map(Op::TestSend),
        2 => any::<u8>().prop_map(Op::TestRecv),
        4 => prop_oneof![0u16..40, any::<u16>()].prop_map(Op::WriteMain),
        4 => prop_oneof![0u16..40, any::<u16>()].prop_map(Op::ReadMain),
        3 => any::<u8>().prop_map(Op::Control),
        3 => (any::<u8>(), 0u32..1 << 20).prop_map(|(lane, bytes)| Op::Lane(lane, bytes)),
        1 => any::<u8>().prop_map(Op::Lose),
        1 => Just(Op::Keep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn messages_meet_the_buffers_of_their_tag_over_one_socket(
        ops in prop::collection::vec(op(), 0..150),
    ) {
        World::run(Plan::default(), ops);
    }

    #[test]
    fn long_messages_come_whole_over_any_number_of_lanes(
        lanes in 1u16..=64, ops in prop::collection::vec(op(), 0..80),
    ) {
        World::run(Plan { lanes, ..Plan::default() }, ops);
    }

    #[test]
    fn sockets_that_are_lost_lose_no_byte(
        lanes in 0u16..=3, ops in prop::collection::vec(op(), 0..200),
    ) {
        World::run(Plan { lanes, mismatches: false, resumes: true }, ops);
    }

    #[test]
    fn a_message_too_long_for_its_buffer_is_noticed_by_both_sizes(
        lanes in 0u16..=2, resumes: bool, ops in prop::collection::vec(op(), 0..60),
    ) {
        World::run(Plan { lanes, mismatches: true, resumes }, ops);
    }

    #[test]
    fn any_bytes_are_operations(
        lanes in 0u16..=2,
        mismatches: bool,
        resumes: bool,
        bytes in prop::collection::vec(any::<[u8; Op::BYTES]>(), 0..60),
    ) {
        World::run(Plan { lanes, mismatches, resumes }, bytes.into_iter().map(Op::decode));
    }
}
