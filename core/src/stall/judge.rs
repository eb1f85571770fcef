//! The verdict, from both ends' views.

use super::verdict::{Cause, Verdict};
use super::view::{EndView, OwnNetwork, Process, Role, Wait};

/// The answer of an end's peer to the question what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// The peer exchanges no views: it is of an older version, or speaks NCCL's wire.
    None,
    /// The peer's latest view.
    View(EndView),
    /// The peer does not answer. Its process is as last known, if it was ever named.
    Silent(Process),
}

/// Returns why nothing moves on a connection. `own` is the view of the end with the role `role`, and `network`
/// what this end alone knows of the network. Returns `None` if no end waits for anything.
pub fn judge(role: Role, own: &EndView, contact: &Contact, network: OwnNetwork) -> Option<Verdict> {
    let peer = role.other();
    let verdict = match contact {
        Contact::View(theirs) => {
            let [sender, receiver] = in_order(role, own, theirs);
            judge_both(sender, receiver)?
        }
        Contact::Silent(process) if own.is_waiting => {
            let cause = match network {
                // A peer cannot answer over a port that is down.
                OwnNetwork { port_trouble: Some(trouble), .. } => {
                    Cause::Port { end: role, trouble }
                }
                OwnNetwork { host_answers: Some(true), .. } => Cause::Stopped { end: peer },
                // New queue pairs may cross another network than the TCP connection beside them.
                OwnNetwork { host_answers: Some(false), .. }
                    if own.moves_in_calls || !own.is_recovering =>
                {
                    Cause::HostGone { end: peer }
                }
                // If nobody knows of the host, the queue pairs may work.
                _ => judge_one(role, own),
            };
            verdict(cause, in_order(role, own.process, *process), own)
        }
        Contact::None if own.is_waiting => {
            let cause = judge_one(role, own);
            verdict(cause, in_order(role, own.process, Process::default()), own)
        }
        _ => return None,
    };
    Some(Verdict { own: network, ..verdict })
}

fn in_order<T>(role: Role, own: T, theirs: T) -> [T; 2] {
    match role {
        Role::Sender => [own, theirs],
        Role::Receiver => [theirs, own],
    }
}

/// A verdict without a known last call of the program at fault.
fn verdict(cause: Cause, processes: [Process; 2], waiting: &EndView) -> Verdict {
    let EndView { still_ms, wait, .. } = *waiting;
    Verdict {
        cause,
        processes,
        still_ms,
        call_ms: u32::MAX,
        wait,
        elsewhere: None,
        own: OwnNetwork::default(),
    }
}

fn judge_both(sender: &EndView, receiver: &EndView) -> Option<Verdict> {
    if !sender.is_waiting && !receiver.is_waiting {
        return None;
    }
    let cause = cause(sender, receiver);
    let (call_ms, own_wait, wait) = match cause.culprit() {
        Some(Role::Sender) => (sender.call_ms, sender.wait, receiver.wait),
        Some(Role::Receiver) => (receiver.call_ms, receiver.wait, sender.wait),
        None => (u32::MAX, Wait::None, sender.wait),
    };
    let elsewhere = match own_wait {
        Wait::Elsewhere(peer) => Some(peer),
        _ => None,
    };
    let still = |view: &EndView| if view.is_waiting { view.still_ms } else { 0 };
    let still_ms = still(sender).max(still(receiver));
    let processes = [sender.process, receiver.process];
    let own = OwnNetwork::default();
    Some(Verdict { cause, processes, still_ms, call_ms, wait, elsewhere, own })
}

/// Whether the program at an end has made no call for as long as the connection stands still.
fn is_absent(view: &EndView, still_ms: u32) -> bool {
    view.call_ms >= still_ms.saturating_sub(still_ms / 4)
}

fn cause(sender: &EndView, receiver: &EndView) -> Cause {
    if sender.moves_in_calls {
        return cause_over_tcp(sender, receiver);
    }
    let recovers_in_vain = sender.recovers_in_vain || receiver.recovers_in_vain;
    if !recovers_in_vain && (sender.is_recovering || receiver.is_recovering) {
        return Cause::Recovery;
    }
    // The sender's first unfinished message.
    if sender.begun > receiver.done {
        // A message that is sent and has not arrived.
        let count = sender.begun - receiver.done;
        return Cause::Network { to: Role::Receiver, count };
    }
    if sender.begun > sender.done {
        // Everything has arrived, and the sender does not know.
        return Cause::Network { to: Role::Sender, count: sender.begun - sender.done };
    }
    if recovers_in_vain {
        return Cause::Recovery;
    }
    if receiver.begun > sender.begun {
        // A receive waits for its send.
        if sender.seen <= sender.begun {
            return Cause::Network { to: Role::Sender, count: receiver.begun - sender.begun };
        }
        return match sender.wait {
            _ if sender.lacking > 0 => Cause::Group { lacking: sender.lacking },
            Wait::Send { tag, .. } if tag != sender.seen_tag => {
                Cause::OtherTag { sent: tag, posted: sender.seen_tag }
            }
            // No request is free, because those that are done were not tested.
            Wait::Send { .. } if sender.untested > 0 => {
                Cause::NotTested { end: Role::Sender, requests: sender.untested }
            }
            _ => Cause::NotSent { tag: sender.seen_tag },
        };
    }
    all_filled(sender, receiver)
}

/// The cause over TCP. Both ends count messages and buffers, which meet by their tags. A message may leave
/// before its buffer is posted, and data moves only during calls.
fn cause_over_tcp(sender: &EndView, receiver: &EndView) -> Cause {
    let still_ms = sender.still_ms.max(receiver.still_ms);
    let (sent, posted) = (sender.begun > receiver.done, receiver.begun > receiver.done);
    let has_unmet = receiver.begun > receiver.seen;
    let tag = receiver.seen_tag;
    match (sent, posted) {
        // The sender waits until the receiver posts a buffer.
        (true, false) => no_receive(receiver),
        (true, true) if is_absent(receiver, still_ms) => Cause::NoCalls { end: Role::Receiver },
        (true, true) if sender.begun > sender.done && is_absent(sender, still_ms) => {
            Cause::NoCalls { end: Role::Sender }
        }
        (true, true) => match sender.ahead_tag {
            Some(sent) if has_unmet && sent != tag => Cause::OtherTag { sent, posted: tag },
            _ => Cause::TcpNetwork { count: sender.begun - receiver.done },
        },
        (false, true) => match sender.wait {
            Wait::Send { tag: sent, .. } if sent != tag => Cause::OtherTag { sent, posted: tag },
            // No request is free, because those that are done were not tested.
            Wait::Send { .. } if sender.untested > 0 => {
                Cause::NotTested { end: Role::Sender, requests: sender.untested }
            }
            // A receiver announces its buffers in calls.
            Wait::Send { .. } => Cause::NoCalls { end: Role::Receiver },
            _ => Cause::NotSent { tag },
        },
        (false, false) => all_filled(sender, receiver),
    }
}

/// The receiver's program has posted no receive, perhaps because it does not see that earlier ones are done.
fn no_receive(receiver: &EndView) -> Cause {
    match receiver.untested {
        0 => Cause::NoReceive,
        requests => Cause::NotTested { end: Role::Receiver, requests },
    }
}

/// The cause if all posted receives are filled.
fn all_filled(sender: &EndView, receiver: &EndView) -> Cause {
    if let Wait::Send { .. } = sender.wait {
        return no_receive(receiver);
    }
    let end = if receiver.untested > 0 { Role::Receiver } else { Role::Sender };
    let requests = if receiver.untested > 0 { receiver.untested } else { sender.untested };
    match requests {
        0 => Cause::NoReceive,
        _ => Cause::NotTested { end, requests },
    }
}

/// The cause as far as one end can see it.
fn judge_one(role: Role, own: &EndView) -> Cause {
    match role {
        _ if own.is_recovering && own.moves_in_calls => Cause::TcpRecovery,
        _ if own.is_recovering => Cause::Recovery,
        Role::Sender if own.begun > own.done => {
            Cause::NotAcknowledged { count: own.begun - own.done }
        }
        Role::Sender if own.lacking > 0 => Cause::Group { lacking: own.lacking },
        Role::Sender => match own.wait {
            Wait::Send { tag, .. } if own.seen > own.begun && tag != own.seen_tag => {
                Cause::OtherTag { sent: tag, posted: own.seen_tag }
            }
            Wait::Send { .. } => Cause::NoReceiveSeen,
            _ => Cause::NotTested { end: role, requests: own.untested },
        },
        Role::Receiver if own.begun > own.done => Cause::NothingArrives,
        Role::Receiver => Cause::NotTested { end: role, requests: own.untested },
    }
}

#[cfg(test)]
mod tests;
