//! The cases: each fault, and what all processes must say.

use crate::rank::CULPRIT;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two ends of a connection over the software NIC or TCP, on two hosts.
    Ends(&'static str),
    /// Three processes over the software NIC or TCP: the first one sends to the second one, which sends to the third.
    /// The second one has a host of its own.
    Chain(&'static str),
    /// Four ranks over the software NIC or TCP, two on each of two hosts.
    Ranks(&'static str),
    /// Four ranks of one host, which share memory.
    Shared,
}

/// What the orchestrator does, beside the fault that the processes know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    /// Stops a process.
    Stop(usize),
    /// Stops all processes of a host, which then drops all that it gets.
    StopHost(usize),
    /// Nothing. The fault ends this process.
    Die(usize),
    /// Runs `ip` on a host.
    Ip(usize, &'static [&'static str]),
    /// A host loses so many of a thousand packets that it gets.
    Lose(usize, u32),
    /// A host filters the packets that it gets by a rule of nftables.
    Filter(usize, &'static str),
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) fault: &'static str,
    pub(crate) act: Act,
    /// The text that a line of each process must contain. `PID0` stands for the number of process 0, and so on,
    /// `OWN` and `PEER` for the end of the process and for the other one, and `|` parts alternatives.
    pub(crate) said: &'static [&'static str],
    /// Whether both ends must say the same, but for the times.
    pub(crate) is_alike: bool,
    /// Whether the fault is one that no process must report.
    pub(crate) is_none: bool,
}

const fn case(
    name: &'static str,
    kind: Kind,
    fault: &'static str,
    said: &'static [&'static str],
) -> Case {
    let is_alike = matches!(kind, Kind::Ends(_));
    Case { name, kind, fault, act: Act::Nothing, said, is_alike, is_none: false }
}

const fn acted(name: &'static str, kind: Kind, act: Act, said: &'static [&'static str]) -> Case {
    Case { name, kind, fault: "none", act, said, is_alike: false, is_none: false }
}

/// A receiver whose process ends. Only the sender can say so.
const fn dies(name: &'static str, kind: Kind, fault: &'static str) -> Case {
    Case { fault, ..acted(name, kind, Act::Die(1), &["error: ", "closed"]) }
}

/// A fault that no process must report.
const fn none(name: &'static str, kind: Kind, act: Act) -> Case {
    Case { is_none: true, ..acted(name, kind, act, &[]) }
}

const NIC_ENDS: Kind = Kind::Ends("soft");
const TCP_ENDS: Kind = Kind::Ends("socket");
const NIC_CHAIN: Kind = Kind::Chain("soft");
const TCP_CHAIN: Kind = Kind::Chain("socket");
const SOFT: Kind = Kind::Ranks("soft");
const TCP: Kind = Kind::Ranks("socket");
/// The culprit among the ranks, at the beginning of a verdict. Other ranks are named in its middle.
const RANK: &str = ": rank 2 (pid PID2 on ";
/// The first process of a chain hears that the second one waits for the third one, which the others name.
const CHAIN_LAST: &[&str] =
    &["waits for pid PID2 at |the receiver (pid PID2 on |process of the receiver (pid PID2 on "];
const STOPPED: &[&str] = &["pid PID2 on ", "does not answer"];
const HOST_GONE: &[&str] =
    &["rank 2 (pid PID2 on |rank 3 (pid PID3 on ", "does not answer, nor does its host"];
const ROOTS: &[&str] = &[RANK, "from rank 1, but rank", "from rank 2"];
/// These faults are mostly errors at once, since messages of other lengths meet.
const UNEQUAL: &[&str] = &[RANK, "all ranks must make the same calls"];
/// Packets go to an address that nobody has.
const LOSE_UDP: &[&str] = &[
    "neigh replace 192.0.2.99 lladdr 02:00:00:00:00:99 dev v0 nud permanent",
    "route add default via 192.0.2.99 dev v0 table 77",
    "rule add pref 1 ipproto udp lookup 77",
    "route flush cache",
];
/// A path that carries small packets only, and sends no ICMP message about it.
const BLACK_HOLE: &str = "meta length > 1000 drop";
const LOSE_ALL: [&[&str]; 2] = [
    &["neigh replace 192.0.2.2 lladdr 02:00:00:00:00:99 dev v0 nud permanent"],
    &["neigh replace 192.0.2.1 lladdr 02:00:00:00:00:99 dev v0 nud permanent"],
];

pub(crate) const CASES: &[Case] = &[
    case(
        "a receive is never posted",
        NIC_ENDS,
        "no receive",
        &["the receiver (pid PID1 on ", "has posted no receive"],
    ),
    case(
        "a receiver never tests",
        NIC_ENDS,
        "no test",
        &["the receiver (pid PID1 on ", "has not called test"],
    ),
    case(
        "a receiver in an endless loop",
        NIC_ENDS,
        "endless loop",
        &["the receiver (pid PID1 on ", "has posted no receive", "last call was"],
    ),
    case(
        "a sender never sends",
        NIC_ENDS,
        "no send",
        &["the sender (pid PID0 on ", "has sent nothing"],
    ),
    case(
        "a sender never tests",
        NIC_ENDS,
        "no test of sends",
        &["the sender (pid PID0 on ", "has not called test"],
    ),
    case("a wrong tag", NIC_ENDS, "other tag", &["sends with tag 0x51", "has tag 0x52"]),
    case("a group without one of its sends", NIC_ENDS, "group", &["lacks 1 of the sends", "PID0"]),
    acted(
        "SIGSTOP of the receiver",
        NIC_ENDS,
        Act::Stop(1),
        &["the receiver (pid PID1 on ", "it is stopped"],
    ),
    acted(
        "SIGSTOP of the sender",
        NIC_ENDS,
        Act::Stop(0),
        &["the sender (pid PID0 on ", "it is stopped"],
    ),
    acted(
        "UDP lost towards the receiver",
        NIC_ENDS,
        Act::Ip(0, LOSE_UDP),
        &["the network from the sender", "this end's NIC counts"],
    ),
    acted(
        "UDP lost towards the sender",
        NIC_ENDS,
        Act::Ip(1, LOSE_UDP),
        &["the network from the receiver", "this end's NIC counts"],
    ),
    acted(
        "all lost towards the receiver",
        NIC_ENDS,
        Act::Ip(0, LOSE_ALL[0]),
        &["the host of PEER|the network from the sender"],
    ),
    acted(
        "port down at the receiver",
        NIC_ENDS,
        Act::Ip(1, &["link set v0 down"]),
        // The end of a veth pair whose other end is down has no carrier.
        &["the port of OWN|the host of the receiver (pid PID1 on "],
    ),
    acted(
        "large packets lost",
        NIC_ENDS,
        Act::Filter(1, BLACK_HOLE),
        &["the network from the sender"],
    ),
    none("5 % lost", NIC_ENDS, Act::Lose(1, 50)),
    none("TCP lost", NIC_ENDS, Act::Filter(1, "meta l4proto tcp drop")),
    acted("a receiver's host stops", NIC_ENDS, Act::StopHost(1), &["the host of PEER"]),
    dies("a receiver runs out of memory", NIC_ENDS, "memory"),
    case(
        "a receive is never posted, TCP",
        TCP_ENDS,
        "no receive",
        &["the receiver (pid PID1 on ", "has posted no receive"],
    ),
    case(
        "a receiver never tests, TCP",
        TCP_ENDS,
        "no test",
        &["the receiver (pid PID1 on ", "has made no call"],
    ),
    case(
        "a sender never sends, TCP",
        TCP_ENDS,
        "no send",
        &["the sender (pid PID0 on ", "has sent nothing"],
    ),
    case(
        "a sender never tests, TCP",
        TCP_ENDS,
        "no test of sends",
        &["the sender (pid PID0 on ", "has not called test"],
    ),
    case("a wrong tag, TCP", TCP_ENDS, "other tag", &["sends with tag 0x51", "has tag 0x52"]),
    acted(
        "SIGSTOP of the receiver, TCP",
        TCP_ENDS,
        Act::Stop(1),
        &["the receiver (pid PID1 on ", "it is stopped"],
    ),
    acted(
        "SIGSTOP of the sender, TCP",
        TCP_ENDS,
        Act::Stop(0),
        &["the sender (pid PID0 on ", "it is stopped"],
    ),
    acted(
        "all lost towards the receiver, TCP",
        TCP_ENDS,
        Act::Ip(0, LOSE_ALL[0]),
        &["the host of PEER|the network from the sender"],
    ),
    acted(
        "large packets lost, TCP",
        TCP_ENDS,
        Act::Filter(1, BLACK_HOLE),
        &["the network from the sender"],
    ),
    none("5 % lost, TCP", TCP_ENDS, Act::Lose(1, 50)),
    acted("a receiver's host stops, TCP", TCP_ENDS, Act::StopHost(1), &["the host of PEER"]),
    dies("a receiver runs out of memory, TCP", TCP_ENDS, "memory"),
    Case { is_none: true, ..case("a slow receiver, TCP", TCP_ENDS, "slow receiver", &[]) },
    Case { is_none: true, ..case("a slow receiver", NIC_ENDS, "slow receiver", &[]) },
    case("no receive at the end of a chain", NIC_CHAIN, "no receive", CHAIN_LAST),
    case("no receive at the end of a chain, TCP", TCP_CHAIN, "no receive", CHAIN_LAST),
    acted("SIGSTOP at the end of a chain", NIC_CHAIN, Act::Stop(2), CHAIN_LAST),
    acted("SIGSTOP at the end of a chain, TCP", TCP_CHAIN, Act::Stop(2), CHAIN_LAST),
    case(
        "a rank does not enter, shared memory",
        Kind::Shared,
        "not entered",
        &[RANK, "has not entered"],
    ),
    case("a rank does not enter, NIC", SOFT, "not entered", &[RANK, "has not entered"]),
    case("a rank does not enter, TCP", TCP, "not entered", &[RANK, "has not entered"]),
    case("a rank in an endless loop", SOFT, "endless loop", &[RANK, "has not entered"]),
    acted("SIGSTOP of a rank, shared memory", Kind::Shared, Act::Stop(2), STOPPED),
    acted("SIGSTOP of a rank, NIC", SOFT, Act::Stop(2), STOPPED),
    acted("SIGSTOP of a rank, TCP", TCP, Act::Stop(2), STOPPED),
    acted("a host stops, NIC", SOFT, Act::StopHost(1), HOST_GONE),
    acted("a host stops, TCP", TCP, Act::StopHost(1), HOST_GONE),
    case("unequal roots, shared memory", Kind::Shared, "other root", ROOTS),
    case("unequal roots, NIC", SOFT, "other root", ROOTS),
    case("unequal counts", SOFT, "other count", UNEQUAL),
    case("unequal order", TCP, "other order", UNEQUAL),
    case("a send without its receive", Kind::Shared, "send without recv", &[RANK]),
    none("5 % lost between ranks", SOFT, Act::Lose(1, 50)),
    none("5 % lost between ranks, TCP", TCP, Act::Lose(1, 50)),
    acted(
        "large packets lost between ranks",
        SOFT,
        Act::Filter(1, BLACK_HOLE),
        &["the network from |does not arrive at rank"],
    ),
    acted(
        "UDP lost between ranks",
        SOFT,
        Act::Ip(0, LOSE_UDP),
        &["the network from |does not arrive at rank"],
    ),
];

const _: () = assert!(CULPRIT == 2, "the cases name rank 2");
