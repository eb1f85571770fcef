//! The ranks of one host, and the memory that they share.
//!
//! The first rank of a host creates memory with a ring for each channel and each ordered pair of the
//! host's ranks, and behind the rings a bell for each rank. It gives the memory to the other ranks. Pages
//! that no rank touches cost nothing.

use std::time::Duration;

use invar_linux::rendezvous::Bootstrap;
use invar_linux::shm::{BELL_BYTES, Bell, Offer, RecvRing, RingLayout, SendRing, SharedMemory};

use super::link::{RecvLink, SendLink};
use super::tags;
use crate::Error;
use crate::error::Kind;

/// The memory of this host's ranks.
pub(super) struct Local {
    memory: SharedMemory,
    layout: RingLayout,
    /// The byte at which the bells begin.
    bells_at: usize,
    /// The ranks of this host, in order.
    ranks: Vec<u32>,
    rank: u32,
}

impl Local {
    /// Shares memory among `ranks`, the ranks of this host. This rank is one of them, and there are
    /// several.
    pub(super) fn share(
        bootstrap: &Bootstrap,
        ranks: Vec<u32>,
        nchannels: u32,
        slot_bytes: usize,
        within: Duration,
    ) -> Result<Self, Error> {
        let rank = bootstrap.rank();
        let count = ranks.len();
        let layout = RingLayout::new(slot_bytes);
        let rings = count.checked_mul(count).and_then(|n| n.checked_mul(nchannels as usize));
        let sizes = layout.zip(rings).and_then(|(layout, rings)| {
            let bells_at = rings.checked_mul(layout.ring_bytes())?;
            Some((layout, bells_at, bells_at.checked_add(count.checked_mul(BELL_BYTES)?)?))
        });
        let Some((layout, bells_at, bytes)) = sizes else {
            let text = format!(
                "the {count} ranks of this host cannot share memory with slots of {slot_bytes} bytes \
                 on {nchannels} channels: it would be too large"
            );
            return Err(Kind::Usage(text).into());
        };
        let failed = |error| Error::io("sharing memory between the ranks of this host", error);
        let memory = if ranks.first() == Some(&rank) {
            let memory = SharedMemory::create("invar-ranks", bytes);
            let (memory, offer) = (memory.map_err(failed)?, Offer::new().map_err(failed)?);
            for peer in &ranks[1..] {
                bootstrap
                    .send(*peer, tags::SHARED_MEMORY, &offer.address())
                    .map_err(Error::bootstrap)?;
            }
            offer.serve(&memory, ranks.len() - 1, within, &bootstrap.abort()).map_err(failed)?;
            memory
        } else {
            let address =
                bootstrap.recv(ranks[0], tags::SHARED_MEMORY, within).map_err(Error::bootstrap)?;
            SharedMemory::fetch(&address, bytes, within, &bootstrap.abort()).map_err(|error| {
                let text = format!("it did not give the memory that ranks share: {error}");
                Kind::Rank { rank: ranks[0], text }
            })?
        };
        Ok(Local { memory, layout, bells_at, ranks, rank })
    }

    /// Returns the links with a peer on a channel. Returns `None` if the peer is on another host or is
    /// this rank.
    pub(super) fn links(&self, channel: u32, peer: u32) -> Option<(SendLink, RecvLink)> {
        if peer == self.rank {
            return None;
        }
        let (us, them, count) = (self.place(self.rank)?, self.place(peer)?, self.ranks.len());
        let ring = |from, to| (channel as usize * count + from) * count + to;
        let (memory, layout, bell) = (&self.memory, self.layout, self.bell(peer)?);
        let send = SendRing::new(memory, layout, ring(us, them), bell.clone());
        let recv = RecvRing::new(memory, layout, ring(them, us), bell);
        Some((SendLink::Shm { peer, ring: send }, RecvLink::Shm { peer, ring: recv }))
    }
    /// Returns the bell of a rank of this host.
    fn bell(&self, rank: u32) -> Option<Bell> {
        Some(Bell::new(&self.memory, self.bells_at + self.place(rank)? * BELL_BYTES))
    }

    /// Returns the bell of this rank.
    pub(super) fn own_bell(&self) -> Option<Bell> {
        self.bell(self.rank)
    }

    /// Returns the index of a rank among the ranks of this host.
    fn place(&self, rank: u32) -> Option<usize> {
        self.ranks.iter().position(|local| *local == rank)
    }
}
