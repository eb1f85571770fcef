//! Files of the kernel's RDMA stack, as UCX looks for them.
//!
//! UCX takes a device only if its file in `/dev/infiniband` exists, and reads in `/sys/class/infiniband` what kind
//! of GID it has and on which interface. Nobody can put files there without root. So the library stands in front
//! of the C library's functions that UCX calls. All other paths go on to the kernel, and with them the files of other
//! devices.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::{Seek, Write};
use std::os::fd::IntoRawFd;
use std::{fs, io};

use invar_core::param::AddressFamily;
use invar_linux::soft;
use libc::AT_FDCWD;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::errno;

/// Something that the kernel has for a device.
#[derive(Debug, PartialEq, Eq)]
enum DeviceFile<'a> {
    /// The device's own file.
    Uverbs { index: usize },
    /// What kind of GID an index has.
    GidType { device: &'a str, gid: usize },
    /// The network interface of a GID.
    GidInterface { device: &'a str, gid: usize },
}

impl<'a> DeviceFile<'a> {
    fn parse(path: &'a str) -> Option<DeviceFile<'a>> {
        if let Some(index) = path.strip_prefix("/dev/infiniband/uverbs") {
            return Some(DeviceFile::Uverbs { index: index.parse().ok()? });
        }
        let (device, rest) = path.strip_prefix("/sys/class/infiniband/")?.split_once('/')?;
        let (kind, gid) = rest.strip_prefix("ports/1/gid_attrs/")?.split_once('/')?;
        let gid = gid.parse().ok()?;
        match kind {
            "types" => Some(DeviceFile::GidType { device, gid }),
            "ndevs" => Some(DeviceFile::GidInterface { device, gid }),
            _ => None,
        }
    }

    /// Returns the content of the file if it exists. A device's own file is empty.
    fn content(&self) -> Option<String> {
        let devices = soft::devices(AddressFamily::Any).ok()?;
        let interface = |name: &str, gid: usize| {
            let device = devices.iter().find(|one| one.config.name == name)?;
            (gid < device.interface.addresses.len()).then_some(&device.interface.name)
        };
        match *self {
            DeviceFile::Uverbs { index } => (index < devices.len()).then(String::new),
            DeviceFile::GidType { device, gid } => {
                interface(device, gid).map(|_| "RoCE v2\n".to_owned())
            }
            DeviceFile::GidInterface { device, gid } => {
                interface(device, gid).map(|name| format!("{name}\n"))
            }
        }
    }
}

/// The place that a path names, if it is one of ours.
///
/// # Safety
/// The path is null or a C string.
unsafe fn place<'a>(path: *const c_char) -> Option<DeviceFile<'a>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for the string.
    DeviceFile::parse(unsafe { CStr::from_ptr(path) }.to_str().ok()?)
}

/// A file in memory, at its beginning.
fn file(content: &str) -> io::Result<fs::File> {
    let mut file = fs::File::from(memfd_create("infiniband", MemfdFlags::CLOEXEC)?);
    file.write_all(content.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller gives a C string.
    if unsafe { place(path) }.is_some_and(|place| place.content().is_some()) {
        return 0;
    }
    // SAFETY: the caller gives what `access` needs.
    unsafe { libc::faccessat(AT_FDCWD, path, mode, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller gives a C string.
    let path = match unsafe { place(path) }.and_then(|place| place.content()) {
        // A device's file is a character device, and programs ask for no other one.
        Some(_) => c"/dev/null".as_ptr(),
        None => path,
    };
    // SAFETY: the caller gives what `stat` needs.
    unsafe { libc::fstatat(AT_FDCWD, path, to, 0) }
}

/// `mode` is only there if `flags` create a file. The calling convention of C passes it alike.
#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller gives a C string.
    let content = unsafe { place(path) }.and_then(|place| match place {
        DeviceFile::Uverbs { .. } => None,
        _ => place.content(),
    });
    match content.map(|content| file(&content)) {
        Some(Ok(file)) => file.into_raw_fd(),
        Some(Err(error)) => errno::minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        // SAFETY: the caller gives what `open` needs.
        None => unsafe { libc::openat(AT_FDCWD, path, flags, mode) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_file_of_a_device_or_nothing_of_ours() {
        let device = "soft0";
        for (path, place) in [
            ("/dev/infiniband/uverbs3", Some(DeviceFile::Uverbs { index: 3 })),
            ("/dev/infiniband/uverbs", None),
            ("/dev/infiniband/uverbs-1", None),
            ("/dev/infiniband/rdma_cm", None),
            (
                "/sys/class/infiniband/soft0/ports/1/gid_attrs/types/0",
                Some(DeviceFile::GidType { device, gid: 0 }),
            ),
            (
                "/sys/class/infiniband/soft0/ports/1/gid_attrs/ndevs/12",
                Some(DeviceFile::GidInterface { device, gid: 12 }),
            ),
            ("/sys/class/infiniband/soft0/ports/2/gid_attrs/types/0", None),
            ("/sys/class/infiniband/soft0/ports/1/gid_attrs/types/", None),
            ("/sys/class/infiniband/soft0/ports/1/gid_attrs/types/99999999999999999999", None),
            ("/etc/passwd", None),
        ] {
            assert_eq!(DeviceFile::parse(path), place, "{path}");
        }
    }
}
