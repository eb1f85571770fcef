//! Ports, GIDs and partition keys.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::{fs, mem, ptr};

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;

use invar_core::nic::{Gid, Mtu, Nic, PortAttr, PortState};
use invar_core::roce::qp::MESSAGE_BYTES_MAX;
use invar_verbs::sys::provider::{
    IBV_PORT_CM_SUP, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, ibv_device,
};
use invar_verbs::sys::*;

use crate::device::Context;
use crate::object;
use crate::{attributes, errno};

versions! {
    "IBVERBS_1.0":
        ibv_get_sysfs_path ibv_read_sysfs_file;
    "IBVERBS_1.1":
        ibv_query_gid ibv_query_pkey ibv_query_port;
    "IBVERBS_1.5":
        ibv_get_pkey_index;
    "IBVERBS_1.11":
        _ibv_query_gid_ex _ibv_query_gid_table;
}

private_versions! {
    ibv_query_gid_type ibv_read_ibdev_sysfs_file
}

/// The length of the port attributes that the symbol `ibv_query_port` writes.
const COMPAT_BYTES: usize = mem::offset_of!(ibv_port_attr, port_cap_flags2);
const DEFAULT_PKEY: u16 = 0xffff;

/// Codes of width and speed: the fastest link that is not faster than the interface.
fn link_codes(mbps: u32) -> (u8, u8) {
    let links = [
        (800_000, (4, 128)),
        (400_000, (2, 128)),
        (200_000, (2, 64)),
        (100_000, (2, 32)),
        (50_000, (1, 64)),
        (40_000, (2, 4)),
        (25_000, (1, 32)),
        (10_000, (1, 4)),
        (5_000, (1, 2)),
    ];
    links.into_iter().find(|(speed, _)| *speed <= mbps).map_or((1, 1), |(_, codes)| codes)
}

fn gids<'a>(context: *mut ibv_context, port_num: u32) -> Result<&'a [Gid], c_int> {
    match port_num {
        1 => Ok(object::get::<Context>(context)?.nic.gids()),
        _ => Err(libc::EINVAL),
    }
}

fn port(context: *mut ibv_context, port_num: u32) -> Result<PortAttr, c_int> {
    let context = object::get::<Context>(context)?;
    if port_num != 1 {
        return Err(libc::EINVAL);
    }
    context.nic.query_port().map_err(errno::of)
}

fn write_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> Result<(), c_int> {
    let port = port(context, port_num.into())?;
    let is_up = port.state == PortState::Active;
    // SAFETY: the structure has integers alone, for which zero is valid.
    let mut known: ibv_port_attr = unsafe { mem::zeroed() };
    known.state = if is_up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    known.max_mtu = Mtu::Mtu4096 as u32;
    known.active_mtu = port.active_mtu as u32;
    known.gid_tbl_len = gids(context, port_num.into())?.len() as c_int;
    known.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    known.max_msg_sz = MESSAGE_BYTES_MAX;
    known.pkey_tbl_len = 1;
    known.max_vl_num = 1;
    (known.active_width, known.active_speed) = link_codes(port.speed_mbps);
    // LinkUp, or Disabled.
    known.phys_state = if is_up { 5 } else { 3 };
    known.link_layer = IBV_LINK_LAYER_ETHERNET;
    // The kernel sets this for each port of RoCE.
    known.flags = IBV_QPF_GRH_REQUIRED;
    // SAFETY: the caller gives room for `size` bytes.
    unsafe { attributes::write(attr, size, &known) };
    Ok(())
}

/// Fills the fields that programs of every version have.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    errno::status(write_port(context, port_num, attr, COMPAT_BYTES))
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    errno::status(write_port(context, port_num, attr, size))
}

fn entry(context: *mut ibv_context, port_num: u32, index: u32) -> Result<ibv_gid_entry, c_int> {
    let gids = gids(context, port_num)?;
    let gid = gids.get(index as usize).ok_or(libc::EINVAL)?;
    Ok(ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index: index,
        port_num,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: invar_linux::interface::Interface::holding(gid.ip())
            .ok()
            .flatten()
            .map_or(0, |interface| interface.index),
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let entry = entry(context, port_num.into(), index as u32);
    // SAFETY: the caller gives a place for the GID, with the header's alignment.
    errno::or_minus_one(entry.map(|entry| unsafe { gid.write(entry.gid) }))
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    let result = match flags {
        0 if size >= size_of::<ibv_gid_entry>() => entry(context, port_num, index),
        _ => Err(libc::EOPNOTSUPP),
    };
    // SAFETY: the caller gives room for `size` bytes.
    errno::status(result.map(|entry| unsafe { out.write(entry) }))
}

/// Returns the number of entries, or a negative error number.
#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 || size < size_of::<ibv_gid_entry>() {
        return -(libc::EOPNOTSUPP as isize);
    }
    let entries = gids(context, 1).and_then(|gids| match gids.len() {
        count if count > most => Err(libc::EINVAL),
        count => {
            (0..count as u32).map(|index| entry(context, 1, index)).collect::<Result<Vec<_>, _>>()
        }
    });
    match entries {
        Ok(entries) => {
            for (index, entry) in entries.iter().enumerate() {
                // SAFETY: the caller gives room for `most` entries of `size` bytes, and `size` is at least
                // the length of an entry.
                unsafe { out.byte_add(index * size).write_unaligned(*entry) };
            }
            entries.len() as isize
        }
        Err(errno) => -(errno as isize),
    }
}

/// The type of a GID, as tools of rdma-core ask for it: 0 is InfiniBand or RoCE v1, and 1 is RoCE v2.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    let entry = entry(context, port_num.into(), index);
    // SAFETY: the caller gives a place for the number.
    errno::or_minus_one(entry.map(|_| unsafe { kind.write(1) }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let port = port(context, port_num.into());
    let known = port.and(if index == 0 { Ok(()) } else { Err(libc::EINVAL) });
    // SAFETY: the caller gives a place for the key.
    errno::or_minus_one(known.map(|()| unsafe { pkey.write(DEFAULT_PKEY.to_be()) }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    let is_known = pkey == DEFAULT_PKEY.to_be();
    let port = port(context, port_num.into());
    errno::or_minus_one(port.and(if is_known { Ok(()) } else { Err(libc::ENOENT) }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a small file into `buffer`, removes one line break from its end, and ends it with NUL. Returns the
/// length, or -1 if this does not fit.
fn read_file(path: &Path, buffer: *mut c_char, size: usize) -> c_int {
    let Ok(mut bytes) = fs::read(path) else { return -1 };
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if bytes.len() >= size {
        return -1;
    }
    // SAFETY: the caller gives room for `size` bytes, which is more than the text has.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len());
        buffer.add(bytes.len()).write(0);
    }
    bytes.len() as c_int
}

#[unsafe(no_mangle)]
extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller gives two texts that end with NUL.
    let [folder, file] = [folder, file].map(|text| unsafe { CStr::from_ptr(text) });
    let path = |text: &CStr| Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())).to_owned();
    read_file(&path(folder).join(path(file)), buffer, size)
}

/// A device in software has no files.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_ibdev_sysfs_file(
    _: *mut c_char,
    _: usize,
    _: *mut ibv_device,
    _: *const c_char,
) -> c_int {
    errno::minus_one(libc::ENOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_never_said_to_be_faster_than_its_interface() {
        assert_eq!(link_codes(10_000), (1, 4));
        assert_eq!(link_codes(9_999), (1, 2));
        assert_eq!(link_codes(1000), (1, 1));
        assert_eq!(link_codes(100_000), (2, 32));
        assert_eq!(link_codes(u32::MAX), (4, 128));
    }

    #[test]
    fn the_compat_form_of_port_attributes_has_48_bytes() {
        let known = mem::offset_of!(ibv_port_attr, active_speed_ex);
        assert_eq!([COMPAT_BYTES, known], [48, 52]);
    }
}
