//! Links that come about (`net.cc sendProxyConnect`, `recvProxyConnect`).

use std::time::Duration;

use invar_core::proxy::Direction;

use super::id::LinkId;
use super::ring::LinkRing;
use super::status::LinkStatuses;
use super::{NetRecv, NetSend};
use crate::error::Kind;
use crate::raw::{AnyRecv, RecvEnd, SendEnd};
use crate::wait::wait;
use crate::{Accepting, Connecting, Device, Error, Handle, Listener, SendComm, Settings};

/// Senders that may be about to connect: there is to be one, and it may have to try again.
const ACCEPTING_MAX: usize = 16;

/// A link that comes about, or two that share a connection. It comes about in the calls of
/// [`poll`](LinkAttempt::poll) alone. Dropped, it is given up.
#[must_use = "it goes on only when it is polled"]
pub struct LinkAttempt {
    id: LinkId,
    both_ways: bool,
    stage: Stage,
    parts: LinkParts,
}

/// The ends of links that have come about: one, or both where they share a connection.
pub struct LinkEnds {
    /// To the peer.
    pub send: Option<NetSend>,
    /// From the peer.
    pub recv: Option<NetRecv>,
}

enum Stage {
    Connecting(Connecting),
    Listening(Box<Incoming>),
    /// Its ends were given.
    Over,
}

/// What an end of a link is made of besides its connection.
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
    /// Listens; the handle is for the peer.
    pub(super) fn listen(
        id: LinkId,
        both_ways: bool,
        parts: LinkParts,
        settings: &Settings,
    ) -> Result<(Self, Handle), Error> {
        let listener = Listener::bind(&parts.device, settings)?;
        let handle = listener.handle();
        let stage = Stage::Listening(Box::new(Incoming { listener, accepting: Vec::new() }));
        Ok((LinkAttempt { id, both_ways, stage, parts }, handle))
    }

    /// Connects to where the peer listens.
    pub(super) fn connect(
        id: LinkId,
        both_ways: bool,
        parts: LinkParts,
        settings: &Settings,
        handle: &Handle,
    ) -> Result<Self, Error> {
        let connecting = SendComm::connect(&parts.device, handle, settings);
        let connecting = connecting.map_err(|error| error.of_rank(id.peer))?;
        Ok(LinkAttempt { id, both_ways, stage: Stage::Connecting(connecting), parts })
    }

    /// The rank at the other end.
    pub fn peer(&self) -> u32 {
        self.id.peer
    }

    /// Goes on without waiting. Gives the link once it is there.
    ///
    /// # Errors
    /// A peer that cannot be reached, or that has no proof of the key; no memory for the link.
    pub fn poll(&mut self) -> Result<Option<LinkEnds>, Error> {
        if self.parts.statuses.is_aborted() {
            return Err(Kind::Aborted.into());
        }
        let ends = self.try_poll().map_err(|error| error.of_rank(self.id.peer))?;
        if ends.is_some() {
            self.stage = Stage::Over;
        }
        Ok(ends)
    }

    fn try_poll(&mut self) -> Result<Option<LinkEnds>, Error> {
        let LinkAttempt { id, both_ways, stage, parts } = self;
        match stage {
            Stage::Connecting(connecting) => {
                let Some(end) = connecting.poll_raw()? else { return Ok(None) };
                let mut end = end.boxed();
                let back =
                    if *both_ways { Some(end.way_back()?.ok_or_else(one_way)?) } else { None };
                let recv = back.map(|back| parts.receiver(*id, back)).transpose()?;
                Ok(Some(LinkEnds { send: Some(parts.sender(*id, end)?), recv }))
            }
            Stage::Listening(incoming) => {
                let Some(end) = incoming.poll()? else { return Ok(None) };
                let mut end = end.boxed();
                let back =
                    if *both_ways { Some(end.way_back()?.ok_or_else(one_way)?) } else { None };
                let send = back.map(|back| parts.sender(*id, back)).transpose()?;
                Ok(Some(LinkEnds { send, recv: Some(parts.receiver(*id, end)?) }))
            }
            Stage::Over => Ok(None),
        }
    }
}

/// Waits until all links of `attempts` are there, `within` at most, and gives them in the same order.
/// A peer may wait for any of them first, so they come about side by side.
///
/// # Errors
/// What [`LinkAttempt::poll`] says; links that take longer.
pub fn wait_for_links(
    mut attempts: Vec<LinkAttempt>,
    within: Duration,
) -> Result<Vec<LinkEnds>, Error> {
    let mut ends: Vec<Option<LinkEnds>> = attempts.iter().map(|_| None).collect();
    wait("a link between ranks", within, || {
        for (attempt, ends) in attempts.iter_mut().zip(&mut ends) {
            if ends.is_none() {
                *ends = attempt.poll()?;
            }
        }
        Ok(ends.iter().all(Option::is_some).then_some(()))
    })?;
    Ok(ends.into_iter().flatten().collect())
}

/// Waits for the one sender that has the handle.
struct Incoming {
    listener: Listener,
    accepting: Vec<Accepting>,
}

impl Incoming {
    /// The end of the first sender that is connected. One that gives up is sent away.
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
                log::warn!("a sender is sent away: {error}");
                false
            }
        });
        Ok(end)
    }
}

fn one_way() -> Error {
    Kind::Usage("a connection that goes one way is to go both ways".to_owned()).into()
}
