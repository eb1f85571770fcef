//! The receiving end.

use std::ops::{Deref, DerefMut, Range};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use invar_core::error::{Ends, Error as CoreError};
use invar_core::fifo::DEPTH_MAX;
use invar_cuda::flush::Method;

use crate::call::{Call, Requests};
use crate::error::Kind;
use crate::raw::{self, FlushBuf, RECVS_MAX, RecvBuf, RecvEnd};
use crate::request::{Of, UnderWay};
use crate::settings::EndSettings;
use crate::staged::Staged;
use crate::wait::{RECV_SLEEP_MAX, Waiter, Waits, until, wait};
use crate::{Device, Error, MemoryRegion, Request};

/// The receiving end of a connection.
///
/// Dropping this end closes the connection. The sender learns which messages have arrived, and which
/// of its sends found no receive. Dropping takes up to 100 ms if the sender has not yet heard of all
/// posted receives.
pub struct RecvComm {
    // Its queue pairs end before the regions that they work on.
    end: ClosedOnDrop,
    receives: UnderWay<RECVS_MAX>,
    flushes: UnderWay<1>,
    staged: Staged,
    waiter: Waiter,
    /// The requests of calls that gave up. Later calls end them.
    abandoned: Vec<Request>,
    device: Device,
}

/// The result of a receive or a flush that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    nreqs: u8,
    sizes: [usize; RECVS_MAX],
}

impl Received {
    /// The received bytes of each buffer, in the order of the receive's buffers. A flush has none.
    ///
    /// On the wire of NCCL 2.14 the sizes of a grouped receive say only whether a message was empty: 0
    /// or 1.
    pub fn sizes(&self) -> &[usize] {
        self.sizes.get(..usize::from(self.nreqs)).unwrap_or(&self.sizes)
    }
}

/// The state of a flush after [`RecvComm::iflush`].
#[derive(Debug)]
#[must_use]
pub enum Flush {
    /// The data can be used at once: flushing is off, or no range has bytes.
    NotNeeded,
    /// The flush is under way. Test the request.
    Started(Request),
    /// Too many requests are under way. Call again.
    Busy,
}

impl RecvComm {
    pub(crate) fn new(end: Box<dyn RecvEnd>, device: Device, settings: &EndSettings) -> Self {
        let (receives, flushes) = (UnderWay::new(DEPTH_MAX), UnderWay::new(DEPTH_MAX));
        let (end, staged) = (ClosedOnDrop(Some(end)), Staged::new(settings.staging));
        let waiter = Waiter::new(&device, settings, RECV_SLEEP_MAX);
        RecvComm { end, receives, flushes, staged, waiter, abandoned: Vec::new(), device }
    }

    /// Posts a receive of 1 to 8 buffers, and tells the peer. A buffer is a region, a range of its
    /// bytes, and the tag of the message that it is for.
    ///
    /// Returns `None` if too many requests are under way: call again.
    ///
    /// # Errors
    /// A range is not within its region, a region is of another device, or the number of buffers is
    /// wrong. After these errors the comm still works. After any other error the connection is lost. If the peer
    /// has closed it, the messages for earlier receives may have arrived: test those receives.
    pub fn irecv(
        &mut self,
        bufs: &[(&MemoryRegion, Range<usize>, u32)],
    ) -> Result<Option<Request>, Error> {
        if !self.abandoned.is_empty() {
            self.end_abandoned();
        }
        let mut row = [RecvBuf::default(); RECVS_MAX];
        if bufs.len() > row.len() {
            return Err(self.end.failed(CoreError::Argument("a receive takes 1 to 8 buffers")));
        }
        for (slot, (region, range, tag)) in row.iter_mut().zip(bufs) {
            let (addr, len) = region.locate(&self.device, range)?;
            *slot = RecvBuf { addr, len, tag: *tag, rkey: region.rkey() };
        }
        self.staged.advance(&mut *self.end)?;
        if bufs.iter().any(|(region, ..)| region.staged().is_some()) {
            return self.irecv_staged(bufs);
        }
        // The peer uses receives in the order in which this end posts them. So no other receive may be posted
        // between the pieces of a staged receive.
        if self.staged.is_behind() || bufs.iter().any(|(.., tag)| self.staged.has(*tag)) {
            return Ok(None);
        }
        // SAFETY: the regions, whose bytes are only ever accessed by atomic operations, are held
        // until the request is done or the end, which goes first, is dropped.
        match unsafe { self.end.irecv(&row[..bufs.len()]) } {
            Ok(Some(request)) => {
                self.staged.watch(&request, bufs);
                Ok(Some(self.receives.hold(request, bufs.iter().map(|(region, ..)| *region))))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(self.end.failed(error)),
        }
    }

    fn irecv_staged(
        &mut self,
        bufs: &[(&MemoryRegion, Range<usize>, u32)],
    ) -> Result<Option<Request>, Error> {
        let [(region, range, tag)] = bufs else {
            let text = "GPU memory that the device does not reach takes a receive of its own";
            return Err(Kind::Usage(text.to_owned()).into());
        };
        let Some(memory) = region.staged() else { return Ok(None) };
        let number = self.staged.begin(&self.device, (region, memory), range, *tag)?;
        self.staged.advance(&mut *self.end)?;
        Ok(number.map(|number| self.receives.staged(number)))
    }

    /// Makes received bytes visible to the GPU that has the memory.
    ///
    /// [`cuda::flush`](crate::cuda::flush) says what a GPU needs: nothing, a call of its driver, or a
    /// read through the NIC. One read of one byte serves all ranges. The NIC reads only if
    /// [`Settings::flush`](crate::Settings::flush) is on; then it also reads host memory, if there is no
    /// GPU memory among the ranges.
    ///
    /// # Errors
    /// A range is not within its region, a region is of another device, ranges are of several GPUs that need a
    /// read, the GPU's driver fails, or the connection is lost. A peer that has closed is no error: bytes that it
    /// sent before can be flushed.
    pub fn iflush(&mut self, bufs: &[(&MemoryRegion, Range<usize>)]) -> Result<Flush, Error> {
        let (mut of_gpu, mut of_host) = (None, None);
        let (mut called, mut read): (Option<u32>, Option<u32>) = (None, None);
        for (region, range) in bufs.iter().filter(|(_, range)| !range.is_empty()) {
            let (addr, len) = region.locate(&self.device, range)?;
            let buf = (*region, FlushBuf { addr, len, rkey: region.rkey() });
            match region.flush() {
                Some((Method::None, _)) => {}
                Some((Method::Driver, gpu)) => {
                    if called.replace(gpu.info().ordinal) != Some(gpu.info().ordinal) {
                        gpu.flush_writes().map_err(|error| Kind::Gpu(error.into()))?;
                    }
                }
                Some((Method::Read, gpu)) => {
                    let ordinal = gpu.info().ordinal;
                    if read.replace(ordinal).is_some_and(|other| other != ordinal) {
                        let text =
                            "one flush is for the memory of one GPU: flush that of each by itself";
                        return Err(Kind::Usage(text.to_owned()).into());
                    }
                    of_gpu = Some(buf);
                }
                None => of_host = Some(buf),
            }
        }
        let Some((region, buf)) = of_gpu.or(of_host) else { return Ok(Flush::NotNeeded) };
        // SAFETY: as in `irecv`.
        match unsafe { self.end.iflush(&[buf]) } {
            Ok(raw::Flush::NotNeeded) => Ok(Flush::NotNeeded),
            Ok(raw::Flush::Busy) => Ok(Flush::Busy),
            Ok(raw::Flush::Started(request)) => {
                Ok(Flush::Started(self.flushes.hold(request, [region].into_iter())))
            }
            Err(error) => Err(self.end.failed(error)),
        }
    }

    /// Returns the result of a receive or a flush, or `None` while it is under way. The request is over
    /// once this returns a result.
    ///
    /// # Errors
    /// The request is over already or is of another comm, or the connection is lost.
    pub fn test(&mut self, request: &Request) -> Result<Option<Received>, Error> {
        let is_receive = self.receives.is_ours(request);
        if !is_receive && !self.flushes.is_ours(request) {
            return Err(Error::foreign_request());
        }
        self.staged.advance(&mut *self.end)?;
        let request = match &request.of {
            Of::End(request) => request,
            Of::Staged(number) => {
                let size = self.staged.take(*number)?;
                return Ok(size.map(|size| {
                    let mut sizes = [0; RECVS_MAX];
                    sizes[0] = size;
                    Received { nreqs: 1, sizes }
                }));
            }
        };
        let mut sizes = [0_u32; RECVS_MAX];
        // SAFETY: no receive has more buffers.
        match unsafe { self.end.test(request, sizes.as_mut_ptr()) } {
            Ok(Some(nreqs)) => {
                let received =
                    Received { nreqs: nreqs as u8, sizes: sizes.map(|size| size as usize) };
                if is_receive {
                    self.receives.release(request);
                    self.staged.came(request, received.sizes(), &*self.end)?;
                } else {
                    self.flushes.release(request);
                }
                Ok(Some(received))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(self.end.failed(error)),
        }
    }

    /// Tests a receive of one buffer, which has one size.
    fn test_single(&mut self, request: &Request) -> Result<Option<usize>, Error> {
        let received = self.test(request)?;
        Ok(received.map(|received| received.sizes().first().copied().unwrap_or(0)))
    }

    /// Waits until a receive or a flush is done, at most `timeout`.
    ///
    /// # Errors
    /// A timeout, after which the request is still under way; or an error of [`RecvComm::test`].
    pub fn wait(&mut self, request: &Request, timeout: Duration) -> Result<Received, Error> {
        let what = if self.flushes.is_ours(request) { "a flush" } else { "a receive" };
        wait(self, what, timeout, |comm| comm.test(request))
    }

    /// Waits like [`RecvComm::wait`], on any executor and without a deadline.
    ///
    /// The future may be dropped at any time. The receive stays posted, and the request may be waited for
    /// again.
    ///
    /// # Errors
    /// See [`RecvComm::test`].
    pub async fn wait_async(&mut self, request: &Request) -> Result<Received, Error> {
        until(self, |comm| comm.test(request)).await
    }

    /// Posts a receive like [`RecvComm::irecv`], and waits until that succeeds: on any executor and without a
    /// deadline. [`RecvComm::wait_async`] waits for the messages.
    ///
    /// If the future is dropped, no receive is posted. If all places for requests are taken, nobody can free
    /// one while this future waits: test requests before.
    ///
    /// # Errors
    /// See [`RecvComm::irecv`].
    pub async fn irecv_async(
        &mut self,
        bufs: &[(&MemoryRegion, Range<usize>, u32)],
    ) -> Result<Request, Error> {
        until(self, |comm| comm.irecv(bufs)).await
    }

    /// Receives one message with `tag` into bytes `range` of `region`, and waits at most `timeout`.
    /// Returns the message's length in bytes.
    ///
    /// # Errors
    /// A timeout, after which the receive may still be posted and take a message; or an error of
    /// [`RecvComm::irecv`] or [`RecvComm::test`].
    pub fn recv(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
        timeout: Duration,
    ) -> Result<usize, Error> {
        let mut call = Call::new(self);
        wait(&mut call, "a receive", timeout, |call| {
            call.poll(|comm| comm.irecv(&[(region, range.clone(), tag)]), RecvComm::test_single)
        })
    }

    /// Receives like [`RecvComm::recv`], on any executor and without a deadline.
    ///
    /// If the future is dropped, its receive stays posted and takes the next message with `tag`. That message
    /// is lost. A program that may give up the wait calls [`RecvComm::irecv`] and [`RecvComm::wait_async`]
    /// instead, and loses no message.
    ///
    /// # Errors
    /// See [`RecvComm::irecv`] and [`RecvComm::test`].
    pub async fn recv_async(
        &mut self,
        region: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
    ) -> Result<usize, Error> {
        let mut call = Call::new(self);
        until(&mut call, |call| {
            call.poll(|comm| comm.irecv(&[(region, range.clone(), tag)]), RecvComm::test_single)
        })
        .await
    }

    /// Arms a descriptor for a program that has an event loop of its own. The descriptor becomes readable
    /// when a request of this comm may be done, or when a call that returned `None` may succeed. Test once
    /// more after this call, and wait only then. Every call returns the same descriptor, so an event loop can
    /// keep its number or a duplicate.
    ///
    /// Returns `None` if the device has no descriptor that tells all this: an RDMA device without completion
    /// channels, for example. Also test every half second, because the descriptor does not tell of every failure.
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.arm_waiter();
        self.waiter.descriptor()
    }

    /// The devices, addresses and queue pairs of both ends of the connection.
    pub fn ends(&self) -> Ends {
        self.end.ends()
    }

    /// The device that this end receives on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Waits for RecvComm {
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

impl Requests for RecvComm {
    fn abandoned(&mut self) -> &mut Vec<Request> {
        &mut self.abandoned
    }

    fn is_under_way(&mut self, request: &Request) -> bool {
        matches!(self.test(request), Ok(None))
    }
}

/// An end that closes its connection when it is dropped.
struct ClosedOnDrop(Option<Box<dyn RecvEnd>>);

impl Deref for ClosedOnDrop {
    type Target = dyn RecvEnd;

    fn deref(&self) -> &(dyn RecvEnd + 'static) {
        self.0.as_deref().expect("there until it is dropped")
    }
}

impl DerefMut for ClosedOnDrop {
    fn deref_mut(&mut self) -> &mut (dyn RecvEnd + 'static) {
        self.0.as_deref_mut().expect("there until it is dropped")
    }
}

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end.close();
        }
    }
}
