//! The sending end.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use invar_core::comm::Request as CoreRequest;
use invar_core::error::Ends;

use crate::call::{Call, Requests};
use crate::raw::{SendBuf, SendEnd};
use crate::request::{Of, UnderWay};
use crate::settings::EndSettings;
use crate::staged::Staged;
use crate::wait::{SEND_SLEEP_MAX, Waiter, Waits, until, wait};
use crate::{Device, Error, MemoryRegion, Request};

/// The sending end of a connection. Dropping it closes the connection.
pub struct SendComm {
    // Its queue pairs end before the regions that they work on.
    end: Box<dyn SendEnd>,
    under_way: UnderWay<1>,
    staged: Staged,
    waiter: Waiter,
    /// The requests of calls that gave up. Later calls end them.
    abandoned: Vec<Request>,
    device: Device,
}

impl SendComm {
    pub(crate) fn new(end: Box<dyn SendEnd>, device: Device, settings: &EndSettings) -> Self {
        SendComm {
            end,
            under_way: UnderWay::new(CoreRequest::INDEX_END),
            staged: Staged::new(settings.staging),
            waiter: Waiter::new(&device, settings, SEND_SLEEP_MAX),
            abandoned: Vec::new(),
            device,
        }
    }

    /// Starts to send bytes `range` of `region` to the peer's receive for `tag`.
    ///
    /// Returns `None` if the peer has not posted a receive for `tag`, or if too many requests are under
    /// way: call again. A send into a grouped receive starts once all buffers of the group have their
    /// message.
    ///
    /// A send of staged GPU memory may start before the peer's receive. Later sends of staged memory
    /// then wait behind it.
    ///
    /// Over TCP, bytes move only while a request of this comm is tested. Test before the program waits
    /// for anything that the peer does with the bytes.
    ///
    /// # Errors
    /// The range is not within the region, the region is of another device, or the message is longer
    /// than its receive. After these errors the comm still works. After any other error the connection
    /// is lost.
    pub fn isend(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        let (addr, len) = region.locate(&self.device, &range)?;
        if !self.abandoned.is_empty() {
            self.end_abandoned();
        }
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

    /// Returns how many bytes a send has sent, or `None` while the send is under way. The request is
    /// over once this returns a number.
    ///
    /// # Errors
    /// The request is over already or is of another comm, or the connection is lost.
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

    /// Waits until a send is done, at most `timeout`. Returns how many bytes it has sent.
    ///
    /// # Errors
    /// A timeout, after which the send is still under way; or an error of [`SendComm::test`].
    pub fn wait(&mut self, request: &Request, timeout: Duration) -> Result<usize, Error> {
        wait(self, "a send", timeout, |comm| comm.test(request))
    }

    /// Waits like [`SendComm::wait`], on any executor and without a deadline.
    ///
    /// The future may be dropped at any time. The send goes on, and the request may be waited for again.
    ///
    /// # Errors
    /// See [`SendComm::test`].
    pub async fn wait_async(&mut self, request: &Request) -> Result<usize, Error> {
        until(self, |comm| comm.test(request)).await
    }

    /// Starts a send like [`SendComm::isend`], and waits until that succeeds: on any executor and without a
    /// deadline. [`SendComm::wait_async`] waits for the send.
    ///
    /// If the future is dropped, the send does not start. If all places for requests are taken, nobody can
    /// free one while this future waits: test requests before.
    ///
    /// # Errors
    /// See [`SendComm::isend`].
    pub async fn isend_async(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
    ) -> Result<Request, Error> {
        until(self, |comm| comm.isend(region, range.clone(), tag)).await
    }

    /// Sends bytes `range` of `region`: waits for the peer's receive for `tag` and until the send is
    /// done, together at most `timeout`. Returns how many bytes it has sent.
    ///
    /// # Errors
    /// A timeout, after which the send may still be under way and takes the bytes that are there then; or an
    /// error of [`SendComm::isend`] or [`SendComm::test`].
    pub fn send(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
        timeout: Duration,
    ) -> Result<usize, Error> {
        let mut call = Call::new(self);
        wait(&mut call, "a send", timeout, |call| {
            call.poll(|comm| comm.isend(region, range.clone(), tag), SendComm::test)
        })
    }

    /// Sends like [`SendComm::send`], on any executor and without a deadline.
    ///
    /// If the future is dropped, a send that has not started does not start. A send that has started goes on
    /// with the bytes that are in the region: do not write them before the peer has the message.
    ///
    /// # Errors
    /// See [`SendComm::isend`] and [`SendComm::test`].
    pub async fn send_async(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
    ) -> Result<usize, Error> {
        let mut call = Call::new(self);
        until(&mut call, |call| {
            call.poll(|comm| comm.isend(region, range.clone(), tag), SendComm::test)
        })
        .await
    }

    /// Arms a descriptor for a program that has an event loop of its own. The descriptor becomes readable
    /// when a request of this comm may be done, or when a call that returned `None` may succeed. Test once
    /// more after this call, and wait only then. Every call returns the same descriptor, so an event loop can
    /// keep its number or a duplicate.
    ///
    /// Returns `None` if the device has no descriptor that tells all this. An RDMA device has none, because no
    /// completion tells of a receive that the peer posts. Also test every half second, because the
    /// descriptor does not tell of every failure.
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.arm_waiter();
        self.waiter.descriptor()
    }

    /// The devices, addresses and queue pairs of both ends of the connection.
    pub fn ends(&self) -> Ends {
        self.end.ends()
    }

    /// The device that this end sends from.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Waits for SendComm {
    fn waiter(&mut self) -> &mut Waiter {
        &mut self.waiter
    }

    fn names(&self) -> Ends {
        self.end.ends()
    }

    fn arm_waiter(&mut self) {
        self.waiter.arm(&self.staged, |interest| self.end.arm(interest));
    }

    fn park(&mut self, is_asleep: bool) {
        self.end.park(is_asleep);
    }
}

impl Requests for SendComm {
    fn abandoned(&mut self) -> &mut Vec<Request> {
        &mut self.abandoned
    }

    fn is_under_way(&mut self, request: &Request) -> bool {
        matches!(self.test(request), Ok(None))
    }
}
