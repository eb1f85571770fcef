//! The last steps of both ends. On the wire of NCCL 2.14 the comms take them.

use super::Stream;
use super::exchange::Exchange;
use super::link::{Peer, Verbs};
use super::stage::Stage;
use super::wire::{PrefaceError, READY};
use crate::error::{Ends, Error};
use crate::nic::Nic;

/// Starts the queue pairs and lays out the ready word, once the acceptor's message has arrived. Returns
/// `None` before.
pub(crate) fn start_with_acceptor<N: Nic>(
    stream: &mut impl Stream,
    exchange: &mut Exchange,
    verbs: &mut Verbs<N>,
    ends: &mut Ends,
) -> Result<Option<Peer>, Error> {
    let qps = usize::from(verbs.qp_count());
    let message = exchange.recv_message(stream, Stage::Connecting, qps, false)?;
    let Some((preface, mut info)) = message else { return Ok(None) };
    let mut time_ns = None;
    if preface.as_ref().is_some_and(|preface| preface.tells_time) {
        time_ns = exchange.recv_time(stream, Stage::Connecting)?;
        if time_ns.is_none() {
            return Ok(None);
        }
    }
    if let Some(preface) = &preface {
        if usize::from(preface.qp_count) > qps {
            return Err(Error::Preface(PrefaceError::QpCount(preface.qp_count)));
        }
        verbs.keep_qps(preface.qp_count);
        if preface.fifo_depth > verbs.settings.depth() {
            return Err(Error::Preface(PrefaceError::FifoDepth(preface.fifo_depth)));
        }
        if preface.sizes_addr == 0 || preface.sizes_rkey == 0 {
            return Err(Error::Preface(PrefaceError::Sizes(preface.sizes_addr)));
        }
    }
    info.mtu = info.mtu.min(verbs.port.active_mtu);
    let ours = verbs.preface(verbs.settings.depth());
    let peer = Peer { time_ns, ..Peer::new(info, preface, &ours) };
    peer.note(ends);
    verbs.agree_on_rails(&peer);
    verbs.start(&peer)?;
    exchange.put(&READY);
    Ok(Some(peer))
}

/// Returns whether the connector's ready word has arrived (`net_ib.cc ncclRecvCheck`).
pub(crate) fn is_ready(stream: &mut impl Stream, exchange: &mut Exchange) -> Result<bool, Error> {
    match exchange.recv(stream, Stage::PendingReady)? {
        None => Ok(false),
        Some(word) if word == READY => Ok(true),
        Some(word) => Err(Error::Ready(core::array::from_fn(|i| word[i]))),
    }
}
