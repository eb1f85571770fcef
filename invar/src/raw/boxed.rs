//! Ends as trait objects are ends too. So callers that are generic over ends can take any end. Their calls
//! have no fast path, because a fast path is generic.

use invar_core::comm::{Flush, FlushBuf, RecvBuf, Request, SendBuf};
use invar_core::error::{Ends, Error as CoreError};
use invar_linux::interest::Interest;

use super::{Attention, Carrier, End, RecvEnd, Rest, SendEnd, Snapshot};
use crate::Error;

macro_rules! impl_end {
    ($trait:path) => {
        impl End for Box<dyn $trait> {
            fn ends(&self) -> Ends {
                (**self).ends()
            }

            fn carriers(&mut self, request: &Request) -> Option<Vec<Carrier>> {
                (**self).carriers(request)
            }

            fn needs_calls(&self) -> bool {
                (**self).needs_calls()
            }

            fn arm(&mut self, interest: &mut Interest) {
                (**self).arm(interest);
            }

            fn close(self: Box<Self>) {
                (*self).close();
            }

            fn look(&mut self) -> Attention {
                (**self).look()
            }

            fn attention(&self) -> Attention {
                (**self).attention()
            }

            fn rest(&self) -> Option<Rest<'_>> {
                (**self).rest()
            }

            fn park(&mut self, is_asleep: bool) {
                (**self).park(is_asleep);
            }

            fn called(&mut self) {
                (**self).called();
            }

            fn snapshot(&self, counts: bool) -> Option<Snapshot> {
                (**self).snapshot(counts)
            }

            fn is_done(&mut self, request: &Request) -> bool {
                (**self).is_done(request)
            }
        }
    };
}

impl_end!(SendEnd);
impl_end!(RecvEnd);

impl SendEnd for Box<dyn SendEnd> {
    #[inline(always)]
    unsafe fn isend(&mut self, buf: &SendBuf, tag: u32) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller makes the promises of `isend`.
        unsafe { (**self).isend(buf, tag) }
    }

    #[inline(always)]
    fn room(&mut self, tag: u32) -> Result<Option<u32>, CoreError> {
        (**self).room(tag)
    }

    fn is_settled(&self) -> bool {
        (**self).is_settled()
    }

    #[inline(always)]
    fn test(&mut self, request: &Request) -> Result<Option<u32>, CoreError> {
        (**self).test(request)
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn RecvEnd>>, Error> {
        (**self).way_back()
    }
}

impl RecvEnd for Box<dyn RecvEnd> {
    #[inline(always)]
    unsafe fn irecv(&mut self, bufs: &[RecvBuf]) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller makes the promises of `irecv`.
        unsafe { (**self).irecv(bufs) }
    }

    #[inline(always)]
    unsafe fn irecv_ahead(&mut self, buf: &RecvBuf) -> Result<Option<Request>, CoreError> {
        // SAFETY: the caller makes the promises of `irecv`.
        unsafe { (**self).irecv_ahead(buf) }
    }

    unsafe fn iflush(&mut self, bufs: &[FlushBuf]) -> Result<Flush, CoreError> {
        // SAFETY: the caller makes the promises of `irecv`.
        unsafe { (**self).iflush(bufs) }
    }

    #[inline(always)]
    unsafe fn test(
        &mut self,
        request: &Request,
        sizes: *mut u32,
    ) -> Result<Option<usize>, CoreError> {
        // SAFETY: the caller makes the promises of `test`.
        unsafe { (**self).test(request, sizes) }
    }

    fn way_back(&mut self) -> Result<Option<Box<dyn SendEnd>>, Error> {
        (**self).way_back()
    }
}
