//! The state machine of a comm's setup: from each stage, the stages to which each side may go.

use core::fmt;

/// Stages of a connection, with NCCL's numbers (`ncclIbCommState`). NCCL has Connecting and
/// PendingReady since 2.17.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Nothing has happened yet.
    Start = 0,
    /// Connector: waits until the TCP connection is up.
    Connect = 1,
    /// Acceptor: waits for a TCP connection.
    Accept = 3,
    /// Both sides: send this end's info.
    Send = 4,
    /// Acceptor: receives the connector's info.
    Recv = 5,
    /// Connector: receives the acceptor's info.
    Connecting = 6,
    /// The comm exists.
    Connected = 7,
    /// The connector sends the ready word, and the acceptor receives it.
    PendingReady = 8,
    /// Connector: both ends prove themselves, unless the peer may be anybody. Only Invar has this
    /// stage.
    Authenticate = 9,
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that becomes a `SendComm`.
    Connector,
    /// The side that becomes a `RecvComm`.
    Acceptor,
}

impl Side {
    /// The other side.
    pub const fn other(self) -> Side {
        match self {
            Side::Connector => Side::Acceptor,
            Side::Acceptor => Side::Connector,
        }
    }
}

impl Stage {
    /// Every stage of a connection.
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

    /// The stages that may follow for one side. After Send the wire decides: on NCCL 2.14's wire the
    /// next stage is Connected.
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
