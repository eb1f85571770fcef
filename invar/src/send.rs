//! The sending end.

use std::ops::Range;
use std::time::Duration;

use invar_core::comm::Request as CoreRequest;
use invar_core::conn::Handle;
use invar_core::error::Ends;

use crate::raw::{SendBuf, SendEnd};
use crate::request::{Of, UnderWay};
use crate::staged::{self, Staged};
use crate::wait::wait;
use crate::{Connecting, Device, Error, MemoryRegion, Request, Settings};

/// The sending end of a connection.
pub struct SendComm {
    // Its queue pairs end before the regions that they work on.
    end: Box<dyn SendEnd>,
    under_way: UnderWay<1>,
    staged: Staged,
    device: Device,
}

impl SendComm {
    /// Begins to connect to the listener that made `handle`.
    pub fn connect(
        device: &Device,
        handle: &Handle,
        settings: &Settings,
    ) -> Result<Connecting, Error> {
        Connecting::start(device, handle, settings)
    }

    pub(crate) fn new(end: Box<dyn SendEnd>, device: Device, staging: staged::Size) -> Self {
        SendComm {
            end,
            under_way: UnderWay::new(CoreRequest::INDEX_END),
            staged: Staged::new(staging),
            device,
        }
    }

    /// Starts to send a range of `region` if the peer has posted a receive for `tag`; otherwise,
    /// or where too many requests are under way, `None`: call again.
    ///
    /// A send into a grouped receive starts when all of its buffers have their message. One from
    /// GPU memory that the device does not reach may begin before the peer's receive, and then
    /// sends in other such memory wait behind it. Over TCP bytes move only while a request of this
    /// comm is tested: do so before, or while, what the peer does with them is waited for.
    ///
    /// # Errors
    /// A range that is not in the region, a region of another device, a message longer than its
    /// receive: the comm goes on. Others stay: every later call gives the same.
    pub fn isend(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        let (addr, len) = region.locate(&self.device, &range)?;
        self.staged.advance(&mut *self.end)?;
        if let Some(memory) = region.staged() {
            let number = self.staged.begin(&self.device, (region, memory), &range, tag)?;
            self.staged.advance(&mut *self.end)?;
            return Ok(number.map(|number| self.under_way.staged(number)));
        }
        if self.staged.has(tag) {
            return Ok(None);
        }
        let buf = SendBuf { addr, len, lkey: region.lkey() };
        // SAFETY: the region, whose bytes are only ever accessed by atomic operations, is held until
        // the request is done or the end, which goes first, is dropped.
        match unsafe { self.end.isend(&buf, tag) } {
            Ok(Some(request)) => Ok(Some(self.under_way.hold(request, [region].into_iter()))),
            Ok(None) => Ok(None),
            Err(error) => Err(self.staged.size().explain(error, self.end.failed(error))),
        }
    }

    /// Whether a send is done, and then how many bytes it sent; the request is then over.
    ///
    /// # Errors
    /// A request that is over or of another comm; or what ended the connection.
    pub fn test(&mut self, request: &Request) -> Result<Option<usize>, Error> {
        if !self.under_way.is_ours(request) {
            return Err(Error::foreign_request());
        }
        self.staged.advance(&mut *self.end)?;
        let request = match &request.of {
            Of::End(request) => request,
            Of::Staged(number) => return self.staged.take(*number),
        };
        match self.end.test(request) {
            Ok(Some(sent)) => {
                self.under_way.release(request);
                Ok(Some(sent as usize))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(self.staged.size().explain(error, self.end.failed(error))),
        }
    }

    /// Waits until a send is done.
    pub fn wait(&mut self, request: &Request, timeout: Duration) -> Result<usize, Error> {
        wait("a send", timeout, || self.test(request))
    }

    /// Waits until the peer has posted its receive, and until the send is done; `timeout` is for
    /// both.
    pub fn send(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
        timeout: Duration,
    ) -> Result<usize, Error> {
        let mut request = None;
        wait("a send", timeout, || {
            if request.is_none() {
                request = self.isend(region, range.clone(), tag)?;
            }
            request.as_ref().map_or(Ok(None), |request| self.test(request))
        })
    }

    /// Both ends.
    pub fn ends(&self) -> &Ends {
        self.end.ends()
    }

    /// The device that it sends from.
    pub fn device(&self) -> &Device {
        &self.device
    }
}
