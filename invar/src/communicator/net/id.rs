//! Identifiers of links and of their ends.

use invar_core::topology::Direction;

/// A link of a rank, identified by the rank at the other end and the channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkId {
    pub(super) peer: u32,
    pub(super) channel: u16,
}

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndId {
    /// Number of the end; no other end of the rank has the same number.
    pub(super) number: u32,
    pub(super) link: LinkId,
    pub(super) direction: Direction,
}
