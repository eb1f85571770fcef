//! A verdict in words.

use core::fmt;

use super::other_wait::OtherPeer;
use super::view::{OwnNetwork, Process, Role, Wait};
use crate::nic::NicCounters;

/// Why nothing moves on a connection, and whose fault that is. Its display is one sentence, the same at both
/// ends. If the network is at fault, the sentence goes on with what this end alone knows of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Why nothing moves.
    pub cause: Cause,
    /// The processes of the sender and of the receiver, if they are known.
    pub processes: [Process; 2],
    /// Milliseconds for which nothing has moved.
    pub still_ms: u32,
    /// Milliseconds since the last call of the program at fault; `u32::MAX` if unknown.
    pub call_ms: u32,
    /// The call that the program at the other end repeats.
    pub wait: Wait,
    /// The peer for which the program at fault waits on another connection: look there first.
    pub elsewhere: Option<OtherPeer>,
    /// The knowledge of this end alone about its network.
    pub own: OwnNetwork,
}

/// Why nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The receiver's program has posted no receive.
    NoReceive,
    /// A program does not test requests that are done.
    NotTested {
        /// The end of that program.
        end: Role,
        /// Number of these requests.
        requests: u32,
    },
    /// Data moves only during calls, and the program makes none.
    NoCalls {
        /// The end of that program.
        end: Role,
    },
    /// The sender's program does not send.
    NotSent {
        /// Tag of the receive that waits.
        tag: u32,
    },
    /// The sender's program sends with another tag than that of the next receive.
    OtherTag {
        /// Tag of the send.
        sent: u32,
        /// Tag of the receive.
        posted: u32,
    },
    /// The sender's program has not made all sends of a group of receives.
    Group {
        /// Number of the sends that are missing.
        lacking: u32,
    },
    /// The network carries nothing, although the TCP connection beside it works.
    Network {
        /// The end that nothing reaches.
        to: Role,
        /// Number of messages or announcements on the way.
        count: u64,
    },
    /// Messages over TCP do not arrive, although short frames do.
    TcpNetwork {
        /// Number of messages on the way.
        count: u64,
    },
    /// New queue pairs are being made.
    Recovery,
    /// New TCP connections are being made.
    TcpRecovery,
    /// The port of an end has a fault.
    Port {
        /// The end of the port.
        end: Role,
        /// The fault.
        trouble: &'static str,
    },
    /// The process of an end does not answer, but its host does.
    Stopped {
        /// The end that does not answer.
        end: Role,
    },
    /// The host of an end does not answer.
    HostGone {
        /// The end that does not answer.
        end: Role,
    },
    /// Seen from one end: the sender knows of no receive. The peer does not exchange views, or does not answer.
    NoReceiveSeen,
    /// Seen from one end: nothing arrives. The peer does not exchange views, or does not answer.
    NothingArrives,
    /// Seen from one end: nothing is acknowledged. The peer does not exchange views, or does not answer.
    NotAcknowledged {
        /// Number of messages on the way.
        count: u64,
    },
}

impl Role {
    /// The other end.
    pub const fn other(self) -> Self {
        match self {
            Role::Sender => Role::Receiver,
            Role::Receiver => Role::Sender,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Role::Sender => "the sender",
            Role::Receiver => "the receiver",
        }
    }
}

impl Cause {
    /// The end that must act, if one of the two must.
    pub const fn culprit(&self) -> Option<Role> {
        match self {
            Cause::NoReceive => Some(Role::Receiver),
            Cause::NotSent { .. } | Cause::OtherTag { .. } | Cause::Group { .. } => {
                Some(Role::Sender)
            }
            Cause::NotTested { end, .. }
            | Cause::NoCalls { end }
            | Cause::Stopped { end }
            | Cause::HostGone { end } => Some(*end),
            _ => None,
        }
    }
}

impl Verdict {
    /// Warns the user. `ends` names both ends, from this one. The message has this module as its target, so
    /// that a host can show such messages alone.
    pub fn tell(&self, ends: &impl fmt::Display) {
        warn!("{ends}: {self}");
    }

    fn process(&self, end: Role) -> Process {
        let [sender, receiver] = self.processes;
        if end == Role::Sender { sender } else { receiver }
    }

    fn named(&self, end: Role) -> impl fmt::Display {
        let process = self.process(end);
        fmt::from_fn(move |f| write!(f, "{} ({process})", end.name()))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { cause, still_ms, .. } = self;
        let still = Seconds(*still_ms);
        let (sender, receiver) = (self.named(Role::Sender), self.named(Role::Receiver));
        match cause {
            Cause::NoReceive => {
                write!(f, "{receiver} has posted no receive for {still}, and {sender} waits")?;
                self.write_wait(f)?;
            }
            Cause::NotTested { end, requests } => {
                let (requests, s) = (requests, if *requests == 1 { " is" } else { "s are" });
                write!(f, "{} has not called test for {still}: ", self.named(*end))?;
                write!(f, "{requests} request{s} done and untested")?;
            }
            Cause::NoCalls { end } => write!(
                f,
                "{} has made no call for {still}, and over TCP data moves only during calls",
                self.named(*end)
            )?,
            Cause::NotSent { tag } => write!(
                f,
                "{sender} has sent nothing for {still}, and {receiver} waits: it has posted a \
                 receive with tag {tag:#x}"
            )?,
            Cause::OtherTag { sent, posted } => write!(
                f,
                "{sender} sends with tag {sent:#x} for {still}, but the next receive of {receiver} \
                 has tag {posted:#x}: the two programs disagree about tags or order"
            )?,
            Cause::Group { lacking } => write!(
                f,
                "{sender} lacks {lacking} of the sends for a group of receives of {receiver} for \
                 {still}: one receive of several buffers needs a send for each tag"
            )?,
            Cause::Network { to, count } => {
                let what = if *to == Role::Receiver { "messages" } else { "acknowledges" };
                write!(f, "the network from {} ", self.named(to.other()))?;
                write!(
                    f,
                    "to {} carries no {what} for {still}: {count} on the way, ",
                    self.named(*to)
                )?;
                f.write_str(
                    "both ends are ready, and the TCP connection beside it works; look at firewalls \
                     (RoCE is UDP port 4791), the path MTU, PFC, port counters, and try invar \
                     doctor --peer",
                )?;
            }
            Cause::TcpNetwork { count } => write!(
                f,
                "the network from {sender} to {receiver} carries no messages for {still}: {count} on \
                 the way, both ends are ready, and short packets of the same connection arrive; look \
                 at the path MTU (ping -M do -s), firewalls, losses (ss -ti), and try invar doctor \
                 --peer"
            )?,
            Cause::Recovery => write!(
                f,
                "{sender} and {receiver} make new queue pairs for {still}, because the network or a \
                 port failed: look at both ports and cables"
            )?,
            Cause::TcpRecovery => write!(
                f,
                "{sender} and {receiver} make new TCP connections for {still}, because the network or a \
                 port failed: look at both interfaces and cables"
            )?,
            Cause::Port { end, trouble } => write!(
                f,
                "the port of {} has a fault, and nothing moves for {still}: {trouble}; look at its \
                 interface (ip link) and its cable",
                self.named(*end)
            )?,
            Cause::Stopped { end } => write!(
                f,
                "the process of {} does not answer for {still}, and its host does: it is stopped \
                 (SIGSTOP, a debugger) or gets no processor; look at its state (ps -o stat,wchan)",
                self.named(*end)
            )?,
            Cause::HostGone { end } => write!(
                f,
                "the host of {} does not answer for {still}, not even over TCP: it is down, frozen, \
                 or the network to it is cut",
                self.named(*end)
            )?,
            Cause::NoReceiveSeen => {
                write!(f, "{receiver} has announced no receive for {still}, and {sender} waits")?;
                self.write_wait(f)?;
                f.write_str(ONE_SIDED)?;
            }
            Cause::NothingArrives => write!(
                f,
                "nothing arrives at {receiver} for {still}, and a receive is posted: {sender} does \
                 not send, or the network does not carry it{ONE_SIDED}"
            )?,
            Cause::NotAcknowledged { count } => write!(
                f,
                "{count} messages of {sender} are not acknowledged for {still}: the network does \
                 not carry them, or the peer is gone{ONE_SIDED}"
            )?,
        }
        if let Cause::Network { .. } | Cause::Recovery = cause {
            self.write_own(f)?;
        }
        let Some(end) = cause.culprit() else { return Ok(()) };
        if let Some(other) = self.elsewhere {
            return write!(
                f,
                "; {} waits for {other} on another connection: look there first",
                self.named(end)
            );
        }
        if self.call_ms != u32::MAX {
            write!(f, "; its program's last call was {} ago", Seconds(self.call_ms))?;
        }
        match cause {
            Cause::HostGone { .. } => f.write_str("; look at that host's console and link"),
            Cause::NoReceive
            | Cause::NotTested { .. }
            | Cause::NotSent { .. }
            | Cause::NoCalls { .. } => {
                write!(f, "; look at that program's stack ({})", self.process(end).stack())
            }
            _ => Ok(()),
        }
    }
}

/// The peer is an older version, speaks NCCL's wire, or does not answer, because the TCP connection is lost.
const ONE_SIDED: &str = " (seen from one end, since the peer says nothing of itself)";

impl Verdict {
    fn write_own(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(trouble) = self.own.port_trouble {
            write!(f, "; this end's port has a fault: {trouble}")?;
        }
        for rail in (0..u8::BITS).filter(|rail| self.own.rails_down >> rail & 1 != 0) {
            write!(f, "; rail {rail} is down")?;
        }
        let Some((counted, ms)) = self.own.counted else { return Ok(()) };
        let NicCounters { retransmitted_packets: again, out_of_order_packets: early, .. } = counted;
        let NicCounters { ack_timeouts: late, corrupt_packets, dropped_packets, .. } = counted;
        let lost = corrupt_packets.saturating_add(dropped_packets);
        write!(
            f,
            "; in {} of the stall this end's NIC counts {again} packets sent again, {early} out of \
             order, {lost} dropped and {late} late acknowledges, of all its connections",
            Seconds(ms)
        )
    }

    fn write_wait(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wait {
            Wait::Send { tag, len } => write!(f, " to send {len} bytes with tag {tag:#x}"),
            _ => Ok(()),
        }
    }
}

/// Displays milliseconds as seconds.
struct Seconds(u32);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} s", self.0 / 1000, self.0 % 1000 / 100)
    }
}
