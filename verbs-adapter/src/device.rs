//! Devices, and open devices.

use std::ffi::CStr;
use std::io;
use std::mem::offset_of;

use crate::OpenError;
use crate::library::Library;
use crate::sys::*;

/// The devices that the kernel shows to this process (`ibv_get_device_list`).
pub(crate) struct DeviceList {
    library: &'static Library,
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    pub(crate) fn get(library: &'static Library) -> io::Result<DeviceList> {
        let mut len = 0;
        // SAFETY: `len` has room for a number.
        let list = unsafe { (library.get_device_list)(&mut len) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(DeviceList { library, list, len: usize::try_from(len).unwrap_or(0) })
    }

    /// Returns the names of the devices, in the library's order.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.devices().map(|device| self.name(device))
    }

    /// Opens the device of this name.
    pub(crate) fn open(&self, name: &str) -> Result<Opened, OpenError> {
        let device = self.devices().find(|device| self.name(*device) == name);
        let device = device.ok_or_else(|| OpenError::NoDevice { device: name.to_owned() })?;
        // SAFETY: The device belongs to the list, which is not freed before `self` is dropped.
        let raw = unsafe { (self.library.open_device)(device) };
        if raw.is_null() {
            let source = io::Error::last_os_error();
            return Err(OpenError::Open { device: name.to_owned(), source });
        }
        Ok(Opened { raw, library: self.library, name: name.to_owned() })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: The library returned an array of `len` devices, which lives until it is freed.
        (0..self.len).map(|i| unsafe { *self.list.add(i) })
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: The device belongs to the list, and its name is a string within the device.
        let name = unsafe { CStr::from_ptr((self.library.get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: `get` received this list, and it is freed once. Open devices do not need the list.
        unsafe { (self.library.free_device_list)(self.list) };
    }
}

/// An open device, closed on drop (`struct ibv_context`).
pub(crate) struct Opened {
    raw: *mut ibv_context,
    library: &'static Library,
    name: String,
}

// SAFETY: libibverbs accepts calls on a context from any thread, and from several threads at once.
unsafe impl Send for Opened {}
// SAFETY: libibverbs accepts calls on a context from any thread, and from several threads at once.
unsafe impl Sync for Opened {}

impl Opened {
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the attributes of the device (`ibv_query_device`).
    pub(crate) fn query(&self) -> Result<ibv_device_attr, OpenError> {
        // SAFETY: The type consists of integers, for which all zeros is a valid value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: The context is open, and `attr` has room for the attributes.
        match unsafe { (self.library.query_device)(self.raw, &mut attr) } {
            0 => Ok(attr),
            errno => {
                let source = io::Error::from_raw_os_error(errno.abs());
                Err(OpenError::Query { device: self.name.clone(), source })
            }
        }
    }

    /// Reads the attributes of a port (`ibv_query_port`). If the library's context has the extended
    /// call, it returns all attributes. The symbol of this name returns only those of the first version;
    /// the rest is 0.
    pub(crate) fn query_port(&self, port_num: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: The type consists of integers, for which all zeros is a valid value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: The context is open, and `attr` has room for the attributes.
        let rc = unsafe {
            match self.extended_query_port() {
                Some(call) => call(self.raw, port_num, &mut attr, size_of::<ibv_port_attr>()),
                None => (self.library.query_port)(self.raw, port_num, &mut attr),
            }
        };
        match rc {
            0 => Ok(attr),
            errno => Err(io::Error::from_raw_os_error(errno.abs())),
        }
    }

    fn extended_query_port(&self) -> Option<QueryPort> {
        // SAFETY: The context is open.
        if unsafe { (*self.raw).abi_compat }.addr() != VERBS_ABI_IS_EXTENDED {
            return None;
        }
        let extended = self.raw.wrapping_byte_sub(offset_of!(verbs_context, context));
        let extended = extended.cast::<verbs_context>();
        // SAFETY: An extended context is the end of a `verbs_context`, and the field before the context
        // holds its size. The fields that we know exist if the size is at least ours.
        unsafe {
            match (*extended).sz >= size_of::<verbs_context>() {
                true => (*extended).query_port,
                false => None,
            }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: The device was opened and is closed once. All objects made from it held it and are
        // gone.
        let rc = unsafe { (self.library.close_device)(self.raw) };
        if rc != 0 {
            log::warn!("{}: ibv_close_device: {}", self.name, io::Error::last_os_error());
        }
    }
}
