//! A scripted libibverbs, which records its calls, for tests of conditions that real devices cannot be made
//! to produce.
//!
//! The null libibverbs (`tests/null-verbs`) is another thing: a device that works, behind the loader. It
//! refuses what hardware refuses, and a process has one. This one accepts any call, and each test makes it
//! refuse calls, lack functions and raise events. It fills this crate's private table of functions.

mod libraries;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::{PipeWriter, Read, Write};
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use invar_test_wait::until;

use crate::sys::provider::{ibv_ah, ibv_comp_channel};
use crate::sys::*;
pub(crate) use libraries::*;

/// Number of completion vectors of a device.
pub(crate) const VECTORS: c_int = 3;

/// The fake's state; only one test at a time holds it.
pub(crate) struct Fake {
    _alone: MutexGuard<'static, ()>,
}

/// The settings of a test, and the calls that the test reads.
#[derive(Default)]
struct State {
    /// The recorded calls, in order.
    calls: Vec<&'static str>,
    /// The `wr_id`s of posted requests.
    posted: Vec<u64>,
    /// The `wr_id` of the request to refuse, and the error to return.
    refused: Option<(u64, c_int)>,
    /// Access flags of each registration, with the call that made it.
    registered: Vec<(&'static str, u32)>,
    /// Attributes and mask of each state transition of a queue pair.
    moves: Vec<(ibv_qp_attr, c_int)>,
    /// The return code of the next state transitions.
    move_rc: c_int,
    /// Whether the peer of an address handle answers, once that is known.
    answers: Option<bool>,
    /// Number of devices, and number of ports per device.
    ports: (usize, u8),
    /// Claimed size in bytes of the `verbs_context` around a context; 0 means that there is none.
    extended_bytes: usize,
    /// The source of the open device's events: the address of each in turn.
    events: Option<PipeWriter>,
    /// The source of the completion channel's events: a byte for each.
    completions: Option<PipeWriter>,
    /// The completion vector of each completion queue.
    vectors: Vec<c_int>,
}

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state() -> MutexGuard<'static, State> {
    static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    lock(&STATE)
}

impl Fake {
    /// A fake with one device of two ports.
    pub(crate) fn new() -> Fake {
        Self::with_ports(1, 2)
    }

    /// A fake with so many devices and ports per device.
    pub(crate) fn with_ports(devices: usize, ports: u8) -> Fake {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = lock(&ALONE);
        *state() = State { ports: (devices, ports), ..State::default() };
        Fake { _alone: alone }
    }

    /// A fake whose context is the end of a `verbs_context` of so many bytes, with a link that is faster
    /// than the library's first version could report.
    pub(crate) fn with_extended_context(bytes: usize) -> Fake {
        let fake = Self::new();
        state().extended_bytes = bytes;
        fake
    }

    /// Returns the recorded calls whose order matters.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        state().calls.clone()
    }

    pub(crate) fn registered(&self) -> Vec<(&'static str, u32)> {
        state().registered.clone()
    }

    pub(crate) fn last_move(&self) -> (ibv_qp_attr, c_int) {
        *state().moves.last().unwrap()
    }

    /// Makes state transitions fail with this error number.
    pub(crate) fn refuse_moves(&self, errno: c_int) {
        state().move_rc = errno;
    }

    /// Returns the completion vector of each queue that was created.
    pub(crate) fn vectors(&self) -> Vec<c_int> {
        state().vectors.clone()
    }

    pub(crate) fn posted(&self) -> Vec<u64> {
        state().posted.clone()
    }

    pub(crate) fn refuse(&self, wr_id: u64, errno: c_int) {
        state().refused = Some((wr_id, errno));
    }

    /// Lets the search of an address handle end: the peer answers, or not.
    pub(crate) fn answer(&self, answers: bool) {
        state().answers = Some(answers);
    }

    /// Raises an event on the open device.
    pub(crate) fn raise(&self, element: ibv_async_element, event_type: u32) {
        let event = Box::into_raw(Box::new(ibv_async_event { element, event_type }));
        let bytes = event.expose_provenance().to_ne_bytes();
        state().events.as_mut().unwrap().write_all(&bytes).unwrap();
    }

    /// Raises an event of the last completion channel.
    pub(crate) fn complete(&self) {
        state().completions.as_mut().unwrap().write_all(&[0]).unwrap();
    }

    /// Ends the events of the last completion channel, as the end of a device does.
    pub(crate) fn unplug(&self) {
        state().completions = None;
    }
}

extern "C" fn get_device_list(len: *mut c_int) -> *mut *mut ibv_device {
    let (devices, _) = state().ports;
    // SAFETY: `len` points to the caller's number.
    unsafe { *len = devices as c_int };
    // Devices are plain numbers, and null ends the list.
    let list = (1..=devices).chain([0]).map(ptr::without_provenance_mut::<ibv_device>);
    Box::into_raw(list.collect::<Box<[_]>>()).cast()
}

extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `get_device_list` made the list, and nobody else holds it any more.
    unsafe {
        let len = (0..).take_while(|at: &usize| !(*list.add(*at)).is_null()).count() + 1;
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)));
    }
}

extern "C" fn open_device(_: *mut ibv_device) -> *mut ibv_context {
    let (reader, writer) = std::io::pipe().unwrap();
    state().events = Some(writer);
    // SAFETY: The type consists of pointers, optional functions and integers, for which all zeros is a
    // valid value.
    let mut extended: verbs_context = unsafe { std::mem::zeroed() };
    extended.sz = state().extended_bytes;
    extended.query_port = Some(extended_query_port);
    let context = &mut extended.context;
    if extended.sz > 0 {
        context.abi_compat = ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    }
    context.async_fd = reader.into_raw_fd();
    context.num_comp_vectors = VECTORS;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    // SAFETY: The pointer goes to a field of the leaked box.
    unsafe { &raw mut (*Box::into_raw(Box::new(extended))).context }
}

extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    state().calls.push("close_device");
    let extended = context.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: `open_device` made the box, and nobody else holds it any more.
    let extended = unsafe { Box::from_raw(extended.cast::<verbs_context>()) };
    // SAFETY: `open_device` made the descriptor, and nobody else closes it.
    drop(unsafe { File::from_raw_fd(extended.context.async_fd) });
    0
}

extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: The context is open, and `ManuallyDrop` leaves the descriptor with the context.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd((*context).async_fd) });
    let mut bytes = [0; size_of::<usize>()];
    if file.read_exact(&mut bytes).is_err() {
        return -1;
    }
    let raised = ptr::with_exposed_provenance_mut(usize::from_ne_bytes(bytes));
    // SAFETY: `Fake::raise` made the box and wrote its address once. The caller gives room for an event.
    unsafe { *event = *Box::<ibv_async_event>::from_raw(raised) };
    0
}

extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: The caller gives room for the attributes.
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
    // SAFETY: The caller gives room for the attributes.
    unsafe { (*attr).active_speed_ex = 256 };
    query_port(context, port_num, attr)
}

extern "C" fn query_gid(_: *mut ibv_context, _: u8, _: c_int, gid: *mut ibv_gid) -> c_int {
    // SAFETY: The caller gives room for a GID.
    unsafe { (*gid).raw = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] };
    0
}

/// Makes an object whose leading fields are `T`'s; all fields are 0 except those that `fill` sets.
fn object<T>(fill: impl FnOnce(&mut T)) -> *mut T {
    // SAFETY: `T` consists of pointers and integers, for which all zeros is a valid value.
    let mut object: Box<T> = Box::new(unsafe { std::mem::zeroed() });
    fill(&mut object);
    Box::into_raw(object)
}

/// Destroys an object that `object` made.
fn end<T>(object: *mut T, call: &'static str) -> c_int {
    state().calls.push(call);
    // SAFETY: `object` made the box, and it is destroyed once.
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
    state().calls.push("reg_mr");
    state().registered.push((call, access));
    object(|mr: &mut ibv_mr| (mr.lkey, mr.rkey) = (7, 8))
}

extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    end(mr, "dereg_mr")
}

extern "C" fn create_cq(
    _: *mut ibv_context,
    _: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    state().vectors.push(vector);
    object(|cq: &mut ibv_cq| (cq.cq_context, cq.channel) = (cq_context, channel.cast()))
}

extern "C" fn create_comp_channel(_: *mut ibv_context) -> *mut ibv_comp_channel {
    let (reader, writer) = std::io::pipe().unwrap();
    state().completions = Some(writer);
    object(|channel: &mut ibv_comp_channel| channel.fd = reader.into_raw_fd())
}

extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: `create_comp_channel` made the descriptor, and nobody else closes it.
    drop(unsafe { File::from_raw_fd((*channel).fd) });
    end(channel, "destroy_comp_channel")
}

extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    // SAFETY: The channel lives, and `ManuallyDrop` leaves the descriptor with the channel.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd((*channel).fd) });
    match file.read(&mut [0]) {
        Ok(1) => 0,
        Ok(_) => {
            // SAFETY: The write goes to this thread's own `errno`.
            unsafe { *libc::__errno_location() = libc::EIO };
            -1
        }
        Err(_) => -1,
    }
}

extern "C" fn ack_cq_events(_: *mut ibv_cq, count: c_uint) {
    (0..count).for_each(|_| state().calls.push("ack_cq_event"));
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: The caller gives a living completion queue.
    assert!(solicited_only == 0 && !unsafe { (*cq).channel }.is_null());
    state().calls.push("req_notify_cq");
    0
}

extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    end(cq, "destroy_cq")
}

extern "C" fn create_ah(_: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: The caller passes valid attributes.
    let ibv_ah_attr { is_global, port_num, .. } = unsafe { *attr };
    assert_eq!((is_global, port_num), (1, 1));
    match until("an answer of the test", || state().answers.take()) {
        true => object(|_| {}),
        false => ptr::null_mut(),
    }
}

extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    end(ah, "destroy_ah")
}

extern "C" fn create_qp(_: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: The caller passes valid attributes.
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
    let mut state = state();
    let refused = state.refused;
    // SAFETY: The caller passes a chain that ends, and room for the refused request.
    unsafe {
        while let Some(request) = wr.as_ref() {
            if let Some((_, errno)) = refused.filter(|(wr_id, _)| *wr_id == request.wr_id) {
                *bad = wr;
                return errno;
            }
            state.posted.push(request.wr_id);
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
