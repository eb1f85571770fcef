//! Receives that a peer may take for pieces of a staged receive, because they have the same length.

use invar_core::comm;
use invar_core::staging::{TRAILER_BYTES, Trailer};

use crate::MemoryRegion;

/// The receives under way that have the length of a staged piece. Usually there are none.
#[derive(Default)]
pub(super) struct Lookalikes(Vec<Lookalike>);

struct Lookalike {
    /// Index of the receive's request.
    request: usize,
    /// Index of the buffer in the receive.
    member: usize,
    region: MemoryRegion,
    start: usize,
}

impl Lookalikes {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub(super) fn add(
        &mut self,
        request: &comm::Request,
        member: usize,
        region: &MemoryRegion,
        start: usize,
    ) {
        let (request, region) = (request.index(), region.clone());
        self.0.push(Lookalike { request, member, region, start });
    }

    /// Checks a request that is done; `sizes` are the bytes in each buffer. Returns an error text if the
    /// peer took a buffer for a piece of a staged receive.
    #[cold]
    pub(super) fn check(&mut self, request: &comm::Request, sizes: &[usize]) -> Option<String> {
        let of_request = self.0.extract_if(.., |lookalike| lookalike.request == request.index());
        let taken = of_request.filter_map(|Lookalike { member, region, start, .. }| {
            let bytes = sizes.get(member)?.checked_sub(TRAILER_BYTES)?;
            let mut trailer = [0; TRAILER_BYTES];
            region.read_at(start + bytes, &mut trailer).ok()?;
            Some((member, Trailer::from_bytes(trailer).ok()?))
        });
        let (member, Trailer { of }) = taken.last()?;
        Some(format!(
            "buffer {member} of a receive got a chunk of the peer's staged send of {of} bytes: the \
             buffer is as long as a chunk (INVAR_STAGING_CHUNK_BYTES and {TRAILER_BYTES}), so the \
             peer took the receive for a staged one; use another length"
        ))
    }
}
