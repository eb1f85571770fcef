//! Links over the network that the rank is still making.
//!
//! The receiver of a link listens and sends its address through the rendezvous; the sender connects.
//! Over TCP two ranks share one connection on a channel for both directions, and the lower rank
//! connects.
//!
//! No function here waits. A peer may start its part only after data has moved over other links.

use std::sync::Arc;

use invar_linux::rendezvous::Bootstrap;

use super::net::{LinkAttempt, LinkEnds, Network};
use super::tags;
use crate::error::Kind;
use crate::{Error, Handle};

/// Channels of each device (`2` in NCCL).
pub(super) const CHANNELS_PER_DEVICE: u32 = 2;

/// Makes links over the network, each when a rank first needs it.
pub(super) struct Connector {
    pub(super) network: Network,
    pub(super) ndevices: u32,
    pub(super) bootstrap: Arc<Bootstrap>,
}

/// A link that the rank is still making. If two links share a connection, this is both of them.
pub(super) struct PendingLink {
    pub(super) channel: u32,
    pub(super) peer: u32,
    /// The attempt to connect; `None` until the peer has said where it listens.
    attempt: Option<LinkAttempt>,
}

impl Connector {
    /// Starts to make the links to and from a peer that are missing.
    pub(super) fn begin(
        &self,
        (channel, peer): (u32, u32),
        (mut connects, mut listens): (bool, bool),
        pending: &mut Vec<PendingLink>,
    ) -> Result<(), Error> {
        if (connects || listens) && self.goes_both_ways(channel) {
            connects = self.bootstrap.rank() < peer;
            listens = !connects;
        }
        if listens {
            let attempt = Some(self.listen(channel, peer)?);
            pending.push(PendingLink { channel, peer, attempt });
        }
        if connects {
            pending.push(PendingLink { channel, peer, attempt: None });
        }
        Ok(())
    }

    fn listen(&self, channel: u32, peer: u32) -> Result<LinkAttempt, Error> {
        let device = self.device(channel);
        let (attempt, handle) = match self.goes_both_ways(channel) {
            true => self.network.listen_both_ways(peer, channel as u16, device)?,
            false => self.network.listen(peer, channel as u16, device)?,
        };
        self.bootstrap
            .send(peer, tags::LINK + channel, handle.as_bytes())
            .map_err(Error::bootstrap)?;
        Ok(attempt)
    }

    /// Connects to the peer's address once the peer has sent it; returns `None` until then.
    fn connect(&self, channel: u32, peer: u32) -> Result<Option<LinkAttempt>, Error> {
        let handle = self.bootstrap.try_recv(peer, tags::LINK + channel);
        let Some(handle) = handle.map_err(Error::bootstrap)? else {
            return Ok(None);
        };
        let bytes = handle.try_into().ok();
        let handle = bytes.and_then(|bytes| Handle::from_bytes(bytes).ok()).ok_or_else(|| {
            let text = "it gave no handle to connect to".to_owned();
            Kind::Rank { rank: peer, text }
        })?;
        let device = self.device(channel);
        let attempt = match self.goes_both_ways(channel) {
            true => self.network.connect_both_ways(peer, channel as u16, device, &handle)?,
            false => self.network.connect(peer, channel as u16, device, &handle)?,
        };
        Ok(Some(attempt))
    }

    /// Returns the index of the device that a channel goes over.
    fn device(&self, channel: u32) -> usize {
        (channel / CHANNELS_PER_DEVICE % self.ndevices) as usize
    }

    /// Returns whether the links of both directions share a connection on a channel.
    fn goes_both_ways(&self, channel: u32) -> bool {
        self.network.goes_both_ways(self.device(channel))
    }
}

impl PendingLink {
    /// Returns `; ` and a text about the callers that this end has turned away, or nothing.
    pub(super) fn turned_away(&self) -> String {
        self.attempt.as_ref().map_or_else(String::new, LinkAttempt::turned_away)
    }

    /// Returns the link, or both links of a shared connection, once they are made.
    ///
    /// # Errors
    /// Fails if the peer has left or can't be reached.
    pub(super) fn poll(&mut self, connector: &Connector) -> Result<Option<LinkEnds>, Error> {
        if self.attempt.is_none() {
            self.attempt = connector.connect(self.channel, self.peer)?;
        }
        self.attempt.as_mut().map_or(Ok(None), LinkAttempt::poll)
    }
}
