//! An end that the keeper looks after.

use std::mem::ManuallyDrop;

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::error::{Ends, Error as CoreError};
use invar_linux::biased::Owner;
use invar_linux::interest::Interest;

use super::end::{Carrier, End, RecvEnd, SendEnd};
use super::keeper::{Attention, Keeper, KeeperGuard, KeptEnd, Rest, call};
use super::recorded::Snapshot;
use crate::Error;

/// An end that a [`Keeper`] looks after between calls.
pub struct KeeperEnd<E> {
    // The keeper forgets the end before the end is dropped.
    guard: KeeperGuard,
    keeper: Keeper,
    end: Owner<E>,
    needs_calls: bool,
}

impl<E: End> KeptEnd for ManuallyDrop<E> {
    fn look(&mut self) -> Attention {
        (**self).look()
    }

    fn attention(&self) -> Attention {
        (**self).attention()
    }

    fn rest(&self) -> Option<Rest<'_>> {
        (**self).rest()
    }

    fn called(&mut self) {
        (**self).called();
    }

    fn snapshot(&self, counts: bool) -> Option<Snapshot> {
        (**self).snapshot(counts)
    }
}

impl<E: End + 'static> KeeperEnd<E> {
    /// Lets a keeper look after an end.
    pub fn new(end: E, keeper: &Keeper) -> Self {
        let (needs_calls, end) = (end.needs_calls(), Owner::new(end));
        KeeperEnd { guard: keeper.keep(end.shared()), keeper: keeper.clone(), end, needs_calls }
    }

    fn call<R>(&mut self, make: impl FnOnce(&mut E) -> R) -> R {
        // SAFETY: `self` is the only owner and is borrowed mutably.
        unsafe { call(self.end.biased(), |end| make(end)) }
    }
}

impl<E: End + 'static> End for KeeperEnd<E> {
    fn ends(&self) -> Ends {
        self.end.read(End::ends)
    }

    fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
        self.call(|end| end.carriers(request))
    }

    fn needs_calls(&self) -> bool {
        self.needs_calls
    }

    fn arm(&mut self, interest: &mut Interest) {
        // This is no call that tells what the program waits for.
        if let Some(mut end) = self.end.enter() {
            return end.arm(interest);
        }
        self.end.lock().arm(interest);
    }

    fn park(&mut self, is_asleep: bool) {
        if let Some(mut end) = self.end.enter() {
            return end.park(is_asleep);
        }
        self.end.lock().park(is_asleep);
    }

    fn close(self: Box<Self>) {
        let KeeperEnd { guard, end, .. } = *self;
        drop(guard);
        Box::new(end.into_inner()).close();
    }

    fn look(&mut self) -> Attention {
        self.call(End::look)
    }

    fn attention(&self) -> Attention {
        self.end.read(End::attention)
    }
}

impl<E: SendEnd + 'static> SendEnd for KeeperEnd<E> {
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `isend` demands.
        self.call(|end| unsafe { end.isend(buf, tag) })
    }

    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        self.call(|end| end.room(tag))
    }

    fn is_settled(&self) -> bool {
        self.end.read(SendEnd::is_settled)
    }

    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        self.call(|end| end.test(request))
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        let end = self.call(SendEnd::way_back)?;
        Ok(end.map(|end| Box::new(KeeperEnd::new(end, &self.keeper)) as _))
    }
}

impl<E: RecvEnd + 'static> RecvEnd for KeeperEnd<E> {
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `irecv` demands.
        self.call(|end| unsafe { end.irecv(bufs) })
    }

    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller has promised what `irecv_ahead` demands.
        self.call(|end| unsafe { end.irecv_ahead(buf) })
    }

    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        // SAFETY: the caller has promised what `iflush` demands.
        self.call(|end| unsafe { end.iflush(bufs) })
    }

    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        // SAFETY: the caller has promised what `test` demands.
        self.call(|end| unsafe { end.test(request, sizes) })
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        let end = self.call(RecvEnd::way_back)?;
        Ok(end.map(|end| Box::new(KeeperEnd::new(end, &self.keeper)) as _))
    }
}
