//! A libibverbs of functions in this file, which note what is called, for tests of what real
//! devices cannot be made to do.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::{PipeWriter, Read, Write};
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::library::Library;
use crate::sys::*;

/// What the fake has seen and is told; one test at a time has it.
pub(crate) struct Fake {
    _alone: MutexGuard<'static, ()>,
}

/// What is called, in order.
static CALLS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
/// `wr_id`s of what is posted.
static POSTED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// The `wr_id` that a post refuses, and the error.
static REFUSED: Mutex<Option<(u64, c_int)>> = Mutex::new(None);
/// Access flags of what is registered, by the call that did.
static REGISTERED: Mutex<Vec<(&'static str, u32)>> = Mutex::new(Vec::new());
/// Attributes of the moves of queue pairs, with the mask.
static MOVES: Mutex<Vec<(ibv_qp_attr, c_int)>> = Mutex::new(Vec::new());
/// What the next moves return.
static MOVE_RC: Mutex<c_int> = Mutex::new(0);
/// How many devices there are, and ports of each.
static PORTS: Mutex<(usize, u8)> = Mutex::new((1, 2));
/// Bytes of a `verbs_context` that a context says it is part of; 0: it is not.
static EXTENDED_BYTES: Mutex<usize> = Mutex::new(0);
/// Where events of the open device come from.
static EVENTS: Mutex<Option<PipeWriter>> = Mutex::new(None);

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    pub(crate) fn new() -> Fake {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = lock(&ALONE);
        lock(&CALLS).clear();
        lock(&POSTED).clear();
        lock(&REGISTERED).clear();
        lock(&MOVES).clear();
        *lock(&REFUSED) = None;
        *lock(&MOVE_RC) = 0;
        *lock(&PORTS) = (1, 2);
        *lock(&EXTENDED_BYTES) = 0;
        Fake { _alone: alone }
    }

    /// The same where a context is the end of so many bytes, and a link is faster than the library's
    /// first version could say.
    pub(crate) fn with_extended_context(bytes: usize) -> Fake {
        let fake = Self::new();
        *lock(&EXTENDED_BYTES) = bytes;
        fake
    }

    /// The same with so many devices, of so many ports each; otherwise it is one of two.
    pub(crate) fn with_ports(devices: usize, ports: u8) -> Fake {
        let fake = Self::new();
        *lock(&PORTS) = (devices, ports);
        fake
    }

    /// What has to be called in some order, as it was.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        lock(&CALLS).clone()
    }

    pub(crate) fn registered(&self) -> Vec<(&'static str, u32)> {
        lock(&REGISTERED).clone()
    }

    pub(crate) fn last_move(&self) -> (ibv_qp_attr, c_int) {
        *lock(&MOVES).last().unwrap()
    }

    /// Lets moves fail with this number.
    pub(crate) fn refuse_moves(&self, errno: c_int) {
        *lock(&MOVE_RC) = errno;
    }

    pub(crate) fn posted(&self) -> Vec<u64> {
        lock(&POSTED).clone()
    }

    pub(crate) fn refuse(&self, wr_id: u64, errno: c_int) {
        *lock(&REFUSED) = Some((wr_id, errno));
    }

    /// Raises an event on the open device.
    pub(crate) fn raise(&self, element: ibv_async_element, event_type: u32) {
        // SAFETY: the larger variants of the union fill it.
        let element = unsafe { element.qp }.addr() as u64;
        let mut bytes = element.to_ne_bytes().to_vec();
        bytes.extend(u64::from(event_type).to_ne_bytes());
        lock(&EVENTS).as_mut().unwrap().write_all(&bytes).unwrap();
    }
}

extern "C" fn get_device_list(len: *mut c_int) -> *mut *mut ibv_device {
    let (devices, _) = *lock(&PORTS);
    // SAFETY: the caller's number.
    unsafe { *len = devices as c_int };
    // Devices are only numbers, and null ends the list.
    let list = (1..=devices).chain([0]).map(ptr::without_provenance_mut::<ibv_device>);
    Box::into_raw(list.collect::<Box<[_]>>()).cast()
}

extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: as `get_device_list` made it, and nobody has it any more.
    unsafe {
        let len = (0..).take_while(|at: &usize| !(*list.add(*at)).is_null()).count() + 1;
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)));
    }
}

extern "C" fn open_device(_: *mut ibv_device) -> *mut ibv_context {
    let (reader, writer) = std::io::pipe().unwrap();
    *lock(&EVENTS) = Some(writer);
    // SAFETY: pointers, functions that may be absent, and integers: all zeros is a value.
    let mut extended: verbs_context = unsafe { std::mem::zeroed() };
    extended.sz = *lock(&EXTENDED_BYTES);
    extended.query_port = Some(extended_query_port);
    let context = &mut extended.context;
    if extended.sz > 0 {
        context.abi_compat = ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    }
    context.async_fd = reader.into_raw_fd();
    context.ops.poll_cq = Some(poll_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    // SAFETY: a part of the box.
    unsafe { &raw mut (*Box::into_raw(Box::new(extended))).context }
}

extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    lock(&CALLS).push("close_device");
    let extended = context.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: as `open_device` made it, and nobody has it any more.
    let extended = unsafe { Box::from_raw(extended.cast::<verbs_context>()) };
    // SAFETY: likewise.
    drop(unsafe { File::from_raw_fd(extended.context.async_fd) });
    0
}

extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: an open context, whose descriptor stays its own.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd((*context).async_fd) });
    let mut bytes = [0; 16];
    if file.read_exact(&mut bytes).is_err() {
        return -1;
    }
    let [element, event_type] =
        [0, 8].map(|at| u64::from_ne_bytes(bytes[at..][..8].try_into().unwrap()));
    let qp = ptr::with_exposed_provenance_mut(element as usize);
    // SAFETY: room for an event.
    unsafe {
        *event =
            ibv_async_event { element: ibv_async_element { qp }, event_type: event_type as u32 }
    };
    0
}

extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: room for the attributes.
    let attr = unsafe { &mut *attr };
    (attr.state, attr.link_layer) = (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET);
    (attr.active_mtu, attr.gid_tbl_len, attr.active_width, attr.active_speed) = (5, 1, 2, 32);
    0
}

unsafe extern "C" fn extended_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_bytes: usize,
) -> c_int {
    assert_eq!(attr_bytes, size_of::<ibv_port_attr>());
    // SAFETY: room for the attributes.
    unsafe { (*attr).active_speed_ex = 256 };
    query_port(context, port_num, attr)
}

extern "C" fn query_gid(_: *mut ibv_context, _: u8, _: c_int, gid: *mut ibv_gid) -> c_int {
    // SAFETY: room for a GID.
    unsafe { (*gid).raw = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] };
    0
}

/// An object whose first fields are those of `T`, and are 0 but for what `fill` sets.
fn object<T>(fill: impl FnOnce(&mut T)) -> *mut T {
    // SAFETY: pointers and integers: all zeros is a value.
    let mut object: Box<T> = Box::new(unsafe { std::mem::zeroed() });
    fill(&mut object);
    Box::into_raw(object)
}

/// Ends an object of `object`.
fn end<T>(object: *mut T, call: &'static str) -> c_int {
    lock(&CALLS).push(call);
    // SAFETY: made by `object`, ended once.
    drop(unsafe { Box::from_raw(object) });
    0
}

extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    object(|_| {})
}

extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    end(pd, "dealloc_pd")
}

extern "C" fn reg_mr(_: *mut ibv_pd, _: *mut c_void, _: usize, access: c_int) -> *mut ibv_mr {
    register("ibv_reg_mr", access as u32)
}

extern "C" fn reg_mr_iova2(
    _: *mut ibv_pd,
    addr: *mut c_void,
    _: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    assert_eq!(iova, addr.addr() as u64);
    register("ibv_reg_mr_iova2", access)
}

fn register(call: &'static str, access: u32) -> *mut ibv_mr {
    lock(&CALLS).push("reg_mr");
    lock(&REGISTERED).push((call, access));
    object(|mr: &mut ibv_mr| (mr.lkey, mr.rkey) = (7, 8))
}

extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    end(mr, "dereg_mr")
}

extern "C" fn create_cq(
    _: *mut ibv_context,
    _: c_int,
    cq_context: *mut c_void,
    _: *mut c_void,
    _: c_int,
) -> *mut ibv_cq {
    object(|cq: &mut ibv_cq| cq.cq_context = cq_context)
}

extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    end(cq, "destroy_cq")
}

extern "C" fn create_qp(_: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: attributes that are there.
    let qp_context = unsafe { (*init).qp_context };
    object(|qp: &mut ibv_qp| (qp.qp_context, qp.qp_num) = (qp_context, 0x11))
}

extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    end(qp, "destroy_qp")
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -1
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let refused = *lock(&REFUSED);
    // SAFETY: a chain, and room to name one of it.
    unsafe {
        while let Some(request) = wr.as_ref() {
            if let Some((_, errno)) = refused.filter(|(wr_id, _)| *wr_id == request.wr_id) {
                *bad = wr;
                return errno;
            }
            lock(&POSTED).push(request.wr_id);
            wr = request.next;
        }
    }
    0
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    libc::ENOMEM
}

extern "C" fn name(device: *mut ibv_device) -> *const c_char {
    [c"fake0", c"fake1", c"fake2"][device.addr() - 1].as_ptr()
}

extern "C" fn event_text(event_type: u32) -> *const c_char {
    match event_type {
        IBV_EVENT_QP_FATAL => c"QP fatal".as_ptr(),
        IBV_EVENT_CQ_ERR => c"CQ error".as_ptr(),
        IBV_EVENT_DEVICE_FATAL => c"device fatal".as_ptr(),
        _ => c"other".as_ptr(),
    }
}

/// The library: an old one, without anything that is optional.
pub(crate) static LIBRARY: Library = OLD;

/// The same with what allows relaxed ordering.
pub(crate) static WITH_IOVA2: Library = Library { reg_mr_iova2: Some(reg_mr_iova2), ..OLD };

/// The same where queue pairs are always in ERR, and say so.
pub(crate) static WITH_STATE: Library = Library { query_qp: Some(query_qp), ..OLD };

unsafe extern "C" fn query_qp(
    _: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: room for the attributes.
    unsafe { (*attr).qp_state = IBV_QPS_ERR };
    0
}

/// The least that there may be: transfers need no more.
pub(crate) static BARE: Library = Library {
    get_async_event: None,
    ack_async_event: None,
    event_type_str: None,
    fork_init: None,
    ..OLD
};

/// One that is not made ready yet.
pub(crate) fn just_loaded() -> Library {
    OLD
}

/// The same with a driver of ECE, which takes offers of its own vendor.
pub(crate) static WITH_ECE: Library =
    Library { query_ece: Some(query_ece), set_ece: Some(set_ece), ..OLD };

/// What the driver offers.
pub(crate) const ECE: ibv_ece = ibv_ece { vendor_id: 0x15b3, options: 5, comp_mask: 0 };

unsafe extern "C" fn query_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: room for it.
    unsafe { ece.write(ECE) };
    0
}

unsafe extern "C" fn set_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's.
    let ece = unsafe { *ece };
    if ece.vendor_id != ECE.vendor_id {
        return libc::EINVAL;
    }
    lock(&POSTED).push(ece.options.into());
    0
}

const OLD: Library = {
    extern "C" fn ack_async_event(_: *mut ibv_async_event) {}
    extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        // SAFETY: room for the attributes.
        unsafe { (*attr).phys_port_cnt = lock(&PORTS).1 };
        0
    }
    extern "C" fn modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
        // SAFETY: attributes that are there.
        lock(&MOVES).push((unsafe { *attr }, mask));
        *lock(&MOVE_RC)
    }
    extern "C" fn fork_init() -> c_int {
        lock(&CALLS).push("fork_init");
        0
    }
    Library {
        get_device_list,
        free_device_list,
        get_device_name: name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        destroy_qp,
        get_async_event: Some(get_async_event),
        ack_async_event: Some(ack_async_event),
        event_type_str: Some(event_text),
        fork_init: Some(fork_init),
        query_qp: None,
        reg_mr_iova2: None,
        query_ece: None,
        set_ece: None,
        query_gid_ex: None,
        reg_dmabuf_mr: None,
        query_port_speed: None,
    }
};
