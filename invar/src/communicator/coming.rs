//! Links over the network that are on their way.
//!
//! Who receives listens, and says where by the rendezvous; who sends connects. Over TCP two ranks have
//! one connection on a channel for both ways, to which the lower one connects.
//!
//! Nothing here waits: a peer may come to its part only after something has moved over other links.

use std::sync::Arc;

use invar_linux::rendezvous::Bootstrap;

use super::net::{NetProxy, NetRecv, NetSend, Receiving, Sending};
use super::tags;
use crate::error::Kind;
use crate::{Error, Handle};

/// Channels of a device, unless there is no need for so many (`2` in NCCL).
pub(super) const CHANNELS_PER_DEVICE: u32 = 2;

/// How many slots go over the links with a peer on a channel.
#[derive(Clone, Copy, Default)]
pub(super) struct Slots {
    pub(super) send: u64,
    pub(super) recv: u64,
}

/// How links over the network are made: each when it is first needed.
pub(super) struct Network {
    pub(super) proxy: NetProxy,
    pub(super) ndevices: u32,
    pub(super) bootstrap: Arc<Bootstrap>,
}

/// A link that is on its way, or one each way that share a connection.
pub(super) struct Coming {
    pub(super) channel: u32,
    pub(super) peer: u32,
    /// What is to go over it.
    pub(super) slots: Slots,
    stage: Stage,
}

enum Stage {
    /// The peer has still to say where it listens.
    Due,
    /// The proxy is at what has not come yet.
    Begun { sending: Option<Sending>, receiving: Option<Receiving> },
}

impl Network {
    /// Begins with the links to and from a peer that are `missing`.
    pub(super) fn begin(
        &mut self,
        (channel, peer): (u32, u32),
        slots: Slots,
        missing: (bool, bool),
        coming: &mut Vec<Coming>,
    ) -> Result<(), Error> {
        let (mut connects, mut listens) = missing;
        if (connects || listens) && self.goes_both_ways(channel) {
            connects = self.bootstrap.rank() < peer;
            listens = !connects;
        }
        let mut add = |stage| coming.push(Coming { channel, peer, slots, stage });
        if listens {
            add(self.listen(channel, peer)?);
        }
        if connects {
            add(Stage::Due);
        }
        Ok(())
    }

    fn listen(&mut self, channel: u32, peer: u32) -> Result<Stage, Error> {
        let (device, both) = (self.device(channel), self.goes_both_ways(channel));
        let (receiving, sending, handle) = if both {
            let (receiving, back, handle) =
                self.proxy.listen_both_ways(peer, channel as u16, device)?;
            (receiving, Some(back), handle)
        } else {
            let (receiving, handle) = self.proxy.listen(peer, channel as u16, device)?;
            (receiving, None, handle)
        };
        self.bootstrap.send(peer, tags::LINK + channel, handle.as_bytes())?;
        Ok(Stage::Begun { sending, receiving: Some(receiving) })
    }

    /// To where the peer listens, once it has said so.
    fn connect(&mut self, channel: u32, peer: u32) -> Result<Option<Stage>, Error> {
        let Some(handle) = self.bootstrap.try_recv(peer, tags::LINK + channel)? else {
            return Ok(None);
        };
        let handle = handle.try_into().map(Handle::from_bytes).map_err(|_| {
            let text = "it gave no handle to connect to".to_owned();
            Kind::Rank { rank: peer, text }
        })?;
        let (device, both) = (self.device(channel), self.goes_both_ways(channel));
        let (sending, receiving) = if both {
            let (sending, back) =
                self.proxy.connect_both_ways(peer, channel as u16, device, &handle)?;
            (sending, Some(back))
        } else {
            (self.proxy.connect(peer, channel as u16, device, &handle)?, None)
        };
        Ok(Some(Stage::Begun { sending: Some(sending), receiving }))
    }

    /// Which device a channel goes over.
    fn device(&self, channel: u32) -> usize {
        (channel / CHANNELS_PER_DEVICE % self.ndevices) as usize
    }

    /// Whether links both ways share a connection on a channel.
    fn goes_both_ways(&self, channel: u32) -> bool {
        self.proxy.goes_both_ways(self.device(channel))
    }
}

impl Coming {
    /// What has come of it since the last time.
    ///
    /// # Errors
    /// A peer that has left, or can't be reached.
    pub(super) fn poll(
        &mut self,
        network: &mut Network,
    ) -> Result<(Option<NetSend>, Option<NetRecv>), Error> {
        if let Stage::Due = self.stage
            && let Some(made) = network.connect(self.channel, self.peer)?
        {
            self.stage = made;
        }
        let Stage::Begun { sending, receiving } = &mut self.stage else { return Ok((None, None)) };
        let send = made(sending, |of| network.proxy.poll_sender(of))?;
        let recv = made(receiving, |of| network.proxy.poll_receiver(of))?;
        Ok((send, recv))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Begun { sending: None, receiving: None })
    }
}

/// What there is now in the place of what was on its way.
fn made<C, L>(
    coming: &mut Option<C>,
    poll: impl FnOnce(&C) -> Result<Option<L>, Error>,
) -> Result<Option<L>, Error> {
    let link = coming.as_ref().map_or(Ok(None), poll)?;
    if link.is_some() {
        *coming = None;
    }
    Ok(link)
}
