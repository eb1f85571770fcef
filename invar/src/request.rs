//! Requests, and the memory that requests hold.

use std::sync::atomic::{AtomicU64, Ordering};

use invar_core::comm;

use crate::MemoryRegion;

/// A transfer under way. Pass it to `test` or `wait` of its comm until the transfer is done.
///
/// A request is a number, not a resource: dropping it neither ends the transfer nor frees its memory.
/// A comm has up to 256 places for requests, and uses them in turn. A request that is never tested
/// keeps its place, and the comm starts no new request once that place's turn comes.
#[must_use = "a request ends only by `test`"]
#[derive(Debug)]
pub struct Request {
    pub(crate) of: Of,
    comm: u64,
}

/// The part of a comm that knows a request.
#[derive(Debug)]
pub(crate) enum Of {
    /// The end of the connection.
    End(comm::Request),
    /// The messages that pass through host memory, by their number.
    Staged(u64),
}

/// The regions of a comm's sends, receives or flushes that are under way. A NIC may access these regions,
/// so the value keeps them. A request has at most `K` regions.
pub(crate) struct UnderWay<const K: usize> {
    comm: u64,
    regions: Box<[[Option<MemoryRegion>; K]]>,
}

impl<const K: usize> UnderWay<K> {
    /// Makes room for `count` requests under way. Their indices must differ modulo `count`.
    pub(crate) fn new(count: usize) -> Self {
        static COMMS: AtomicU64 = AtomicU64::new(0);
        let regions = (0..count).map(|_| [const { None }; K]).collect();
        UnderWay { comm: COMMS.fetch_add(1, Ordering::Relaxed), regions }
    }

    #[inline]
    pub(crate) fn hold<'a>(
        &mut self,
        request: comm::Request,
        regions: impl Iterator<Item = &'a MemoryRegion>,
    ) -> Request {
        for (held, region) in self.held(&request).iter_mut().zip(regions) {
            *held = Some(region.clone());
        }
        Request { of: Of::End(request), comm: self.comm }
    }

    /// A request whose region is held elsewhere.
    pub(crate) fn staged(&self, number: u64) -> Request {
        Request { of: Of::Staged(number), comm: self.comm }
    }

    /// Releases the regions of a request that is over.
    #[inline]
    pub(crate) fn release(&mut self, request: &comm::Request) {
        for held in self.held(request) {
            // They fill up from the front.
            if held.take().is_none() {
                break;
            }
        }
    }

    #[inline]
    fn held(&mut self, request: &comm::Request) -> &mut [Option<MemoryRegion>; K] {
        let count = self.regions.len();
        &mut self.regions[request.index() % count]
    }

    #[inline]
    pub(crate) fn is_ours(&self, request: &Request) -> bool {
        request.comm == self.comm
    }
}
