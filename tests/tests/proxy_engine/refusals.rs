//! Tests calls and operations that the engine refuses.

use invar_core::math::Protocol;
use invar_core::proxy::{
    AppendError, CloseError, ConnectionId, ConnectionSpec, Op, OpError, OpStage, OpenError,
    Pattern, ProxyEvent, ProxySlice, Sharing, Transport,
};
use invar_core::topology::Direction;

use crate::transport::Chance;
use crate::{engine, op, open_all, spec};

#[test]
fn operations_that_fit_no_connection_are_refused() {
    let mut engine = engine();
    open_all(&mut engine);
    let send = op(5, 2, Pattern::Send, 1);
    let id = ConnectionId;
    for (rank, op, error) in [
        (
            0,
            Op { connection: id(10), ..send },
            AppendError::NotOpen { op_count: 5, connection: id(10) },
        ),
        (
            0,
            Op { connection: id(u32::MAX), ..send },
            AppendError::NotOpen { op_count: 5, connection: id(u32::MAX) },
        ),
        (1, send, AppendError::NotYours { op_count: 5, rank: 1, connection: id(2), owner: 0 }),
        (
            0,
            Op { pattern: Pattern::Recv, ..send },
            AppendError::Direction {
                op_count: 5,
                pattern: Pattern::Recv,
                connection: id(2),
                direction: Direction::Send,
            },
        ),
        (
            0,
            Op { nsteps: 0, ..send },
            AppendError::Op { op_count: 5, error: OpError::Steps { nsteps: 0, slice_steps: 1 } },
        ),
    ] {
        assert_eq!(engine.append(rank, &op), Err(error));
    }
    assert!(engine.is_idle());
}

#[test]
fn operations_of_one_count_must_be_alike_and_come_together() {
    let mut engine = engine();
    open_all(&mut engine);
    let first = op(5, 2, Pattern::Send, 4);
    engine.append(0, &first).unwrap();
    let second = Op { connection: ConnectionId(3), ..first };
    for (other, what) in [
        (Op { protocol: Protocol::Ll, ..second }, "protocol"),
        (Op { dtype: 1, ..second }, "data type"),
        (Op { red_op: 1, ..second }, "reduction"),
        (Op { chunk_steps: 2, ..second }, "steps of a chunk"),
        (Op { slice_steps: 2, chunk_steps: 2, ..second }, "steps of a slice"),
    ] {
        let error = AppendError::Mismatch { op_count: 5, connection: ConnectionId(3), what };
        assert_eq!(engine.append(0, &other), Err(error));
    }
    let mut transport = Chance::always();
    transport.expect(&first, 2);
    engine.progress(&mut transport, &mut ()).unwrap();
    let error = AppendError::Running { op_count: 5, connection: ConnectionId(3) };
    assert_eq!(engine.append(0, &second), Err(error));
}

#[test]
fn connections_are_opened_once_and_closed_when_nothing_uses_them() {
    let mut engine = engine();
    open_all(&mut engine);
    let id = ConnectionId;
    let own = spec(Direction::Send, Sharing::Own);
    assert_eq!(engine.open(id(3), own), Err(OpenError::Open(id(3))));
    for (with, direction) in
        [(0, Direction::Send), (3, Direction::Send), (99, Direction::Send), (2, Direction::Recv)]
    {
        let spec = ConnectionSpec { direction, sharing: Sharing::With(id(with)), ..own };
        assert_eq!(engine.open(id(20), spec), Err(OpenError::Sharing(id(20), id(with))));
    }
    assert_eq!(engine.close(id(20)), Err(CloseError::NotOpen(id(20))));
    assert_eq!(engine.close(id(2)), Err(CloseError::InUse(id(2), 3)));

    let send = op(1, 0, Pattern::Send, 1);
    engine.append(0, &send).unwrap();
    assert_eq!(engine.close(id(0)), Err(CloseError::InUse(id(0), 1)));
    let mut transport = Chance::always();
    transport.expect(&send, 0);
    engine.progress(&mut transport, &mut ()).unwrap();
    assert_eq!(engine.close(id(0)), Ok(()));
    assert_eq!(engine.open(id(0), own), Ok(()));
}

/// A transport that fails at one stage.
struct Broken(OpStage);

impl Transport for Broken {
    type Error = &'static str;

    fn advance(&mut self, stage: OpStage, _: &[ProxySlice]) -> Result<bool, Self::Error> {
        if stage == self.0 { Err("the cable is out") } else { Ok(true) }
    }
}

#[test]
fn a_failure_names_operation_peer_connection_and_stage() {
    let mut engine = engine();
    open_all(&mut engine);
    engine.append(0, &op(0x2a, 7, Pattern::Recv, 1)).unwrap();
    let mut events = Events::default();
    let error = engine.progress(&mut Broken(OpStage::Flush), &mut events).unwrap_err();
    assert_eq!(
        error.to_string(),
        "operation 0x2a, Recv with rank 107 on channel 7 over connection 0-7, Flush of step 0: \
         the cable is out"
    );
    assert_eq!(events.0, [OpStage::Post, OpStage::Receive]);
}

/// The stages that were passed.
#[derive(Default)]
struct Events(Vec<OpStage>);

impl invar_core::proxy::Probe for Events {
    fn record(&mut self, event: ProxyEvent) {
        if let ProxyEvent::Step { stage, .. } = event {
            self.0.push(stage);
        }
    }
}
