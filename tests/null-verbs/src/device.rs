//! Devices, their ports, and the events that they never have.

use std::ffi::{CString, c_char, c_int};
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::{mem, ptr};

use invar_verbs::sys::*;

use crate::SETTINGS;
use crate::data_path::{poll_cq, post_recv, post_send};

struct Device {
    number: usize,
    name: CString,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let device = |number| {
        let name = CString::new(format!("null{number}")).expect("no NUL");
        Device { number, name }
    };
    (0..SETTINGS.devices).map(device).collect()
});

/// Bytes of a [`Context`] before what libibverbs gives out of it.
const BEFORE_CONTEXT: usize = mem::offset_of!(Context, base.context);

/// An open device.
#[repr(C)]
struct Context {
    base: verbs_context,
    events: PipeReader,
    /// Keeps the other end open: nothing is to be read there, and no end either.
    _no_events: PipeWriter,
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(len: *mut c_int) -> *mut *mut ibv_device {
    let pointer = |device: &Device| ptr::from_ref(device).cast_mut().cast::<ibv_device>();
    let null = [ptr::null_mut()];
    let list: Box<[*mut ibv_device]> = DEVICES.iter().map(pointer).chain(null).collect();
    if !len.is_null() {
        // SAFETY: the caller's number.
        unsafe { *len = DEVICES.len() as c_int };
    }
    Box::into_raw(list).cast()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let list = ptr::slice_from_raw_parts_mut(list, DEVICES.len() + 1);
    // SAFETY: as `ibv_get_device_list` made it.
    drop(unsafe { Box::from_raw(list) });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device of the list.
    unsafe { &*device.cast::<Device>() }.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Ok((events, no_events)) = std::io::pipe() else { return ptr::null_mut() };
    // SAFETY: pointers, functions that may be absent, and integers: all zeros is a value.
    let mut base: verbs_context = unsafe { mem::zeroed() };
    base.sz = size_of::<verbs_context>();
    base.query_port = Some(query_port);
    base.context.device = device;
    base.context.async_fd = events.as_raw_fd();
    base.context.ops.poll_cq = Some(poll_cq);
    base.context.ops.post_send = Some(post_send);
    base.context.ops.post_recv = Some(post_recv);
    base.context.abi_compat = ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    let context = Box::into_raw(Box::new(Context { base, events, _no_events: no_events }));
    context.wrapping_byte_add(BEFORE_CONTEXT).cast()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: as `ibv_open_device` made it.
    drop(unsafe { Box::from_raw(opened(context)) });
    0
}

/// Waits for ever, unless the caller has made the descriptor nonblocking.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_async_event(context: *mut ibv_context, _: *mut ibv_async_event) -> c_int {
    // SAFETY: an open device.
    let context = unsafe { &*opened(context) };
    let _ = (&context.events).read(&mut [0]);
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(_: u32) -> *const c_char {
    c"event".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: integers: all zeros is a value.
    let mut device: ibv_device_attr = unsafe { mem::zeroed() };
    device.node_guid = (0x6e75_6c6c_0000_0000 + number(context) as u64).to_be();
    device.sys_image_guid = device.node_guid;
    device.max_qp = 1 << 20;
    device.max_pkeys = 1;
    device.phys_port_cnt = 1;
    // SAFETY: room for the attributes.
    unsafe { attr.write(device) };
    0
}

/// Writes the fields that a caller of any version has, and none behind them.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    if port_num != 1 {
        return libc::EINVAL;
    }
    let (link_layer, lid) = match SETTINGS.is_infiniband {
        true => (IBV_LINK_LAYER_INFINIBAND, number(context) as u16 + 1),
        false => (IBV_LINK_LAYER_ETHERNET, 0),
    };
    const MTU_4096: u32 = 5;
    // SAFETY: room for the attributes, up to `flags` at least.
    unsafe {
        (&raw mut (*attr).state).write(IBV_PORT_ACTIVE);
        (&raw mut (*attr).max_mtu).write(MTU_4096);
        (&raw mut (*attr).active_mtu).write(MTU_4096);
        (&raw mut (*attr).gid_tbl_len).write(1);
        (&raw mut (*attr).lid).write(lid);
        // What `ibv_query_port_speed` says counts, if it says anything.
        (&raw mut (*attr).active_width).write(2);
        (&raw mut (*attr).active_speed).write(64);
        (&raw mut (*attr).link_layer).write(link_layer);
    }
    0
}

/// The same with what came later.
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    _: usize,
) -> c_int {
    // SAFETY: room for the attributes: who calls this here has them all.
    unsafe { (&raw mut (*attr).active_speed_ex).write(SETTINGS.active_speed_ex) };
    ibv_query_port(context, port_num, attr)
}

/// 0, which is none, where the port's codes are to be read.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port_speed(_: *mut ibv_context, _: u32, in_100_mbps: *mut u64) -> c_int {
    // SAFETY: room for a number.
    unsafe { in_100_mbps.write(SETTINGS.mbps / 100) };
    0
}

/// `fe80::N` on InfiniBand, otherwise `::ffff:10.0.0.N`.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    if (port_num, index) != (1, 0) {
        return -1;
    }
    let last = number(context) as u8 + 1;
    let raw = match SETTINGS.is_infiniband {
        true => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last],
        false => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last],
    };
    // SAFETY: room for a GID.
    unsafe { gid.write(ibv_gid { raw }) };
    0
}

fn opened(context: *mut ibv_context) -> *mut Context {
    context.wrapping_byte_sub(BEFORE_CONTEXT).cast()
}

fn number(context: *mut ibv_context) -> usize {
    // SAFETY: an open device, and one of the list.
    unsafe { &*(*context).device.cast::<Device>() }.number
}
