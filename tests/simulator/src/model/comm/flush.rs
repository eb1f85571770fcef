//! Flushes of what has been received.

use invar_core::comm::{Flush, FlushBuf, Request};
use invar_core::error::Error;
use invar_core::nic::Nic;

use super::{Buf, Traffic, is_refused};

/// A flush of the buffers of a receive.
pub(super) struct Flushing {
    pub(super) request: Request,
    bufs: Vec<Buf>,
}

impl<N: Nic> Traffic<N> {
    /// Flushes the buffers of a receive, if flushes are on and not too many are under way.
    pub(super) fn flush(&mut self, bufs: Vec<Buf>) -> Result<(), Error> {
        let rkey = self.room.buffer().rkey();
        let received = |buf: &Buf| FlushBuf {
            addr: self.room.addr(&buf.cell),
            len: buf.message.map_or(0, |(_, len)| len),
            rkey,
        };
        let received: Vec<FlushBuf> = bufs.iter().map(received).collect();
        match self.duo.recv.iflush(&received)? {
            Flush::Started(request) => self.flushes.push(Flushing { request, bufs }),
            Flush::NotNeeded | Flush::Busy => {
                bufs.into_iter().for_each(|buf| self.room.give(buf.cell));
            }
        }
        Ok(())
    }

    pub(super) fn test_flush(&mut self, i: usize) -> Result<(), Error> {
        match self.duo.recv.test(&self.flushes[i].request)? {
            Some(sizes) => {
                assert!(sizes.is_empty(), "a flush has no sizes");
                let Flushing { request, bufs } = self.flushes.swap_remove(i);
                let again = self.duo.recv.test(&request);
                assert!(is_refused(again.err(), &request), "a flush that is over: {again:?}");
                bufs.into_iter().for_each(|buf| self.room.give(buf.cell));
            }
            None => assert!(!self.shape.prompt, "a flush is not done"),
        }
        Ok(())
    }
}
