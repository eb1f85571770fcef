//! Links over the network that are on their way.
//!
//! Who receives listens, and says where by the rendezvous; who sends connects. Over TCP two ranks have
//! one connection on a channel for both ways, to which the lower one connects.
//!
//! Nothing here waits: a peer may come to its part only after something has moved over other links.

use std::sync::Arc;

use invar_linux::rendezvous::Bootstrap;

use super::net::{LinkAttempt, LinkEnds, Network};
use super::tags;
use crate::error::Kind;
use crate::{Error, Handle};

/// Channels of a device, unless there is no need for so many (`2` in NCCL).
pub(super) const CHANNELS_PER_DEVICE: u32 = 2;

/// Makes links over the network, each when it is first needed.
pub(super) struct Connector {
    pub(super) network: Network,
    pub(super) ndevices: u32,
    pub(super) bootstrap: Arc<Bootstrap>,
}

/// A link that is on its way, or one each way that share a connection.
pub(super) struct PendingLink {
    pub(super) channel: u32,
    pub(super) peer: u32,
    /// `None`: the peer has still to say where it listens.
    attempt: Option<LinkAttempt>,
}

impl Connector {
    /// Begins with those of the links to and from a peer that are missing.
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

    /// To where the peer listens, once it has said so.
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

    /// Which device a channel goes over.
    fn device(&self, channel: u32) -> usize {
        (channel / CHANNELS_PER_DEVICE % self.ndevices) as usize
    }

    /// Whether links both ways share a connection on a channel.
    fn goes_both_ways(&self, channel: u32) -> bool {
        self.network.goes_both_ways(self.device(channel))
    }
}

impl PendingLink {
    /// The link, or both, once they are there.
    ///
    /// # Errors
    /// A peer that has left, or can't be reached.
    pub(super) fn poll(&mut self, connector: &Connector) -> Result<Option<LinkEnds>, Error> {
        if self.attempt.is_none() {
            self.attempt = connector.connect(self.channel, self.peer)?;
        }
        self.attempt.as_mut().map_or(Ok(None), LinkAttempt::poll)
    }
}
