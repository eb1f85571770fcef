//! A comm of a history, and its end.

use std::mem;

use invar_core::comm::{RailStates, RecoveryStage};
use invar_core::error::Error;
use invar_core::nic::Nic;

use super::super::{Event, Outcome, State as MachineState, World};
use crate::model::comm::{End, Remains, Traffic};
use crate::pipe::Cable;

/// A comm of a history.
pub(super) struct Comm<N: Nic> {
    /// The ports of both ends, one for each rail.
    pub(super) ports: [Vec<usize>; 2],
    pub(super) state: State<N>,
    /// The network of the stream beside the queue pairs.
    pub(super) cable: Cable,
    /// Whether the comm survives faults that last for less than [`RECOVERY_NS`](super::RECOVERY_NS).
    pub(super) recovers: bool,
    /// Whether an event has happened after which this comm may fail.
    pub(super) may_fail: bool,
}

/// How far a comm is.
pub(super) enum State<N: Nic> {
    Open(Box<Traffic<N>>),
    Failed(Box<Remains<N>>),
    Over,
}

impl<N: Nic> Comm<N> {
    pub(super) fn has(&self, port: usize) -> bool {
        self.ports.iter().any(|ports| ports.contains(&port))
    }

    /// Whether no pair of rails is left.
    pub(super) fn is_cut_off(&self, is_gone: impl Fn(usize) -> bool) -> bool {
        let [a, b] = &self.ports;
        a.iter().zip(b).all(|(a, b)| is_gone(*a) || is_gone(*b))
    }

    /// The port of a queue pair of an end, and its number there.
    pub(super) fn place(&self, end: usize, qpn: u32) -> (usize, u32) {
        (self.ports[end][qpn as usize >> 24], qpn & 0xff_ffff)
    }

    /// The states of the sending and of the receiving end.
    pub(super) fn machines(&self, world: &World) -> [MachineState; 2] {
        use MachineState as Is;
        match &self.state {
            State::Over => [Is::SenderClosed, Is::ReceiverClosed],
            State::Failed(remains) => match remains.open_end() {
                Some(End::Sender) => [Is::SenderPeerClosed, Is::ReceiverClosed],
                Some(End::Receiver) => [Is::SenderClosed, Is::ReceiverPeerClosed],
                None => [Is::SenderClosed, Is::ReceiverClosed],
            },
            State::Open(traffic) => {
                let [send_qpn, recv_qpn] = traffic.qpns();
                let [sends, recvs] = traffic.in_flight();
                let [sender, receiver] = [(0, send_qpn), (1, recv_qpn)].map(|(end, qpn)| {
                    let (port, qpn) = self.place(end, qpn);
                    world.qp_states(port, qpn)
                });
                let ([sender, _], [_, receiver]) = (sender, receiver);
                // On the wire of NCCL 2.14 the receiver waits until the sender has started.
                let starting = sender == Is::RequesterStarting;
                let sender = match sender {
                    Is::RequesterFailed => Is::SenderQpFailed,
                    _ if starting => Is::SenderSettingUp,
                    _ if sends > 0 => Is::SenderBusy,
                    _ => Is::SenderIdle,
                };
                let receiver = match receiver {
                    Is::ResponderFailed => Is::ReceiverQpFailed,
                    _ if starting => Is::ReceiverSettingUp,
                    _ if recvs > 0 => Is::ReceiverBusy,
                    _ => Is::ReceiverIdle,
                };
                let [sending, receiving] = traffic.recovery_stages();
                let sender = sending.map_or(sender, |stage| match stage {
                    RecoveryStage::Suspected => Is::SenderSuspected,
                    RecoveryStage::Draining => Is::SenderDraining,
                    RecoveryStage::Stopped => Is::SenderStopped,
                    RecoveryStage::Reported => Is::SenderReported,
                    _ => Is::SenderReady,
                });
                let receiver = receiving.map_or(receiver, |stage| match stage {
                    RecoveryStage::Suspected => Is::ReceiverSuspected,
                    RecoveryStage::Draining => Is::ReceiverDraining,
                    RecoveryStage::Stopped => Is::ReceiverStopped,
                    RecoveryStage::Reported => Is::ReceiverReported,
                    _ => Is::ReceiverReady,
                });
                [sender, receiver]
            }
        }
    }

    /// The states of the rails that a fault hits, as the sending end sees them. A comm of one rail has none.
    pub(super) fn rails(&self, is_hit: impl Fn(usize) -> bool) -> Vec<MachineState> {
        let State::Open(traffic) = &self.state else { return Vec::new() };
        let RailStates { count, in_use, down } = traffic.rails();
        let rails = (0..usize::from(count)).filter(|rail| count > 1 && is_hit(*rail));
        let state = |rail: usize| match [in_use, down].map(|set| set >> rail & 1) {
            [1, _] => MachineState::RailInUse,
            [_, 1] => MachineState::RailDown,
            _ => MachineState::RailIdle,
        };
        rails.map(state).collect()
    }

    /// The states of both ends and of all rails.
    pub(super) fn all_machines(&self, world: &World) -> Vec<MachineState> {
        let ends = self.machines(world).into_iter();
        ends.chain(self.rails(|_| true)).collect()
    }

    /// Takes a step. The step returns whether it was the last.
    pub(super) fn step(
        &mut self,
        outcome: &mut Outcome,
        now_ns: u64,
        step: impl FnOnce(&mut Traffic<N>) -> Result<bool, Error>,
    ) {
        let over = match &mut self.state {
            State::Over => return,
            State::Failed(remains) => remains.finish(now_ns),
            State::Open(traffic) => match step(traffic) {
                Ok(false) => return,
                Ok(true) => {
                    outcome.count(Event::Recovery, u64::from(traffic.duo().send.attempts()));
                    outcome.count(Event::MessageSent, traffic.messages());
                    outcome.count(Event::CommDone, 1);
                    true
                }
                Err(error) => {
                    let report = traffic.duo().send.report(error);
                    assert!(self.may_fail, "a comm failed without a reason: {report}");
                    false
                }
            },
        };
        if over {
            self.state = State::Over;
        } else {
            self.end_early(outcome, |traffic| traffic.abandon());
        }
    }

    /// Ends the comm, if it is open, before all its messages have arrived.
    pub(super) fn end_early(
        &mut self,
        outcome: &mut Outcome,
        end: impl FnOnce(Traffic<N>) -> Remains<N>,
    ) {
        match mem::replace(&mut self.state, State::Over) {
            State::Open(traffic) => {
                outcome.count(Event::CommFailed, 1);
                outcome.count(Event::MessageSent, traffic.messages());
                self.state = State::Failed(Box::new(end(*traffic)));
            }
            other => self.state = other,
        }
    }
}
