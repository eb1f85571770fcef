//! The lengths of a connection's queues.

use crate::comm::{KEYS_BYTES, pieces_max};
use crate::conn::CommSettings;
use crate::fifo::SLOT_BYTES;
use crate::nic::{Nic, NicError, PortAttr, QpCap, Verb};
use crate::request::ROWS;

/// Returns the lengths of a queue pair's queues.
///
/// A sender has at most `depth` rows under way, and at most `depth` messages of groups. A message takes up to
/// [`pieces_max`] send requests, and a row ends with one more. So the rows take at most `pieces + 1` requests
/// each, and the messages of all groups take at most `pieces × depth` more. A receiver takes fewer: it writes
/// each row's slots and, over several rails, their keys. A fence takes one request of each kind. Over several rails
/// each has queues for the port that carries the least, and an end also asks each rail for an answer.
pub(super) fn capacities<N: Nic>(settings: &CommSettings, port: &PortAttr) -> QpCap {
    let pieces = if N::RAILS_MAX == 1 { pieces_max(port) } else { 2 };
    let (depth, fence) = (u32::from(settings.depth()), u32::from(settings.recovers()));
    // Over several rails the keys of a slot follow the slot.
    let slot_bytes = if N::RAILS_MAX == 1 { SLOT_BYTES } else { SLOT_BYTES + KEYS_BYTES };
    QpCap {
        max_send_wr: (2 * pieces + 1) * depth + fence + u32::from(N::RAILS_MAX > 1),
        max_recv_wr: depth + fence,
        max_inline_data: if settings.use_inline { slot_bytes as u32 } else { 0 },
    }
}

/// The number of completions for which to make the completion queue of `qps` queue pairs.
///
/// All work requests of queue pairs that stop complete, also those that ask for no completion. While queue pairs
/// work, a row has at most two completions on each. A device with smaller queues gives the largest one that it
/// allows, if that holds the completions of queue pairs that work. A recovery while nearly all requests are under way
/// may then overrun the queue, which ends the connection.
pub(super) fn cq_depth<N: Nic>(
    nic: &N,
    port: &PortAttr,
    settings: &CommSettings,
    qps: usize,
) -> Result<usize, NicError> {
    let QpCap { max_send_wr, max_recv_wr, .. } = capacities::<N>(settings, port);
    let flushes = if settings.flush { ROWS } else { 0 };
    let depth = |of_each: u32| of_each as usize * qps + flushes + 1;
    let (stopped, working) = (depth(max_send_wr + max_recv_wr), depth(2 * max_recv_wr));
    let allowed = nic.cq_depth_max();
    if working > allowed {
        let error = NicError::new(Verb::CreateCq, 0, CQ_TOO_SMALL).with("needed", working as u64);
        return Err(error.with("allowed (max_cqe)", allowed as u64));
    }
    if stopped > allowed {
        warn!(
            "{}: a completion queue holds {allowed} completions, and {stopped} may come if the queue pairs stop: \
             a recovery may fail then; NCCL_IB_QPS_PER_CONNECTION or INVAR_FIFO_DEPTH of less avoids this",
            nic.name()
        );
    }
    Ok(stopped.min(allowed))
}

/// The fault of a device whose completion queues are too small.
const CQ_TOO_SMALL: &str = "the device's completion queues hold too few completions for the queue pairs of a \
     connection: set NCCL_IB_QPS_PER_CONNECTION or INVAR_FIFO_DEPTH to a smaller number";
