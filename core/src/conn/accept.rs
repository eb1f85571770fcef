//! The accepting end: from a TCP stream to a [`RecvComm`] (`net_ib.cc ncclIbAccept`).

use super::attempt::{Attempt, GONE};
use super::link::Peer;
use super::ready::is_ready;
use super::stage::{Side, Stage};
use super::wire::{Preface, QpInfo, READY};
use super::{AwaitedStream, CommSettings, Stream, Wire};
use crate::auth::Session;
use crate::comm::{RecvComm, control_bytes};
use crate::error::{Error, Report};
use crate::nic::Nic;

/// Number of queue pairs that any connector may have. A connector gets more only if this end is set to
/// more.
const QPS_GRANTED: u16 = 16;

/// Becomes a [`RecvComm`]: call [`Acceptor::poll`] until it returns the comm or an error.
pub struct Acceptor<N: Nic, S>(Attempt<N, S>);

impl<N: Nic, S: Stream> Acceptor<N, S> {
    /// Creates an acceptor in the stage Start, over the `stream` of a caller. The `session` shows that
    /// the caller has proved itself; on the wire of NCCL 2.14 it is [`Session::UNKNOWN_PEER`], and the
    /// caller may be anybody.
    pub fn new(
        nic: N,
        pd: N::Pd,
        stream: S,
        session: Session,
        settings: CommSettings,
        now_ns: u64,
    ) -> Self {
        Acceptor(Attempt::new(Side::Acceptor, nic, pd, stream, session, settings, now_ns))
    }

    /// Stage of the connection.
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// Returns the stream for which this end waits; `None` after the comm was returned.
    pub fn awaited(&self) -> Option<AwaitedStream<'_, S>> {
        self.0.awaited()
    }

    /// Joins an error of this connection with a description of both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.0.ends.report(error)
    }

    /// Goes on as far as possible without waiting. After `None`, call again.
    ///
    /// After an error, every call returns the same error. After the comm was returned, every call
    /// returns [`Error::State`].
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<RecvComm<N, S>>, Error> {
        self.0.run(now_ns, step)
    }
}

fn step<N: Nic, S: Stream>(at: &mut Attempt<N, S>) -> Result<Option<RecvComm<N, S>>, Error> {
    loop {
        match at.stage {
            Stage::Start => at.advance(Stage::Accept),
            Stage::Accept => {
                if !at.is_up()? {
                    return Ok(None);
                }
                at.exchange.expect_message();
                at.advance(Stage::Recv);
            }
            Stage::Recv => {
                let stream = at.stream.as_mut().ok_or(GONE)?;
                let qps = usize::from(at.settings.qps);
                let message = at.exchange.recv_message(stream, at.stage, qps, true)?;
                let Some((preface, info)) = message else { return Ok(None) };
                start_with_connector(at, preface, info)?;
                at.advance(Stage::Send);
            }
            Stage::Send => {
                if !at.is_sent()? {
                    return Ok(None);
                }
                at.exchange.expect(READY.len());
                match at.settings.wire {
                    Wire::Invar => at.advance(Stage::PendingReady),
                    Wire::Nccl214 => return Ok(Some(RecvComm::new(at.finish(true)?)?)),
                }
            }
            Stage::PendingReady => {
                let stream = at.stream.as_mut().ok_or(GONE)?;
                if !is_ready(stream, &mut at.exchange)? {
                    return Ok(None);
                }
                return Ok(Some(RecvComm::new(at.finish(false)?)?));
            }
            stage => return Err(Error::State { call: Side::Acceptor, stage }),
        }
    }
}

/// Creates and starts the queue pairs, and lays out the info about them for the connector.
fn start_with_connector<N: Nic, S: Stream>(
    at: &mut Attempt<N, S>,
    preface: Option<Preface>,
    mut info: QpInfo,
) -> Result<(), Error> {
    if let Some(preface) = &preface {
        at.settings.fifo_depth = at.settings.fifo_depth.min(preface.fifo_depth);
        at.settings.qps = preface.qp_count.min(at.settings.qps.max(QPS_GRANTED));
    }
    let depth = at.settings.depth();
    let renewal_port = at.stream.as_ref().map_or(0, S::renewal_port);
    let control_bytes = control_bytes(depth.into(), N::RAILS_MAX);
    if let Some(preface) = &preface {
        // The peer's first message comes over this rail. An end with fewer rails chooses by itself.
        at.rail = Some(usize::from(preface.rail)).filter(|_| preface.rails > 1);
    }
    let tells_time = preface.as_ref().is_some_and(|preface| preface.tells_time);
    let verbs = at.create_verbs(usize::from(at.settings.qps), control_bytes)?;
    info.mtu = info.mtu.min(verbs.port.active_mtu);
    let ours = verbs.preface(depth);
    let peer = Peer { fifo_depth: depth, ..Peer::new(info, preface, &ours) };
    verbs.agree_on_rails(&peer);
    verbs.start(&peer)?;
    let sizes_offset = RecvComm::<N, S>::sizes_offset(usize::from(depth));
    let sizes_addr = verbs.control_addr() + sizes_offset;
    // This end's driver has kept these options of the connector's offer.
    let ece = peer.ece.and_then(|_| verbs.ece());
    let rails = verbs.rails.count as u8;
    let (sizes_rkey, renewal) = (verbs.control_rkey(), renewal_port);
    let ours = Preface { sizes_addr, sizes_rkey, ece, renewal_port: renewal, rails, ..ours };
    let info = verbs.info(peer.info.mtu);
    at.exchange.put_message(&Preface { tells_time, ..ours }, &info);
    if tells_time {
        at.exchange.put_time(at.now_ns);
    }
    peer.note(&mut at.ends);
    at.peer = Some(peer);
    Ok(())
}
