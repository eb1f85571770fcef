//! Connect and accept have one result, wherever either of them has to wait and in whatever order they
//! are called.

use invar_core::conn::stage::Side;
use invar_core::conn::wire::{MESSAGE_BYTES_MAX, QP_INFO_BYTES, TIME_BYTES};
use invar_core::conn::{CommSettings, Wire};
use proptest::prelude::*;

use crate::rig::Handshake;

/// The most bytes that each end moves: a message each way, the acceptor's time, and the ready word.
const BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX + TIME_BYTES + 4;

fn settings(wire: Wire) -> [CommSettings; 2] {
    [CommSettings { wire, fifo_depth: 4, ..CommSettings::default() }; 2]
}

const WIRES: [Wire; 2] = [Wire::Invar, Wire::Nccl214];

#[test]
fn either_end_may_have_to_wait_at_any_byte() {
    for wire in WIRES {
        for side in 0..2 {
            for credit in 0..=BYTES_MAX {
                let mut handshake = Handshake::new(settings(wire));
                handshake.gates[side].credit.set(credit);
                for _ in 0..3 {
                    handshake.poll(Side::Connector).expect("no error");
                    handshake.poll(Side::Acceptor).expect("no error");
                }
                handshake.finish();
            }
        }
    }
}

#[test]
fn no_order_of_calls_matters() {
    // Every message comes in two pieces, so each end has six steps to take. Each bit of a schedule is a
    // call of one end. A schedule that does not have six of each holds one end back.
    const CALLS: u32 = 12;
    for wire in WIRES {
        for schedule in 0..1u32 << CALLS {
            let mut handshake = Handshake::new(settings(wire));
            for call in 0..CALLS {
                let (side, end) = match schedule >> call & 1 {
                    0 => (Side::Connector, 0),
                    _ => (Side::Acceptor, 1),
                };
                handshake.gates[end].credit.set(QP_INFO_BYTES / 2 + 100);
                handshake.poll(side).expect("no error");
            }
            handshake.finish();
        }
    }
}

#[test]
fn a_connection_that_is_not_up_yet_is_awaited() {
    let mut handshake = Handshake::new(settings(Wire::Invar));
    handshake.gates.iter().for_each(|gate| gate.up.set(false));
    for _ in 0..3 {
        handshake.poll(Side::Connector).expect("no error");
        handshake.poll(Side::Acceptor).expect("no error");
    }
    assert_eq!(handshake.connector.stage() as u8, 1, "Connect");
    assert_eq!(handshake.acceptor.stage() as u8, 3, "Accept");
    handshake.gates.iter().for_each(|gate| gate.up.set(true));
    handshake.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_pieces_in_any_order_make_a_connection(
        ours: bool,
        calls in prop::collection::vec((any::<bool>(), 0usize..300), 0..60),
    ) {
        let wire = if ours { Wire::Invar } else { Wire::Nccl214 };
        let mut handshake = Handshake::new(settings(wire));
        for (connector, credit) in calls {
            let (side, end) = if connector { (Side::Connector, 0) } else { (Side::Acceptor, 1) };
            handshake.gates[end].credit.set(credit);
            handshake.poll(side).expect("no error");
        }
        handshake.finish();
    }
}
