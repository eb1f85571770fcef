//! Open devices: their operations, and their asynchronous events.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::{io, mem, process, ptr};

use invar_verbs::sys::provider::ibv_device;
use invar_verbs::sys::{VERBS_ABI_IS_EXTENDED, ibv_async_event, ibv_context, verbs_context};

use crate::device::{self, Context};
use crate::events::{EventQueue, Raised};
use crate::object;
use crate::port_watch::{PORT, PortWatch};
use crate::queue_pair::Qp;
use crate::shared_receive::Srq;
use crate::unacknowledged::Unacknowledged;
use crate::{builder, completion, errno, post, query, reader, shared_receive, window};

versions! {
    "IBVERBS_1.1":
        ibv_ack_async_event ibv_close_device ibv_get_async_event ibv_open_device;
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(of: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller gives a device of the list.
    let opened = unsafe { device::device(of) };
    let open = || Ok::<_, io::Error>((EventQueue::new()?, opened.open()?));
    let (events, nic) = match open() {
        Ok(open) => open,
        Err(error) => {
            // The number alone tells too little, such as which address is in use.
            errno::tell(format_args!("{error}"));
            return errno::null(error.raw_os_error().unwrap_or(libc::EADDRINUSE));
        }
    };
    let base = operations(of, events.fd());
    let events = Arc::new(events);
    let port = PortWatch::start(nic.clone(), opened.ip(), Arc::clone(&events)).ok();
    let process = process::id();
    object::give(Context { base, device: opened, process, nic, events, _port: port })
}

fn operations(of: *mut ibv_device, async_fd: RawFd) -> verbs_context {
    // SAFETY: the structure has pointers, functions that may be absent, and integers, for which zero is
    // valid.
    let mut base: verbs_context = unsafe { mem::zeroed() };
    base.sz = size_of::<verbs_context>();
    base.query_port = Some(query::query_port);
    base.query_device_ex = Some(device::query_device_ex);
    base.create_cq_ex = Some(reader::create_cq_ex);
    base.create_qp_ex = Some(builder::create_qp_ex);
    let context = &mut base.context;
    context.device = of.cast();
    // Programs duplicate the descriptor of commands to share a device. Nothing is read from this one.
    context.cmd_fd = async_fd;
    context.async_fd = async_fd;
    context.num_comp_vectors = 1;
    context.ops.alloc_mw = Some(window::alloc_mw);
    context.ops.bind_mw = Some(window::bind_mw);
    context.ops.dealloc_mw = Some(window::dealloc_mw);
    context.ops.poll_cq = Some(completion::poll_cq);
    context.ops.req_notify_cq = Some(completion::req_notify_cq);
    context.ops.post_srq_recv = Some(shared_receive::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.abi_compat = ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    base
}

/// Closes a context. Objects that the program left keep working until it destroys them.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let closed = object::take::<Context>(context, |_| Ok(()));
    errno::status(closed.map(|context| context.device.close(context.process)))
}

/// Waits for an asynchronous event.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    let events = object::get::<Context>(context).map(|context| Arc::clone(&context.events));
    let living = |raised: Raised| {
        let may_take = raised.element == PORT
            || with_unacknowledged(raised.element, Unacknowledged::note) == Some(true);
        may_take.then_some(raised)
    };
    let next = events.and_then(|events| events.next(living));
    errno::or_minus_one(next.map(|raised| {
        // SAFETY: the structure has a union of a pointer and an integer, and an integer. Zero is valid for
        // all of them.
        let mut made: ibv_async_event = unsafe { mem::zeroed() };
        made.event_type = raised.event;
        made.element.qp = ptr::with_exposed_provenance_mut(raised.element);
        // SAFETY: the caller gives a place for the event.
        unsafe { event.write(made) };
    }))
}

/// Lets the object of the event end, if the program destroys it. An event of a port has no such object.
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller gives an event that it took.
    let element = unsafe { (*event).element.qp };
    with_unacknowledged(element.addr(), |events| events.acknowledge(1));
}

/// Calls `call` with the events of the object at an address; `None` if no queue pair or shared receive queue
/// lives there.
fn with_unacknowledged<R>(element: usize, call: impl Fn(&Unacknowledged) -> R) -> Option<R> {
    let base = ptr::with_exposed_provenance_mut::<c_void>(element);
    object::with(base.cast(), |qp: &Qp| call(&qp.unacknowledged))
        .or_else(|_| object::with(base.cast(), |srq: &Srq| call(&srq.unacknowledged)))
        .ok()
}
