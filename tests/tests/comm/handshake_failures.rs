//! A peer that closes, falls silent, or speaks another protocol causes an error. Every later call
//! returns this error.

use std::rc::Rc;

use invar_core::auth::{Answering, Calling, HELLO_BYTES, NONCE_BYTES, Secret, Service, Session};
use invar_core::conn::stage::{Side, Stage};
use invar_core::conn::wire::{MESSAGE_BYTES_MAX, QP_INFO_BYTES};
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream, StreamError, Wire};
use invar_core::error::{Error, ErrorKind};
use invar_core::nic::{LinkLayer, Nic, PortAttr, PortState, Verb};
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;
use proptest::prelude::*;

use crate::meddler::{Meddler, Plan};
use crate::rig::Handshake;

const DEADLINE_NS: u64 = 1_000_000;
const MESSAGE: u16 = MESSAGE_BYTES_MAX as u16;

fn settings(wire: Wire) -> CommSettings {
    CommSettings { wire, fifo_depth: 4, timeout_ns: DEADLINE_NS, ..CommSettings::default() }
}

/// A connector without a peer, and the peer's end of its pipe.
fn connector(wire: Wire) -> (Connector<NullNic, Pipe>, Pipe) {
    let [nic]: [NullNic; 1] = NullNic::ports();
    let pd = nic.alloc_pd().expect("a domain");
    let (here, there) = Pipe::pair();
    (Connector::new(nic, pd, here, None, settings(wire), 0), there)
}

/// An acceptor without a peer, and the peer's end of its pipe.
fn acceptor(wire: Wire) -> (Acceptor<NullNic, Pipe>, Pipe) {
    let [nic]: [NullNic; 1] = NullNic::ports();
    let pd = nic.alloc_pd().expect("a domain");
    let (here, there) = Pipe::pair();
    (Acceptor::new(nic, pd, here, Session::UNKNOWN_PEER, settings(wire), 0), there)
}

/// The message of a correct connector.
fn message(wire: Wire) -> Vec<u8> {
    let (mut connector, mut there) = connector(wire);
    let _ = connector.poll(0).expect("no error");
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let n = there.recv(&mut bytes).expect("a message");
    bytes.truncate(n);
    bytes
}

/// The result of an acceptor that receives these bytes. An error must repeat on later calls.
fn verdict(wire: Wire, bytes: &[u8]) -> (Result<bool, Error>, Acceptor<NullNic, Pipe>, Pipe) {
    let (mut acceptor, mut there) = acceptor(wire);
    there.send(bytes).expect("a pipe");
    let first = acceptor.poll(0).map(|comm| comm.is_some());
    if first.is_err() {
        assert_eq!(acceptor.poll(0).map(|comm| comm.is_some()), first, "on each call");
        assert_eq!(acceptor.poll(u64::MAX).map(|comm| comm.is_some()), first, "on each call");
    }
    (first, acceptor, there)
}

#[test]
fn a_peer_that_closes_is_told_with_the_stage_and_the_bytes_that_came() {
    for wire in [Wire::Invar, Wire::Nccl214] {
        let message = message(wire);
        for cut in 0..message.len() {
            let (mut acceptor, mut there) = acceptor(wire);
            there.send(&message[..cut]).expect("a pipe");
            drop(there);
            let (got, want) = (cut as u16, message.len() as u16);
            let error = StreamError::Closed;
            let closed = Error::Stream { stage: Stage::Recv, error, got, want };
            for _ in 0..2 {
                assert_eq!(acceptor.poll(0).err(), Some(closed));
            }
            assert_eq!(closed.kind(), ErrorKind::Peer);
        }
    }
}

#[test]
fn a_connector_whose_peer_closes_fails_where_it_is() {
    let (mut waiting, there) = connector(Wire::Invar);
    drop(there);
    let error = waiting.poll(0).err().expect("an error");
    assert!(matches!(error, Error::Stream { stage: Stage::Send, .. }), "{error}");

    let (mut waiting, there) = connector(Wire::Invar);
    assert!(waiting.poll(0).expect("no error").is_none());
    drop(there);
    let error = waiting.poll(0).err().expect("an error");
    let (stage, want) = (Stage::Connecting, MESSAGE);
    let closed = Error::Stream { stage, error: StreamError::Closed, got: 0, want };
    assert_eq!(error, closed);
}

#[test]
fn an_acceptor_whose_peer_closes_before_its_ready_word_fails_there() {
    let mut handshake = Handshake::new([settings(Wire::Invar); 2]);
    handshake.poll(Side::Connector).expect("no error");
    handshake.poll(Side::Acceptor).expect("no error");
    assert_eq!(handshake.acceptor.stage(), Stage::PendingReady);
    drop(handshake.connector);
    let error = handshake.acceptor.poll(0).err().expect("an error");
    let (stage, error_want) = (Stage::PendingReady, StreamError::Closed);
    assert_eq!(error, Error::Stream { stage, error: error_want, got: 0, want: 4 });
    let report = handshake.acceptor.report(error).to_string();
    for part in ["null1", "192.0.2.7:4000", "null0", "PendingReady", "0 of 4 bytes"] {
        assert!(report.contains(part), "{part} in: {report}");
    }
}

#[test]
fn a_silent_peer_is_given_up_at_the_deadline_and_not_before() {
    for wire in [Wire::Invar, Wire::Nccl214] {
        let message = message(wire);
        for came in [0, 1, message.len() / 2, message.len() - 1] {
            let (mut acceptor, mut there) = acceptor(wire);
            there.send(&message[..came]).expect("a pipe");
            assert!(acceptor.poll(DEADLINE_NS - 1).expect("not yet").is_none());
            let (got, want) = (came as u16, message.len() as u16);
            let timeout = Error::Timeout { stage: Stage::Recv, got, want };
            assert_eq!(acceptor.poll(DEADLINE_NS).err(), Some(timeout));
            assert_eq!(acceptor.poll(0).err(), Some(timeout), "it stays");
        }
    }
    let (mut connector, _there) = connector(Wire::Invar);
    assert!(connector.poll(DEADLINE_NS - 1).expect("not yet").is_none());
    let timeout = Error::Timeout { stage: Stage::Connecting, got: 0, want: MESSAGE };
    assert_eq!(connector.poll(DEADLINE_NS).err(), Some(timeout));
}

#[test]
fn a_connection_that_never_comes_up_is_given_up_at_the_deadline() {
    let mut handshake = Handshake::new([settings(Wire::Invar); 2]);
    handshake.gates.iter().for_each(|gate| gate.up.set(false));
    let connect = Error::Timeout { stage: Stage::Connect, got: 0, want: 0 };
    assert_eq!(handshake.connector.poll(DEADLINE_NS).err(), Some(connect));
    let accept = Error::Timeout { stage: Stage::Accept, got: 0, want: 0 };
    assert_eq!(handshake.acceptor.poll(DEADLINE_NS).err(), Some(accept));
}

#[test]
fn ends_on_different_wires_each_say_so() {
    // An end on Invar's wire calls an end on NCCL's wire, which hangs up.
    let [nic]: [NullNic; 1] = NullNic::ports();
    let pd = nic.alloc_pd().expect("a domain");
    let (here, mut there) = Pipe::pair();
    let calling = Calling::new(Secret::PUBLIC, Service::Rdma, [1; NONCE_BYTES]);
    let mut connector = Connector::new(nic, pd, here, Some(calling), settings(Wire::Invar), 0);
    assert!(connector.poll(0).expect("no error").is_none());
    let mut said = [0; HELLO_BYTES];
    assert_eq!(there.recv(&mut said), Ok(HELLO_BYTES));
    let (verdict, acceptor, _) = verdict(Wire::Nccl214, &said);
    let text = acceptor.report(verdict.expect_err("the other wire")).to_string();
    assert!(text.contains("INVAR_WIRE"), "{text}");
    drop(there);
    let error = connector.poll(0).err().expect("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("INVAR_WIRE"), "{error}");

    // An end on NCCL's wire calls an end on Invar's wire.
    let (mut here, mut there) = Pipe::pair();
    there.send(&message(Wire::Nccl214)).expect("a pipe");
    let mut answering = Answering::new([2; NONCE_BYTES]);
    let error = answering.poll(&Secret::PUBLIC, Service::Rdma, &mut here).expect_err("no hello");
    assert!(error.to_string().contains("INVAR_WIRE=nccl-2.14"), "{error}");
}

#[test]
fn ends_of_different_link_layers_are_refused() {
    let [a, b]: [NullNic; 2] = NullNic::ports();
    let infiniband =
        PortAttr { link_layer: LinkLayer::Infiniband, lid: 7, ..a.query_port().expect("a port") };
    let a = Meddler::new(a);
    a.plan.port.set(Some(infiniband));
    let b = Meddler::new(b);
    let (here, there) = Pipe::pair();
    let mut connector = Connector::new(a, 1, here, None, settings(Wire::Invar), 0);
    let mut acceptor = Acceptor::new(b, 2, there, Session::UNKNOWN_PEER, settings(Wire::Invar), 0);
    assert!(connector.poll(0).expect("no error").is_none());
    let (ours, theirs) = (LinkLayer::Ethernet, LinkLayer::Infiniband);
    assert_eq!(acceptor.poll(0).err(), Some(Error::LinkLayer { ours, theirs }));
}

#[test]
fn a_wrong_ready_word_is_refused() {
    let (mut acceptor, mut there) = acceptor(Wire::Invar);
    there.send(&message(Wire::Invar)).expect("a pipe");
    assert!(acceptor.poll(0).expect("no error").is_none());
    there.send(&[2, 0, 0, 0]).expect("a pipe");
    assert_eq!(acceptor.poll(0).err(), Some(Error::Ready([2, 0, 0, 0])));
}

/// Runs `call` on an end whose NIC refuses `verb`.
fn refusing<R>(verb: Verb, call: impl FnOnce(Meddler, &Rc<Plan>) -> R) -> R {
    let [nic]: [NullNic; 1] = NullNic::ports();
    let nic = Meddler::new(nic);
    let plan = Rc::clone(&nic.plan);
    plan.failing.set(Some(verb));
    call(nic, &plan)
}

#[test]
fn a_verb_that_fails_while_connecting_is_told_by_name() {
    let verbs = [
        Verb::QueryPort,
        Verb::AllocMemory,
        Verb::RegMr,
        Verb::CreateCq,
        Verb::CreateQp,
        Verb::ModifyQp,
    ];
    for verb in verbs {
        let error = refusing(verb, |nic, plan| {
            let (here, _there) = Pipe::pair();
            let mut connector = Connector::new(nic, 1, here, None, settings(Wire::Invar), 0);
            let error = connector.poll(0).err().expect("an error");
            plan.failing.set(None);
            assert_eq!(connector.poll(0).err(), Some(error), "it stays");
            error
        });
        assert_eq!(error.kind(), ErrorKind::Local);
        assert!(error.to_string().contains(verb.name()), "{error}");
        let of_acceptor = refusing(verb, |nic, _| {
            let (mut here, there) = Pipe::pair();
            here.send(&message(Wire::Invar)).expect("a pipe");
            Acceptor::new(nic, 1, there, Session::UNKNOWN_PEER, settings(Wire::Invar), 0)
                .poll(0)
                .err()
        });
        assert_eq!(of_acceptor, Some(error));
    }
}

#[test]
fn a_port_that_is_down_is_refused() {
    let [nic]: [NullNic; 1] = NullNic::ports();
    let down = PortAttr { state: PortState::Down, ..nic.query_port().expect("a port") };
    let nic = Meddler::new(nic);
    nic.plan.port.set(Some(down));
    let (here, _there) = Pipe::pair();
    let error = Connector::new(nic, 1, here, None, settings(Wire::Invar), 0).poll(0).err();
    assert!(error.expect("an error").to_string().contains("the port is down"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_make_an_error_or_wait_and_never_a_panic(
        ours: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..MESSAGE_BYTES_MAX + 8),
        changes in prop::option::of(prop::collection::vec((0..MESSAGE_BYTES_MAX, any::<u8>()), 1..6)),
    ) {
        let wire = if ours { Wire::Invar } else { Wire::Nccl214 };
        let bytes = match changes {
            None => bytes,
            Some(changes) => {
                let mut message = message(wire);
                for (at, value) in changes {
                    let at = at % message.len();
                    message[at] = value;
                }
                message
            }
        };
        let length = if ours { MESSAGE_BYTES_MAX } else { QP_INFO_BYTES };
        let (verdict, ..) = verdict(wire, &bytes);
        if let Err(error) = verdict {
            prop_assert!(matches!(error.kind(), ErrorKind::Peer | ErrorKind::Incompatible), "{error}");
        } else if bytes.len() < length {
            prop_assert_eq!(verdict, Ok(false));
        }
    }
}
