//! Counts which fault met which state.
//!
//! Whoever injects a fault names the states of the machines that the fault hits
//! ([`World::note_fault`](super::World::note_fault)). To add a fault, add a line to [`Fault`], and one to
//! the table of each [`Simulation`](super::Simulation) that injects it. To add a state, add a line to the
//! table of the machines.

use std::fmt::Write;

/// Declares an enumeration whose variants have names to be printed.
macro_rules! kinds {
    ($(#[$doc:meta])* $kinds:ident { $($kind:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kinds {
            $(#[doc = $name] $kind,)+
        }

        impl $kinds {
            /// All kinds, in the order of their declaration.
            pub const ALL: [$kinds; [$($name),+].len()] = [$($kinds::$kind),+];

            /// The name, as tables show it.
            pub const fn name(self) -> &'static str {
                match self {
                    $($kinds::$kind => $name,)+
                }
            }
        }
    };
}
pub(super) use kinds;

/// Declares the machines and their states.
macro_rules! machines {
    ($($machine:ident = $name:literal { $($state:ident = $text:literal,)+ })+) => {
        kinds! {
            /// A state machine that a fault may hit.
            Machine { $($machine = $name,)+ }
        }
        kinds! {
            /// The state of a [`Machine`].
            State { $($($state = $text,)+)+ }
        }

        impl Machine {
            /// The states of this machine.
            pub const fn states(self) -> &'static [State] {
                match self {
                    $(Machine::$machine => &[$(State::$state),+],)+
                }
            }
        }
    };
}

kinds! {
    /// A fault that the simulator injects.
    Fault {
        Lost = "lost",
        Duplicated = "duplicated",
        Reordered = "reordered",
        Corrupted = "corrupted",
        Cut = "cut",
        Overflowed = "overflowed",
        PortDown = "port down",
        PortOut = "port down for seconds",
        PortGone = "port gone",
        HostSlow = "host slow",
        QpBroken = "QP broken",
        LineLost = "TCP lost",
        LineOut = "TCP out",
        EndKilled = "end killed",
        RankKilled = "rank killed",
    }
}

machines! {
    Requester = "requester" {
        RequesterStarting = "starting",
        RequesterIdle = "idle",
        RequesterSending = "sending",
        RequesterRecovering = "recovering",
        RequesterReceiverNotReady = "receiver not ready",
        RequesterFailed = "in ERR",
        RequesterDestroyed = "destroyed",
    }
    Responder = "responder" {
        ResponderStarting = "starting",
        ResponderReady = "ready",
        ResponderInMessage = "in a message",
        ResponderPacketMissing = "packet missing",
        ResponderFailed = "in ERR",
        ResponderDestroyed = "destroyed",
    }
    Sender = "sending comm" {
        SenderSettingUp = "setting up",
        SenderIdle = "idle",
        SenderBusy = "sends in flight",
        SenderQpFailed = "queue pair in ERR",
        SenderSuspected = "queue pair failed",
        SenderDraining = "draining",
        SenderStopped = "stopped",
        SenderReported = "waiting for the report",
        SenderReady = "waiting for the peer",
        SenderPeerClosed = "peer closed",
        SenderClosed = "closed",
    }
    Receiver = "receiving comm" {
        ReceiverSettingUp = "setting up",
        ReceiverIdle = "idle",
        ReceiverBusy = "receives in flight",
        ReceiverQpFailed = "queue pair in ERR",
        ReceiverSuspected = "queue pair failed",
        ReceiverDraining = "draining",
        ReceiverStopped = "stopped",
        ReceiverReported = "waiting for the report",
        ReceiverReady = "waiting for the peer",
        ReceiverPeerClosed = "peer closed",
        ReceiverClosed = "closed",
    }
    Rail = "rail" {
        RailInUse = "in use",
        RailIdle = "not in use",
        RailDown = "down or silent",
    }
    Rank = "rank" {
        RankBetween = "between operations",
        RankAllReduce = "all-reduce",
        RankAllGather = "all-gather",
        RankReduceScatter = "reduce-scatter",
        RankBroadcast = "broadcast",
        RankReduce = "reduce",
        RankAllToAll = "all-to-all",
        RankShift = "send and receive",
        RankDraining = "links draining",
        RankFailing = "failing",
        RankFailed = "failed",
        RankOver = "over",
    }
}

impl Fault {
    /// The faults of single packets. Each hits the queue pairs at both ends.
    pub const OF_PACKETS: [Fault; 6] = [
        Fault::Lost,
        Fault::Duplicated,
        Fault::Reordered,
        Fault::Corrupted,
        Fault::Cut,
        Fault::Overflowed,
    ];
}

/// A row of a simulation's table of faults: the fault, and the machines that the fault hits.
pub type FaultRow = (Fault, &'static [Machine]);

/// Faults and states that cannot meet: each of these faults with each of these states.
pub type Apart = (&'static [Fault], &'static [State]);

/// The number of times that each fault was injected, and met each state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    injected: [u64; Fault::ALL.len()],
    met: [[u64; State::ALL.len()]; Fault::ALL.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage { injected: [0; Fault::ALL.len()], met: [[0; State::ALL.len()]; Fault::ALL.len()] }
    }
}

impl Coverage {
    /// Counts a fault that hits machines in these states.
    pub fn note(&mut self, fault: Fault, states: impl IntoIterator<Item = State>) {
        self.injected[fault as usize] += 1;
        for state in states {
            self.met[fault as usize][state as usize] += 1;
        }
    }

    /// Adds the counts of another history.
    pub fn add(&mut self, other: &Coverage) {
        let pairs = self.met.iter_mut().flatten().zip(other.met.iter().flatten());
        for (sum, count) in pairs.chain(self.injected.iter_mut().zip(&other.injected)) {
            *sum += count;
        }
    }

    /// The number of times that a fault was injected.
    pub fn injected(&self, fault: Fault) -> u64 {
        self.injected[fault as usize]
    }

    /// The number of times that a fault met a state.
    pub fn met(&self, fault: Fault, state: State) -> u64 {
        self.met[fault as usize][state as usize]
    }

    /// The states that some fault never met although the fault hits their machine, with these faults. Pairs that
    /// cannot meet are left out.
    pub fn never_met(
        &self,
        rows: &[FaultRow],
        apart: &[Apart],
    ) -> Vec<(Machine, State, Vec<Fault>)> {
        let can_meet = |fault: Fault, state: State| {
            !apart.iter().any(|(faults, states)| faults.contains(&fault) && states.contains(&state))
        };
        let faults = |machine: Machine, state: State| -> Vec<Fault> {
            let hit = rows.iter().filter(|(_, machines)| machines.contains(&machine));
            let is_missing =
                |fault: &Fault| self.met(*fault, state) == 0 && can_meet(*fault, state);
            hit.map(|(fault, _)| *fault).filter(is_missing).collect()
        };
        let states = |machine: Machine| machine.states().iter().map(move |state| (machine, *state));
        let all = Machine::ALL.into_iter().flat_map(states);
        let all = all.map(|(machine, state)| (machine, state, faults(machine, state)));
        all.filter(|(.., faults)| !faults.is_empty()).collect()
    }

    /// The counts as text: a table for each machine, and a list of the pairs that can meet and never met.
    pub fn table(&self, rows: &[FaultRow], apart: &[Apart]) -> String {
        let mut text = String::new();
        let columns: Vec<Fault> = rows.iter().map(|(fault, _)| *fault).collect();
        let injected = columns.iter().map(|fault| self.injected(*fault).to_string());
        line(&mut text, "fault", columns.iter().map(|fault| fault.name().to_owned()));
        line(&mut text, "times injected", injected);
        for machine in Machine::ALL {
            let hit: Vec<bool> = rows.iter().map(|(_, hit)| hit.contains(&machine)).collect();
            if !hit.contains(&true) {
                continue;
            }
            let _ = writeln!(text, "{}", machine.name());
            for &state in machine.states() {
                let counts = columns.iter().zip(&hit).map(|(fault, hit)| match hit {
                    true => self.met(*fault, state).to_string(),
                    false => String::new(),
                });
                line(&mut text, &format!("  {}", state.name()), counts);
            }
        }
        let mut never = String::new();
        for (machine, state, faults) in self.never_met(rows, apart) {
            let faults: Vec<&str> = faults.into_iter().map(Fault::name).collect();
            let (machine, state) = (machine.name(), state.name());
            let _ = writeln!(never, "  {machine} {state}: {}", faults.join(", "));
        }
        if never.is_empty() {
            text += "Each fault met each state that it can meet.\n";
        } else {
            text += "States that a fault never met:\n";
            text += &never;
        }
        text
    }
}

/// Adds a line of a table, without spaces at its end.
fn line(text: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    let cells: String = cells.map(|cell| format!(" {cell:>11}")).collect();
    *text += format!("{name:<21}{cells}").trim_end();
    *text += "\n";
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [FaultRow; 2] =
        [(Fault::Lost, &[Machine::Requester]), (Fault::PortDown, &[Machine::Sender])];

    #[test]
    fn a_pair_that_never_met_is_listed() {
        let mut coverage = Coverage::default();
        coverage.note(Fault::Lost, [State::RequesterIdle, State::RequesterIdle]);
        coverage.note(Fault::PortDown, [State::SenderBusy]);
        let table = coverage.table(&ROWS, &[(&[Fault::Lost], &[State::RequesterFailed])]);
        let (counts, never) = table.split_once("never met:\n").expect("a list");
        let cells = |name: &str| -> Vec<&str> {
            let row = counts.lines().find_map(|line| line.trim_start().strip_prefix(name));
            row.expect(name).split_whitespace().collect()
        };
        assert_eq!(cells("times injected"), ["1", "1"], "{table}");
        assert_eq!(cells("idle"), ["2"], "{table}");
        assert_eq!(cells("sends in flight"), ["1"], "{table}");
        assert!(never.contains("  requester sending: lost\n"), "{table}");
        assert!(never.contains("  sending comm idle: port down\n"), "{table}");
        assert!(!never.contains("requester idle"), "{table}");
        assert!(!never.contains("requester in ERR"), "these cannot meet: {table}");
        assert!(!table.contains("rank"), "no fault hits a rank: {table}");
    }

    #[test]
    fn sums_count_each_history() {
        let mut one = Coverage::default();
        Machine::Requester.states().iter().for_each(|state| one.note(Fault::Lost, [*state]));
        Machine::Sender.states().iter().for_each(|state| one.note(Fault::PortDown, [*state]));
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!(sum.met(Fault::Lost, State::RequesterIdle), 2);
        assert_eq!(sum.injected(Fault::Lost), 14);
        assert!(sum.table(&ROWS, &[]).ends_with("Each fault met each state that it can meet.\n"));
    }
}
