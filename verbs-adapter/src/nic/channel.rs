//! Completion channels: the descriptors that wake a program that sleeps until a completion comes.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::context::Context;
use crate::library::{AckCqEvents, DestroyCompChannel, GetCqEvent};
use crate::sys::provider::{ReqNotifyCq, ibv_comp_channel};
use crate::sys::*;

/// The channel of one completion queue. Dropping it destroys the channel: drop the queue before.
pub(super) struct Channel {
    raw: NonNull<ibv_comp_channel>,
    fd: c_int,
    destroy: DestroyCompChannel,
    get_event: GetCqEvent,
    ack_events: AckCqEvents,
    req_notify: ReqNotifyCq,
}

impl Channel {
    /// Creates a channel (`ibv_create_comp_channel`). Returns `None` if libibverbs or the driver has no
    /// completion events, or if the process has no descriptor left.
    pub(super) fn create(context: &Context) -> Option<Self> {
        let library = context.library();
        let (create, destroy) = (library.create_comp_channel?, library.destroy_comp_channel?);
        let (get_event, ack_events) = (library.get_cq_event?, library.ack_cq_events?);
        // SAFETY: The context is open.
        let req_notify = unsafe { (*context.raw()).ops.req_notify_cq }?;
        // SAFETY: The context is open.
        let Some(raw) = NonNull::new(unsafe { create(context.raw()) }) else {
            let error = io::Error::last_os_error();
            log::info!("{}: ibv_create_comp_channel: {error}", context.opened().name());
            return None;
        };
        // SAFETY: The channel has just been created.
        let fd = unsafe { (*raw.as_ptr()).fd };
        let channel = Channel { raw, fd, destroy, get_event, ack_events, req_notify };
        // SAFETY: The descriptor stays open as long as the channel.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = fcntl_getfl(descriptor).ok()?;
        fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).ok()?;
        Some(channel)
    }

    /// The channel as `ibv_create_cq` takes it.
    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    /// Lets the next completion make the returned descriptor readable. Returns `None` if the device gives no
    /// events any more.
    ///
    /// # Safety
    /// `cq` exists, and is the only queue of this channel.
    pub(super) unsafe fn arm(&self, cq: NonNull<ibv_cq>) -> Option<c_int> {
        let mut events = 0;
        // Each event is the answer to one earlier request for an event, so there are few.
        let end = loop {
            let (mut of, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: The channel exists, and both places take a result.
            match unsafe { (self.get_event)(self.raw(), &mut of, &mut context) } {
                0 => events += 1,
                _ => break io::Error::last_os_error(),
            }
        };
        if events > 0 {
            // SAFETY: The queue exists. All events of the channel are the queue's, and each is acknowledged
            // once: otherwise `ibv_destroy_cq` would wait for ever.
            unsafe { (self.ack_events)(cq.as_ptr(), events) };
        }
        // The descriptor of a device that is gone is always readable. It would let nobody sleep.
        if end.kind() != io::ErrorKind::WouldBlock {
            return None;
        }
        // SAFETY: The queue exists, and has a channel.
        let rc = unsafe { (self.req_notify)(cq.as_ptr(), 0) };
        (rc == 0).then_some(self.fd)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: The channel was created and is destroyed once. Its queue is gone.
        let rc = unsafe { (self.destroy)(self.raw()) };
        if rc != 0 {
            log::warn!("ibv_destroy_comp_channel: {}", io::Error::from_raw_os_error(rc.abs()));
        }
    }
}
