//! Devices, their ports, and their asynchronous events, which come only from `NULL_VERBS_EVENTS`.

use std::ffi::{CString, c_char, c_int};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
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

/// The offset in [`Context`] of the part that libibverbs hands out.
const BEFORE_CONTEXT: usize = mem::offset_of!(Context, base.context);

/// An open device.
#[repr(C)]
struct Context {
    base: verbs_context,
    events: File,
    /// Keeps the write end of the pipe open, so that a reader does not find the end.
    _writer: File,
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(len: *mut c_int) -> *mut *mut ibv_device {
    let pointer = |device: &Device| ptr::from_ref(device).cast_mut().cast::<ibv_device>();
    let null = [ptr::null_mut()];
    let list: Box<[*mut ibv_device]> = DEVICES.iter().map(pointer).chain(null).collect();
    if !len.is_null() {
        // SAFETY: the caller gives null or a valid place for the number.
        unsafe { *len = DEVICES.len() as c_int };
    }
    Box::into_raw(list).cast()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let list = ptr::slice_from_raw_parts_mut(list, DEVICES.len() + 1);
    // SAFETY: `ibv_get_device_list` made this list of `DEVICES.len() + 1` entries by `Box::into_raw`.
    drop(unsafe { Box::from_raw(list) });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller gives a device of the list, and each of these is a `Device`.
    unsafe { &*device.cast::<Device>() }.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Ok((events, writer)) = event_pipe(device) else { return ptr::null_mut() };
    // SAFETY: the structure has pointers, functions that may be absent, and integers, for which zero is
    // valid.
    let mut base: verbs_context = unsafe { mem::zeroed() };
    base.sz = size_of::<verbs_context>();
    base.query_port = Some(query_port);
    base.context.device = device;
    base.context.async_fd = events.as_raw_fd();
    base.context.ops.poll_cq = Some(poll_cq);
    base.context.ops.post_send = Some(post_send);
    base.context.ops.post_recv = Some(post_recv);
    base.context.abi_compat = ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    let context = Box::into_raw(Box::new(Context { base, events, _writer: writer }));
    context.wrapping_byte_add(BEFORE_CONTEXT).cast()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: `ibv_open_device` made this context by `Box::into_raw`, and the caller closes it once.
    drop(unsafe { Box::from_raw(opened(context)) });
    0
}

/// Opens both ends of the pipe of a device's events.
fn event_pipe(device: *mut ibv_device) -> io::Result<(File, File)> {
    let Some(directory) = &SETTINGS.events else {
        let (reader, writer) = io::pipe()?;
        return Ok((File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer))));
    };
    // SAFETY: the caller of `ibv_open_device` gives a device of the list, and each of these is a `Device`.
    let name = unsafe { &*device.cast::<Device>() }.name.to_string_lossy();
    // An end that both reads and writes opens at once.
    let both = OpenOptions::new().read(true).write(true).open(Path::new(directory).join(&*name))?;
    Ok((both.try_clone()?, both))
}

/// Takes an event. Blocks until one comes, unless the caller has made the descriptor nonblocking.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_async_event(context: *mut ibv_context, to: *mut ibv_async_event) -> c_int {
    // SAFETY: the caller gives an open device.
    let context = unsafe { &*opened(context) };
    let mut event_type = [0];
    if !matches!((&context.events).read(&mut event_type), Ok(1)) {
        return -1;
    }
    let event = ibv_async_event {
        element: ibv_async_element { port_num: 1 },
        event_type: event_type[0].into(),
    };
    // SAFETY: the caller gives room for an event.
    unsafe { to.write(event) };
    0
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
    // SAFETY: the structure has integers alone, for which zero is valid.
    let mut device: ibv_device_attr = unsafe { mem::zeroed() };
    device.node_guid = (0x6e75_6c6c_0000_0000 + number(context) as u64).to_be();
    device.sys_image_guid = device.node_guid;
    device.max_qp = 1 << 20;
    device.max_pkeys = 1;
    device.phys_port_cnt = 1;
    // SAFETY: the caller gives room for the attributes.
    unsafe { attr.write(device) };
    0
}

/// Writes the fields that callers of every version have. It writes none behind them.
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
    // SAFETY: the caller gives room for the attributes, up to `flags` at least.
    unsafe {
        (&raw mut (*attr).state).write(IBV_PORT_ACTIVE);
        (&raw mut (*attr).max_mtu).write(MTU_4096);
        (&raw mut (*attr).active_mtu).write(MTU_4096);
        (&raw mut (*attr).gid_tbl_len).write(1);
        (&raw mut (*attr).lid).write(lid);
        // If `ibv_query_port_speed` returns a speed, that speed counts instead of these codes.
        (&raw mut (*attr).active_width).write(2);
        (&raw mut (*attr).active_speed).write(64);
        (&raw mut (*attr).link_layer).write(link_layer);
    }
    0
}

/// Writes the fields of [`ibv_query_port`] and those of later versions.
unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    _: usize,
) -> c_int {
    // SAFETY: a caller of this function has room for all attributes.
    unsafe { (&raw mut (*attr).active_speed_ex).write(SETTINGS.active_speed_ex) };
    ibv_query_port(context, port_num, attr)
}

/// Returns the port's speed. The value 0 means that the caller has to read the port's codes.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port_speed(_: *mut ibv_context, _: u32, in_100_mbps: *mut u64) -> c_int {
    // SAFETY: the caller gives room for a number.
    unsafe { in_100_mbps.write(SETTINGS.mbps / 100) };
    0
}

/// Writes the GID: `fe80::N` on InfiniBand, `::ffff:10.0.0.N` otherwise.
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
    // SAFETY: the caller gives room for a GID.
    unsafe { gid.write(ibv_gid { raw }) };
    0
}

fn opened(context: *mut ibv_context) -> *mut Context {
    context.wrapping_byte_sub(BEFORE_CONTEXT).cast()
}

fn number(context: *mut ibv_context) -> usize {
    // SAFETY: the caller gives an open device, whose `device` is one of the list.
    unsafe { &*(*context).device.cast::<Device>() }.number
}
