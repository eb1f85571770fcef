//! The table of the simulations.

use super::{Apart, Event, Fault, FaultRow, Machine, Outcome, State, ranks, scenario};

/// One of so many seeds is lived through twice, to see that one seed is one history.
pub const TWICE_EVERY: u64 = 64;

/// A kind of histories, each of which a seed decides.
#[derive(Clone, Copy)]
pub struct Simulation {
    /// The name that `cargo xtask campaign` takes.
    pub name: &'static str,
    /// The test in `tests/tests` that runs it. If a history fails, the test repeats this one alone.
    pub test: &'static str,
    /// Runs the history of a seed. A history that ends badly panics.
    pub run: fn(u64) -> Outcome,
    /// The faults that it injects.
    pub faults: &'static [FaultRow],
    /// The faults and states that cannot meet.
    pub apart: &'static [Apart],
    /// The events that it counts.
    pub events: &'static [Event],
}

/// Every simulation. To add one, add a row here and a test to `tests/tests`.
pub const SIMULATIONS: [Simulation; 3] = [COMMS, RAILS, RANKS];

const QUEUE_PAIR: &[Machine] = &[Machine::Requester, Machine::Responder];
const COMM: &[Machine] = &[Machine::Sender, Machine::Receiver];
const COMM_AND_RAILS: &[Machine] = &[Machine::Sender, Machine::Receiver, Machine::Rail];

/// Pairs of comms send to each other.
pub const COMMS: Simulation = Simulation {
    name: "comms",
    test: "simulation",
    run: scenario::run,
    faults: &OF_COMMS,
    apart: APART_IN_COMMS,
    events: COMM_EVENTS,
};

/// Pairs of comms send to each other over one to three rails.
pub const RAILS: Simulation = Simulation {
    name: "rails",
    test: "simulated_rails",
    run: scenario::run_rails,
    faults: &OF_RAILS,
    apart: APART_IN_COMMS,
    events: COMM_EVENTS,
};

const OF_COMMS: [FaultRow; 14] =
    of_comms(COMM, &[Machine::Requester, Machine::Responder, Machine::Sender, Machine::Receiver]);
const OF_RAILS: [FaultRow; 14] = of_comms(
    COMM_AND_RAILS,
    &[Machine::Requester, Machine::Responder, Machine::Sender, Machine::Receiver, Machine::Rail],
);

/// The faults of connections. A broken queue pair hits the machines `all`.
const fn of_comms(comm: &'static [Machine], all: &'static [Machine]) -> [FaultRow; 14] {
    [
        (Fault::Lost, QUEUE_PAIR),
        (Fault::Duplicated, QUEUE_PAIR),
        (Fault::Reordered, QUEUE_PAIR),
        (Fault::Corrupted, QUEUE_PAIR),
        (Fault::Cut, QUEUE_PAIR),
        (Fault::Overflowed, QUEUE_PAIR),
        (Fault::PortDown, comm),
        (Fault::PortOut, comm),
        (Fault::PortGone, comm),
        (Fault::HostSlow, comm),
        (Fault::QpBroken, all),
        (Fault::LineLost, comm),
        (Fault::LineOut, comm),
        (Fault::EndKilled, comm),
    ]
}

/// Both ends have queue pairs that receive before either end sends.
const BEFORE_PACKETS: Apart =
    (&Fault::OF_PACKETS, &[State::RequesterStarting, State::ResponderStarting]);
/// Receivers post before they announce.
const NOT_READY: Apart = (&Fault::ALL, &[State::RequesterReceiverNotReady]);

const APART_IN_COMMS: &[Apart] = &[
    BEFORE_PACKETS,
    NOT_READY,
    // The simulations break queue pairs, and kill ends, of open comms alone.
    (
        &[Fault::QpBroken, Fault::EndKilled],
        &[
            State::RequesterDestroyed,
            State::ResponderDestroyed,
            State::SenderPeerClosed,
            State::SenderClosed,
            State::ReceiverPeerClosed,
            State::ReceiverClosed,
        ],
    ),
];

const APART_IN_RANKS: &[Apart] = &[
    BEFORE_PACKETS,
    NOT_READY,
    // A history has one such fault, and nothing fails or ends before the fault.
    (
        &[Fault::QpBroken],
        &[
            State::RequesterFailed,
            State::RequesterDestroyed,
            State::ResponderFailed,
            State::ResponderDestroyed,
        ],
    ),
    // No rank fails before the one fault that hits ranks.
    (&Fault::ALL, &[State::RankFailing, State::RankFailed]),
];

const COMM_EVENTS: &[Event] = &[
    Event::PacketSent,
    Event::QpTagged,
    Event::QpLong,
    Event::LongestPosted,
    Event::DamageDetected,
    Event::PacketSentAgain,
    Event::MessageSent,
    Event::CommDone,
    Event::CommFailed,
    Event::LineRenewed,
    Event::Recovery,
];

/// Ranks run collectives, and one may die.
pub const RANKS: Simulation = Simulation {
    name: "ranks",
    test: "simulated_ranks",
    run: ranks::run,
    faults: &[
        (Fault::Lost, QUEUE_PAIR),
        (Fault::Duplicated, QUEUE_PAIR),
        (Fault::Reordered, QUEUE_PAIR),
        (Fault::Corrupted, QUEUE_PAIR),
        (Fault::Cut, QUEUE_PAIR),
        (Fault::PortOut, &[Machine::Rank]),
        (Fault::PortGone, &[Machine::Rank]),
        (Fault::QpBroken, &[Machine::Requester, Machine::Responder, Machine::Rank]),
        (Fault::RankKilled, &[Machine::Rank]),
    ],
    apart: APART_IN_RANKS,
    events: &[
        Event::PacketSent,
        Event::QpTagged,
        Event::QpLong,
        Event::LongestPosted,
        Event::PartDone,
        Event::RankDone,
        Event::RankTold,
        Event::RankFailed,
    ],
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn one_seed_is_one_history_and_another_seed_another() {
        let run_all = || {
            for simulation in SIMULATIONS {
                let run = |first: u64| (first..first + 20).map(simulation.run).collect::<Vec<_>>();
                let (first, again, others) = (run(0), run(0), run(20));
                assert_eq!(first, again);
                assert!(first.iter().zip(&others).all(|(one, other)| one.trace != other.trace));
            }
        };
        let thread = crate::sim::roomy_thread().spawn(run_all).expect("a thread");
        thread.join().expect("the same histories");
    }

    #[test]
    fn each_simulation_has_its_test() {
        for Simulation { name, test, .. } in SIMULATIONS {
            let path = format!("{}/../tests/{test}.rs", env!("CARGO_MANIFEST_DIR"));
            assert!(Path::new(&path).is_file(), "{name} has no test {path}");
        }
    }
}
