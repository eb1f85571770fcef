//! Tests the proxy's engine over a transport that is ready by chance.

mod refusals;
mod transport;

use std::collections::BTreeMap;

use invar_core::math::Protocol;
use invar_core::proxy::{
    Args, BankSlot, Connection, ConnectionId, ConnectionSpec, Engine, Op, OpStage, Pattern,
    RecvGroup, SUBS_MAX, Sharing,
};
use invar_core::topology::Direction;
use invar_linux::proxy::HeapBanks;
use invar_testkit::random::Random;
use proptest::prelude::*;
use transport::Chance;

type HeapEngine = Engine<HeapBanks<BankSlot<Args>>, HeapBanks<Option<Connection>>>;

fn engine() -> HeapEngine {
    Engine::new(HeapBanks::default(), HeapBanks::default())
}

fn spec(direction: Direction, sharing: Sharing) -> ConnectionSpec {
    ConnectionSpec { direction, local_rank: 0, sharing, recv_group: None }
}

/// An operation over connection `id` with `nsteps` steps.
fn op(op_count: u64, id: u32, pattern: Pattern, nsteps: u64) -> Op {
    Op {
        op_count,
        nsteps,
        slice_bytes: 4096,
        connection: ConnectionId(id),
        peer: id + 100,
        chunk_bytes: 4096,
        channel: id as u16,
        slice_steps: 1,
        chunk_steps: 1,
        pattern,
        protocol: Protocol::Simple,
        dtype: 0,
        red_op: 0,
    }
}

/// Opens ten connections. 0 and 1 have buffers of their own. 2 to 5 share buffers to send and 6 to 9
/// share buffers to receive, some of them over one comm.
fn open_all(engine: &mut HeapEngine) {
    let grouped = |comm| Some(RecvGroup { comm, buffers_max: 2 });
    for id in 0..10u32 {
        let direction = match id {
            0 | 2..=5 => Direction::Send,
            _ => Direction::Recv,
        };
        let sharing = match id {
            0 | 1 => Sharing::Own,
            2 | 6 => Sharing::First,
            3..=5 => Sharing::With(ConnectionId(2)),
            _ => Sharing::With(ConnectionId(6)),
        };
        let recv_group = match id {
            6 | 8 | 9 => grouped(1),
            7 => grouped(2),
            _ => None,
        };
        let spec = ConnectionSpec { recv_group, ..spec(direction, sharing) };
        engine.open(ConnectionId(id), spec).unwrap();
    }
}

fn is_send(id: u32) -> bool {
    matches!(id, 0 | 2..=5)
}

/// The connection whose chain of waiting operations a connection joins.
fn chain_of(id: u32) -> u32 {
    match id {
        0 | 1 => id,
        2..=5 => 2,
        _ => 6,
    }
}

/// Operation counts. Each has the connections that it has an operation on, and the slices of each.
fn groups() -> impl Strategy<Value = Vec<BTreeMap<u32, u64>>> {
    let group = prop::collection::btree_map(0u32..10, 1u64..20, 1..8);
    prop::collection::vec(group, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_operation_goes_through_its_stages_in_order_and_after_those_before_it(
        groups in groups(),
        slices in prop::sample::select(&[(1u8, 1u8), (2, 4), (1, 4), (4, 4)]),
        seed: u64,
    ) {
        let mut random = Random::new(seed);
        let mut engine = engine();
        open_all(&mut engine);
        let mut transport = Chance::new(random.next());
        let (slice_steps, chunk_steps) = slices;
        let mut expected = 0;
        for (op_count, group) in (1..).zip(&groups) {
            for (&id, &nslices) in group {
                let pattern = if is_send(id) { Pattern::Send } else { Pattern::Recv };
                let nsteps = nslices * u64::from(slice_steps);
                let op = Op { slice_steps, chunk_steps, ..op(op_count, id, pattern, nsteps) };
                engine.append(0, &op).unwrap();
                transport.expect(&op, chain_of(id));
                expected += nslices;
            }
            for _ in 0..random.below(30) {
                engine.progress(&mut transport, &mut ()).unwrap();
            }
        }
        // A round moves something with a probability of at least a third.
        let mut rounds = 0;
        while !engine.is_idle() {
            engine.progress(&mut transport, &mut ()).unwrap();
            rounds += 1;
            prop_assert!(rounds < 100_000, "stuck:\n{}", engine);
        }
        prop_assert_eq!(transport.completed(), expected);
        prop_assert_eq!(engine.to_string(), "ACTIVE OPS\n[X]\n");
        for id in (0..10).rev() {
            engine.close(ConnectionId(id)).unwrap();
        }
    }
}

#[test]
fn operations_of_one_count_are_merged_where_buffers_are_shared_and_chained_where_not() {
    let mut engine = engine();
    open_all(&mut engine);
    for (op_count, id) in [(1, 2), (1, 3), (2, 2), (1, 0), (2, 0)] {
        engine.append(0, &op(op_count, id, Pattern::Send, 1)).unwrap();
    }
    let dump = "ACTIVE OPS\n[0-0|1| Send 102/2 103/3]\n| `-> [0-1|2| Send 102/2]\nv\n\
                [0-2|1| Send 100/0]\n| `-> [0-3|2| Send 100/0]\nv\n[X]\n";
    assert_eq!(engine.to_string(), dump);

    // Waiting operations take the place of finished ones.
    let mut transport = Chance::always();
    for (op_count, id) in [(1, 2), (1, 3), (2, 2), (1, 0), (2, 0)] {
        transport.expect(&op(op_count, id, Pattern::Send, 1), chain_of(id));
    }
    assert_eq!(engine.progress(&mut transport, &mut ()), Ok(true));
    let dump = "ACTIVE OPS\n[0-1|2| Send 102/2]\n|\nv\n[0-3|2| Send 100/0]\n|\nv\n[X]\n";
    assert_eq!(engine.to_string(), dump);
}

#[test]
fn the_dump_says_what_each_sub_waits_for() {
    for (pattern, states) in [(Pattern::Send, "IGS"), (Pattern::Recv, "IRFG")] {
        let stages: &[OpStage] = match pattern {
            Pattern::Send => &[OpStage::Post, OpStage::Transmit, OpStage::Complete],
            // Flushed data is shown as flushing until the GPU has it.
            _ => &[OpStage::Post, OpStage::Receive, OpStage::Transmit, OpStage::Complete],
        };
        let id = u32::from(pattern == Pattern::Recv);
        for (state, &stage) in states.chars().zip(stages) {
            let mut engine = engine();
            open_all(&mut engine);
            engine.append(0, &op(7, id, pattern, 2)).unwrap();
            let mut transport = Chance::always();
            transport.expect(&op(7, id, pattern, 2), id);
            transport.stop_at(stage, u64::from(state == 'I'));
            for _ in 0..10 {
                engine.progress(&mut transport, &mut ()).unwrap();
            }
            let kind = if is_send(id) { "Send" } else { "Recv" };
            let line = format!("[0-0|7| {kind} {}{state}/{id}]", id + 100);
            assert_eq!(engine.to_string(), format!("ACTIVE OPS\n{line}\n|\nv\n[X]\n"));
        }
    }
    // One sub is done while another is not.
    let mut engine = engine();
    open_all(&mut engine);
    let mut transport = Chance::always();
    for (id, nsteps) in [(2, 1), (3, 2)] {
        engine.append(0, &op(7, id, Pattern::Send, nsteps)).unwrap();
        transport.expect(&op(7, id, Pattern::Send, nsteps), 2);
    }
    engine.progress(&mut transport, &mut ()).unwrap();
    let dump = "ACTIVE OPS\n[0-0|7| Send 102D/2 103I/3]\n|\nv\n[X]\n";
    assert_eq!(engine.to_string(), dump);
}

#[test]
fn a_collective_shows_the_states_of_its_directions() {
    let mut engine = engine();
    open_all(&mut engine);
    let mut transport = Chance::always();
    for id in [0, 1] {
        let op = op(9, id, Pattern::RingTwice, 1);
        engine.append(0, &op).unwrap();
        transport.expect(&op, id);
    }
    transport.stop_at(OpStage::Transmit, 0);
    for _ in 0..5 {
        engine.progress(&mut transport, &mut ()).unwrap();
    }
    let dump = "ACTIVE OPS\n[0-0|9| Coll 100G/0]\n|\nv\n[0-1|9| Coll 101F/1]\n|\nv\n[X]\n";
    assert_eq!(engine.to_string(), dump);
}

#[test]
fn more_operations_of_a_count_than_a_shared_buffer_has_slots_are_moved_too() {
    let mut engine = engine();
    let mut transport = Chance::new(1);
    let n = 2 * SUBS_MAX as u32 + 1;
    for id in 2..2 + n {
        let sharing = if id == 2 { Sharing::First } else { Sharing::With(ConnectionId(2)) };
        engine.open(ConnectionId(id), spec(Direction::Send, sharing)).unwrap();
        engine.append(0, &op(1, id, Pattern::Send, 3)).unwrap();
        transport.expect(&op(1, id, Pattern::Send, 3), 2);
    }
    for _ in 0..10_000 {
        engine.progress(&mut transport, &mut ()).unwrap();
    }
    assert!(engine.is_idle(), "{engine}");
    assert_eq!(transport.completed(), 3 * u64::from(n));
}
