//! The comm stage machine: which stage each side may go to from which.

use core::fmt;

/// Stages of a connection, with NCCL's numbers (`ncclIbCommState`; Connecting and PendingReady
/// as NCCL has had them since 2.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Nothing happened yet.
    Start = 0,
    /// Connector: the TCP connection comes up.
    Connect = 1,
    /// Acceptor: a TCP connection is awaited.
    Accept = 3,
    /// Our info goes out.
    Send = 4,
    /// Acceptor: the connector's info comes in.
    Recv = 5,
    /// Connector: the acceptor's info comes in.
    Connecting = 6,
    /// The comm is there.
    Connected = 7,
    /// The ready word goes out (connector) or comes in (acceptor).
    PendingReady = 8,
    /// Connector: both ends prove themselves, unless the peer may be anybody. Invar's alone.
    Authenticate = 9,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Becomes a `SendComm`.
    Connector,
    /// Becomes a `RecvComm`.
    Acceptor,
}

impl Side {
    /// The other end.
    pub const fn other(self) -> Side {
        match self {
            Side::Connector => Side::Acceptor,
            Side::Acceptor => Side::Connector,
        }
    }
}

impl Stage {
    /// Every stage.
    pub const ALL: [Stage; 9] = [
        Stage::Start,
        Stage::Connect,
        Stage::Authenticate,
        Stage::Accept,
        Stage::Send,
        Stage::Recv,
        Stage::Connecting,
        Stage::Connected,
        Stage::PendingReady,
    ];

    /// The stages that may follow, for one side. From Send it depends on the wire: NCCL 2.14's
    /// is Connected then.
    pub const fn next(self, side: Side) -> &'static [Stage] {
        use Side::{Acceptor, Connector};
        match (side, self) {
            (Connector, Stage::Start) => &[Stage::Connect],
            (Connector, Stage::Connect) => &[Stage::Authenticate],
            (Connector, Stage::Authenticate) => &[Stage::Send],
            (Connector, Stage::Send) => &[Stage::Connecting, Stage::Connected],
            (Connector, Stage::Connecting) => &[Stage::PendingReady],
            (Acceptor, Stage::Start) => &[Stage::Accept],
            (Acceptor, Stage::Accept) => &[Stage::Recv],
            (Acceptor, Stage::Recv) => &[Stage::Send],
            (Acceptor, Stage::Send) => &[Stage::PendingReady, Stage::Connected],
            (_, Stage::PendingReady) => &[Stage::Connected],
            (_, Stage::Connected)
            | (Connector, Stage::Accept | Stage::Recv)
            | (Acceptor, Stage::Connect | Stage::Authenticate | Stage::Connecting) => &[],
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Connector => "connect",
            Side::Acceptor => "accept",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::fmt::Write;
    use std::string::String;

    #[test]
    fn each_side_goes_from_stage_to_stage_as_nccl_does() {
        let mut table = String::new();
        for side in [Side::Connector, Side::Acceptor] {
            for stage in Stage::ALL {
                for next in stage.next(side) {
                    writeln!(table, "{side}: {stage} {} -> {next}", stage as u8).expect("room");
                }
            }
        }
        let expected = "\
connect: Start 0 -> Connect
connect: Connect 1 -> Authenticate
connect: Authenticate 9 -> Send
connect: Send 4 -> Connecting
connect: Send 4 -> Connected
connect: Connecting 6 -> PendingReady
connect: PendingReady 8 -> Connected
accept: Start 0 -> Accept
accept: Accept 3 -> Recv
accept: Send 4 -> PendingReady
accept: Send 4 -> Connected
accept: Recv 5 -> Send
accept: PendingReady 8 -> Connected
";
        assert_eq!(table, expected);
    }
}
