//! Attempts to make links (`net.cc sendProxyConnect`, `recvProxyConnect`).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use invar_core::topology::Direction;
use invar_linux::interest::Interest;

use super::id::LinkId;
use super::ring::LinkRing;
use super::status::LinkStatuses;
use super::{NetRecv, NetSend};
use crate::connect::listens_at;
use crate::error::Kind;
use crate::raw::{AnyRecv, Keeper, RecvEnd, SendEnd};
use crate::wait::poll_within;
use crate::{Accepting, Connecting, Device, Error, Handle, Listener, SendComm, Settings};

/// Most senders that may connect at once. Only one sender is expected, but it may have to retry.
const ACCEPTING_MAX: usize = 16;

/// An attempt to make a link, or two links that share a connection. The attempt proceeds only in calls
/// of [`poll`](LinkAttempt::poll). Dropping it gives the attempt up.
#[must_use = "it goes on only when it is polled"]
pub struct LinkAttempt {
    id: LinkId,
    both_ways: bool,
    stage: AttemptStage,
    parts: LinkParts,
    keeper: Keeper,
}

/// The ends of the links of a successful attempt: one end, or both ends of a shared connection.
pub struct LinkEnds {
    /// The link to the peer.
    pub send: Option<NetSend>,
    /// The link from the peer.
    pub recv: Option<NetRecv>,
}

enum AttemptStage {
    /// The attempt connects to the peer's listener at this address.
    Connecting(Box<Connecting>, SocketAddr),
    Listening(Box<Incoming>),
    /// The attempt has returned its ends.
    Over,
}

/// The parts of a link's end besides its connection.
#[derive(Clone)]
pub(super) struct LinkParts {
    pub(super) device: Device,
    pub(super) slot_bytes: usize,
    pub(super) statuses: LinkStatuses,
}

impl LinkParts {
    pub(super) fn sender(&self, id: LinkId, end: Box<dyn SendEnd>) -> Result<NetSend, Error> {
        let ring = LinkRing::new(&self.device, self.slot_bytes)?;
        Ok(NetSend::new(end, ring, self.statuses.add(id, Direction::Send)))
    }

    pub(super) fn receiver(&self, id: LinkId, end: Box<dyn RecvEnd>) -> Result<NetRecv, Error> {
        let ring = LinkRing::new(&self.device, self.slot_bytes)?;
        NetRecv::new(end, ring, self.statuses.add(id, Direction::Recv))
    }
}

impl LinkAttempt {
    /// Starts to listen. The peer needs the handle.
    pub(super) fn listen(
        id: LinkId,
        both_ways: bool,
        parts: LinkParts,
        settings: &Settings,
    ) -> Result<(Self, Handle), Error> {
        let listener = Listener::bind(&parts.device, settings)?;
        let handle = listener.handle();
        let stage = AttemptStage::Listening(Box::new(Incoming::new(listener)));
        let keeper = Keeper::of_namespace()?;
        Ok((LinkAttempt { id, both_ways, stage, parts, keeper }, handle))
    }

    /// Starts to connect to the peer's listener.
    pub(super) fn connect(
        id: LinkId,
        both_ways: bool,
        parts: LinkParts,
        settings: &Settings,
        handle: &Handle,
    ) -> Result<Self, Error> {
        let connecting = SendComm::connect(&parts.device, handle, settings);
        let connecting = connecting.and_then(|connecting| Ok((connecting, listens_at(handle)?)));
        let (connecting, addr) = connecting.map_err(|error| error.of_rank(id.peer))?;
        let stage = AttemptStage::Connecting(Box::new(connecting), addr);
        let keeper = Keeper::of_namespace()?;
        Ok(LinkAttempt { id, both_ways, stage, parts, keeper })
    }

    /// Returns the rank at the other end.
    pub fn peer(&self) -> u32 {
        self.id.peer
    }

    /// Returns `; ` and a text about the callers that this end has turned away, or nothing if there were
    /// none.
    pub fn turned_away(&self) -> String {
        match &self.stage {
            AttemptStage::Listening(incoming) => incoming.turned_away(),
            AttemptStage::Connecting(..) | AttemptStage::Over => String::new(),
        }
    }

    /// Continues the attempt without waiting. Returns the ends once the link is made.
    ///
    /// # Errors
    /// Fails if the peer can't be reached or can't prove that it has the key, or if there is no memory
    /// for the link.
    pub fn poll(&mut self) -> Result<Option<LinkEnds>, Error> {
        if self.parts.statuses.is_aborted() {
            return Err(Kind::Aborted.into());
        }
        let ends = self.try_poll().map_err(|error| error.of_rank(self.id.peer))?;
        if ends.is_some() {
            self.stage = AttemptStage::Over;
        }
        Ok(ends)
    }

    fn try_poll(&mut self) -> Result<Option<LinkEnds>, Error> {
        let LinkAttempt { id, both_ways, stage, parts, keeper } = self;
        match stage {
            AttemptStage::Connecting(connecting, _) => {
                let Some(end) = connecting.poll_raw()? else { return Ok(None) };
                let mut end = end.kept(keeper);
                let back =
                    if *both_ways { Some(end.way_back()?.ok_or_else(one_way)?) } else { None };
                let recv = back.map(|back| parts.receiver(*id, back)).transpose()?;
                Ok(Some(LinkEnds { send: Some(parts.sender(*id, end)?), recv }))
            }
            AttemptStage::Listening(incoming) => {
                let Some(end) = incoming.poll()? else { return Ok(None) };
                let mut end = end.kept(keeper);
                let back =
                    if *both_ways { Some(end.way_back()?.ok_or_else(one_way)?) } else { None };
                let send = back.map(|back| parts.sender(*id, back)).transpose()?;
                Ok(Some(LinkEnds { send, recv: Some(parts.receiver(*id, end)?) }))
            }
            AttemptStage::Over => Ok(None),
        }
    }

    /// Returns the error of a link that is not made in time. It names the device, the address and the rank.
    fn late(&self, within: Duration) -> Error {
        let error = match &self.stage {
            AttemptStage::Listening(incoming) => {
                incoming.listener.no_peer(within, incoming.turned_away())
            }
            AttemptStage::Connecting(_, addr) => {
                let device = self.parts.device.info().name.clone();
                let text = format!(
                    "{device} to peer {addr}: the link was not complete within {} ms: does that rank \
                     still run, and does it make its end of the link?",
                    within.as_millis()
                );
                Kind::TimedOut { text, device, peer: Some(*addr) }.into()
            }
            AttemptStage::Over => {
                Kind::Usage("this attempt has returned its ends already".to_owned()).into()
            }
        };
        error.of_rank(self.id.peer)
    }
}

/// Waits until all links of `attempts` are made, at most `within`, and returns their ends in the same
/// order. A peer may wait for any link first, so this function polls all attempts in turn.
///
/// # Errors
/// Fails if [`LinkAttempt::poll`] fails or if the links take longer than `within`.
pub fn wait_for_links(
    mut attempts: Vec<LinkAttempt>,
    within: Duration,
) -> Result<Vec<LinkEnds>, Error> {
    let mut ends: Vec<Option<LinkEnds>> = attempts.iter().map(|_| None).collect();
    let start = Instant::now();
    let poll = |interest: &mut Interest| {
        // An abort of the communicator wakes nobody.
        interest.blind();
        for (attempt, ends) in attempts.iter_mut().zip(&mut ends) {
            if ends.is_none() {
                *ends = attempt.poll()?;
            }
        }
        let is_over = ends.iter().all(Option::is_some) || start.elapsed() >= within;
        Ok(is_over.then_some(()))
    };
    poll_within(poll, |waited| Ok(within.saturating_sub(waited)))?;
    let late = attempts.iter().zip(&ends).find(|(_, ends)| ends.is_none());
    if let Some((attempt, _)) = late {
        return Err(attempt.late(within));
    }
    Ok(ends.into_iter().flatten().collect())
}

/// Waits for the one sender that has the handle.
struct Incoming {
    listener: Listener,
    accepting: Vec<Accepting>,
    /// The number of senders whose connection failed, and the last one's error.
    failed: Option<(u32, String)>,
}

impl Incoming {
    fn new(listener: Listener) -> Self {
        Incoming { listener, accepting: Vec::new(), failed: None }
    }

    fn turned_away(&self) -> String {
        let strangers = self.listener.turned_away();
        match &self.failed {
            None => strangers,
            Some((1, error)) => format!("{strangers}; a sender failed: {error}"),
            Some((count, error)) => {
                format!("{strangers}; {count} senders failed, the last: {error}")
            }
        }
    }

    /// Returns the end of the first connected sender. Rejects senders whose connection fails.
    fn poll(&mut self) -> Result<Option<AnyRecv>, Error> {
        while self.accepting.len() < ACCEPTING_MAX
            && let Some(accepting) = self.listener.accept()?
        {
            self.accepting.push(accepting);
        }
        let mut end = None;
        self.accepting.retain_mut(|accepting| match accepting.poll_raw() {
            Ok(None) => true,
            Ok(Some(connected)) => {
                end.get_or_insert(connected);
                false
            }
            Err(error) => {
                let count = self.failed.as_ref().map_or(1, |(count, _)| count + 1);
                // On the wire of NCCL 2.14 anybody can fail here, any number of times.
                if count.is_power_of_two() {
                    log::warn!("a sender is sent away: {error}");
                }
                self.failed = Some((count, error.to_string()));
                false
            }
        });
        Ok(end)
    }
}

fn one_way() -> Error {
    Kind::Usage("a connection that goes one way is to go both ways".to_owned()).into()
}
