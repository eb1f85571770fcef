//! The common part of connecting and accepting: stage, deadline, and the first error.

use core::sync::atomic::{AtomicU32, Ordering};

use super::exchange::Exchange;
use super::link::{Peer, Verbs, udp_port};
use super::stage::{Side, Stage};
use super::{AwaitedStream, CommSettings, Stream, StreamError, Wire};
use crate::auth::Session;
use crate::error::{Ends, Error};
use crate::nic::{Nic, PortAttr};

/// Number of failed connections of callers that had proved nothing. It counts all listeners of this process.
static UNPROVED: AtomicU32 = AtomicU32::new(0);

/// The parts of which a comm is made.
pub(crate) struct Parts<N: Nic, S> {
    pub(crate) verbs: Verbs<N>,
    pub(crate) stream: S,
    pub(crate) ends: Ends,
    pub(crate) peer: Option<Peer>,
    /// The rest of the exchange, on a wire that leaves it to the comm's first call.
    pub(crate) pending: Option<Exchange>,
}

/// A connection that is being set up.
pub(super) struct Attempt<N: Nic, S> {
    side: Side,
    pub(super) stage: Stage,
    failed: Option<Error>,
    deadline_ns: u64,
    /// Time of the call.
    pub(super) now_ns: u64,
    /// Time at which the connector had sent its message.
    pub(super) asked_ns: u64,
    pub(super) settings: CommSettings,
    pub(super) session: Session,
    pub(super) ends: Ends,
    pub(super) exchange: Exchange,
    pub(super) stream: Option<S>,
    /// NIC and protection domain, until the queue pairs exist.
    idle: Option<(N, N::Pd)>,
    pub(super) verbs: Option<Verbs<N>>,
    /// The rail that the peer has chosen for the handshake.
    pub(super) rail: Option<usize>,
    /// The peer, once its message has arrived.
    pub(super) peer: Option<Peer>,
}

impl<N: Nic, S: Stream> Attempt<N, S> {
    pub(super) fn new(
        side: Side,
        nic: N,
        pd: N::Pd,
        stream: S,
        session: Session,
        settings: CommSettings,
        now_ns: u64,
    ) -> Self {
        Attempt {
            side,
            stage: Stage::Start,
            failed: settings.fault().map(Error::Argument),
            deadline_ns: now_ns.saturating_add(settings.timeout_ns),
            now_ns,
            asked_ns: now_ns,
            settings,
            session,
            ends: Ends { peer: stream.peer_addr(), ..Ends::local(nic.name(), Default::default()) },
            exchange: Exchange::new(settings.wire),
            stream: Some(stream),
            idle: Some((nic, pd)),
            verbs: None,
            rail: None,
            peer: None,
        }
    }

    /// Runs `step` until it would wait, keeps its error, and checks the deadline.
    pub(super) fn run<T>(
        &mut self,
        now_ns: u64,
        step: impl FnOnce(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.stage == Stage::Connected {
            return Err(Error::State { call: self.side, stage: self.stage });
        }
        self.now_ns = now_ns;
        let result = match step(self) {
            Ok(None) if now_ns >= self.deadline_ns => Err(self.exchange.timed_out(self.stage)),
            result => result,
        };
        if let Err(error) = &result {
            if let Some(verbs) = &self.verbs {
                self.ends.notices = verbs.nic.notices();
            }
            let report = self.ends.report(*error);
            match self.is_told() {
                true => warn!("{}: {report}", self.side),
                false => debug!("{}: {report}", self.side),
            }
            self.failed = Some(*error);
            self.verbs = None;
        }
        result
    }

    /// Whether the log warns of a failure. Anybody can call on the wire of NCCL 2.14, so the warning comes only at
    /// powers of two.
    fn is_told(&self) -> bool {
        let is_proved = self.side == Side::Connector || self.settings.wire == Wire::Invar;
        is_proved || UNPROVED.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_power_of_two()
    }

    pub(super) fn advance(&mut self, to: Stage) {
        debug_assert!(self.stage.next(self.side).contains(&to), "{} to {to}", self.stage);
        debug!("{}: the handshake goes from {} to {to}", self.side, self.stage);
        self.stage = to;
    }

    /// Returns the stream for which this end waits; `None` after the comm was returned.
    pub(super) fn awaited(&self) -> Option<AwaitedStream<'_, S>> {
        let stream = self.stream.as_ref()?;
        Some(match (self.stage, self.side) {
            (Stage::Recv | Stage::Authenticate | Stage::Connecting, _)
            | (Stage::PendingReady, Side::Acceptor) => AwaitedStream::Bytes(stream),
            _ => AwaitedStream::Room(stream),
        })
    }

    /// Returns whether the TCP connection is up.
    pub(super) fn is_up(&mut self) -> Result<bool, Error> {
        let stage = self.stage;
        let failed = |error| Error::Stream { stage, error, got: 0, want: 0 };
        self.stream.as_mut().ok_or(GONE)?.poll_connected().map_err(failed)
    }

    /// Sends the message that was laid out; returns whether all of it is sent.
    pub(super) fn is_sent(&mut self) -> Result<bool, Error> {
        let stream = self.stream.as_mut().ok_or(GONE)?;
        self.exchange.send(stream, self.stage)
    }

    /// Creates the queue pairs and the registered memory of the comm.
    pub(super) fn create_verbs(
        &mut self,
        qps: usize,
        control_bytes: usize,
    ) -> Result<&mut Verbs<N>, Error> {
        let (nic, pd) = self.idle.take().ok_or(GONE)?;
        let us = (self.side, self.session);
        let mut verbs = Verbs::create(nic, pd, us, self.settings, qps, control_bytes, self.rail)?;
        verbs.peer_host = self.ends.peer.map(|peer| peer.ip());
        for qp in verbs.qps() {
            let (qpn, mtu) = (verbs.nic.qp_num(qp), verbs.port.active_mtu.bytes());
            let PortAttr { port_num, lid, gid, gid_index, .. } = verbs.port;
            info!(
                "{}: {} port {port_num} qpn {qpn:#x} mtu {mtu} LID {lid} GID {gid_index} ({gid})",
                self.side,
                verbs.nic.name(),
            );
        }
        self.ends.gid = verbs.port.gid;
        self.ends.udp_port = udp_port(verbs.port.link_layer, verbs.port.udp_port);
        self.ends.qpn = verbs.nic.qp_num(&verbs.qp);
        Ok(self.verbs.insert(verbs))
    }

    /// Takes the parts of the comm. If `lazy` is set, the comm finishes the exchange.
    pub(super) fn finish(&mut self, lazy: bool) -> Result<Parts<N, S>, Error> {
        self.advance(Stage::Connected);
        self.ends.number = self.session.number();
        info!("{}: connected: {}", self.side, self.ends);
        Ok(Parts {
            verbs: self.verbs.take().ok_or(GONE)?,
            stream: self.stream.take().ok_or(GONE)?,
            ends: self.ends.clone(),
            peer: self.peer.take(),
            pending: lazy
                .then(|| core::mem::replace(&mut self.exchange, Exchange::new(self.settings.wire))),
        })
    }
}

/// The error of a connection whose comm was already given away.
pub(super) const GONE: Error = Error::PeerClosed(StreamError::Closed);
