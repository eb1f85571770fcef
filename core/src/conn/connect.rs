//! The connecting end: from a TCP stream to a [`SendComm`] (`net_ib.cc ncclIbConnect`).

use super::attempt::{Attempt, GONE};
use super::ready::start_with_acceptor;
use super::stage::{Side, Stage};
use super::wire::QpInfo;
use super::{AwaitedStream, CommSettings, Stream, Wire};
use crate::auth::{Calling, Session};
use crate::comm::{SendComm, control_bytes};
use crate::error::{Error, Report};
use crate::nic::Nic;
use crate::peer_clock::PeerClock;

/// Becomes a [`SendComm`]: call [`Connector::poll`] until it returns the comm or an error.
pub struct Connector<N: Nic, S> {
    attempt: Attempt<N, S>,
    /// The proof exchange; `None` if the ends do not prove themselves.
    calling: Option<Calling>,
}

impl<N: Nic, S: Stream> Connector<N, S> {
    /// Creates a connector in the stage Start over `stream`, which may still be connecting. `calling`
    /// proves that this end knows the handle's secret, and makes the peer prove it as well. With `None`
    /// the peer may be anybody, as on the wire of NCCL 2.14.
    pub fn new(
        nic: N,
        pd: N::Pd,
        stream: S,
        calling: Option<Calling>,
        settings: CommSettings,
        now_ns: u64,
    ) -> Self {
        let session = Session::UNKNOWN_PEER;
        let attempt = Attempt::new(Side::Connector, nic, pd, stream, session, settings, now_ns);
        Connector { attempt, calling }
    }

    /// Stage of the connection.
    pub fn stage(&self) -> Stage {
        self.attempt.stage
    }

    /// Returns the stream for which this end waits; `None` after the comm was returned.
    pub fn awaited(&self) -> Option<AwaitedStream<'_, S>> {
        self.attempt.awaited()
    }

    /// Joins an error of this connection with a description of both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.attempt.ends.report(error)
    }

    /// Goes on as far as possible without waiting. After `None`, call again.
    ///
    /// After an error, every call returns the same error. After the comm was returned, every call
    /// returns [`Error::State`].
    pub fn poll(&mut self, now_ns: u64) -> Result<Option<SendComm<N, S>>, Error> {
        let Connector { attempt, calling } = self;
        attempt.run(now_ns, |at| step(at, calling))
    }
}

fn step<N: Nic, S: Stream>(
    at: &mut Attempt<N, S>,
    calling: &mut Option<Calling>,
) -> Result<Option<SendComm<N, S>>, Error> {
    loop {
        match at.stage {
            Stage::Start => at.advance(Stage::Connect),
            Stage::Connect => {
                if !at.is_up()? {
                    return Ok(None);
                }
                at.advance(Stage::Authenticate);
            }
            Stage::Authenticate => {
                if let Some(calling) = calling {
                    let stream = at.stream.as_mut().ok_or(GONE)?;
                    let session = calling.poll(stream).map_err(Error::Auth)?;
                    let Some(session) = session else { return Ok(None) };
                    at.session = session;
                }
                lay_out_info(at)?;
                at.advance(Stage::Send);
            }
            Stage::Send => {
                if !at.is_sent()? {
                    return Ok(None);
                }
                at.asked_ns = at.now_ns;
                at.exchange.expect_message();
                match at.settings.wire {
                    Wire::Invar => at.advance(Stage::Connecting),
                    Wire::Nccl214 => return Ok(Some(SendComm::new(at.finish(true)?))),
                }
            }
            Stage::Connecting => {
                let Attempt { stream: Some(stream), verbs: Some(verbs), .. } = at else {
                    return Err(GONE);
                };
                at.peer = start_with_acceptor(stream, &mut at.exchange, verbs, &mut at.ends)?;
                let Some(peer) = &at.peer else { return Ok(None) };
                at.ends.peer_clock = peer
                    .time_ns
                    .and_then(|time_ns| PeerClock::estimate(at.asked_ns, time_ns, at.now_ns));
                at.advance(Stage::PendingReady);
            }
            Stage::PendingReady => {
                if !at.is_sent()? {
                    return Ok(None);
                }
                return Ok(Some(SendComm::new(at.finish(false)?)));
            }
            stage => return Err(Error::State { call: Side::Connector, stage }),
        }
    }
}

/// Creates the queue pairs and the FIFO, and lays out the info about them for the acceptor.
fn lay_out_info<N: Nic, S: Stream>(at: &mut Attempt<N, S>) -> Result<(), Error> {
    let depth = at.settings.depth();
    let control_bytes = control_bytes(depth.into(), N::RAILS_MAX);
    let verbs = at.create_verbs(usize::from(at.settings.qps), control_bytes)?;
    let info = QpInfo {
        fifo_rkey: verbs.control_rkey(),
        fifo_addr: verbs.control_addr(),
        ..verbs.info(verbs.port.active_mtu)
    };
    let preface = verbs.preface(depth);
    at.exchange.put_message(&preface, &info);
    Ok(())
}
