//! Open devices.

use std::ffi::CStr;
use std::io;
use std::mem::offset_of;
use std::sync::Arc;

use crate::OpenError;
use crate::events::{News, Watcher};
use crate::library::Library;
use crate::sys::*;

/// The devices that the kernel shows this process (`ibv_get_device_list`).
pub(crate) struct DeviceList {
    library: &'static Library,
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    pub(crate) fn get(library: &'static Library) -> io::Result<DeviceList> {
        let mut len = 0;
        // SAFETY: room for a number.
        let list = unsafe { (library.get_device_list)(&mut len) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(DeviceList { library, list, len: usize::try_from(len).unwrap_or(0) })
    }

    /// Their names, in the library's order.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.devices().map(|device| self.name(device))
    }

    /// Opens the device of this name.
    pub(crate) fn open(&self, name: &str) -> Result<Opened, OpenError> {
        let device = self.devices().find(|device| self.name(*device) == name);
        let device = device.ok_or_else(|| OpenError::NoDevice { device: name.to_owned() })?;
        // SAFETY: a device of the list, which lives until the list is freed.
        let raw = unsafe { (self.library.open_device)(device) };
        if raw.is_null() {
            let source = io::Error::last_os_error();
            return Err(OpenError::Open { device: name.to_owned(), source });
        }
        Ok(Opened { raw, library: self.library, name: name.to_owned() })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the library gave an array of `len` devices, there until it is freed.
        (0..self.len).map(|i| unsafe { *self.list.add(i) })
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: a device of the list; its name is a string within it.
        let name = unsafe { CStr::from_ptr((self.library.get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: what `get` was given, freed once. Open devices do not need it.
        unsafe { (self.library.free_device_list)(self.list) };
    }
}

/// A device that is open until this is dropped (`struct ibv_context`).
pub(crate) struct Opened {
    raw: *mut ibv_context,
    library: &'static Library,
    name: String,
}

// SAFETY: libibverbs takes calls from any thread, on one context from several.
unsafe impl Send for Opened {}
// SAFETY: as above.
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

    /// `ibv_query_device`.
    pub(crate) fn query(&self) -> Result<ibv_device_attr, OpenError> {
        // SAFETY: integers: all zeros is a value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and room for the attributes.
        match unsafe { (self.library.query_device)(self.raw, &mut attr) } {
            0 => Ok(attr),
            errno => {
                let source = io::Error::from_raw_os_error(errno.abs());
                Err(OpenError::Query { device: self.name.clone(), source })
            }
        }
    }

    /// `ibv_query_port`, with all attributes where the library's context has that call: the symbol
    /// of this name gives those of the first version. What is not given is 0.
    pub(crate) fn query_port(&self, port_num: u8) -> io::Result<ibv_port_attr> {
        // SAFETY: integers: all zeros is a value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and room for the attributes.
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
        // SAFETY: an open context.
        if unsafe { (*self.raw).abi_compat }.addr() != VERBS_ABI_IS_EXTENDED {
            return None;
        }
        let extended = self.raw.wrapping_byte_sub(offset_of!(verbs_context, context));
        let extended = extended.cast::<verbs_context>();
        // SAFETY: such a context is the end of a `verbs_context`, whose size stands before it. What
        // else we know of it is there if it is as long as ours.
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
        // SAFETY: opened, and closed once; all that came of it holds it and is gone.
        let rc = unsafe { (self.library.close_device)(self.raw) };
        if rc != 0 {
            log::warn!("{}: ibv_close_device: {}", self.name, io::Error::last_os_error());
        }
    }
}

/// An open device whose events are watched, where libibverbs tells of them.
pub(crate) struct Context {
    // Ends before the device is closed.
    _watcher: Option<Watcher>,
    news: Arc<News>,
    opened: Arc<Opened>,
}

impl Context {
    /// Opens a device, for its port of this number.
    pub(crate) fn open(
        library: &'static Library,
        device: &str,
        port_num: u8,
    ) -> Result<Context, OpenError> {
        let list = DeviceList::get(library).map_err(OpenError::List)?;
        let opened = Arc::new(list.open(device)?);
        let news = Arc::new(News::new(port_num));
        let watcher = Watcher::start(Arc::clone(&opened), Arc::clone(&news));
        let failed = |source| OpenError::Events { device: device.to_owned(), source };
        Ok(Context { _watcher: watcher.map_err(failed)?, news, opened })
    }

    pub(crate) fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.opened.raw
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.opened.library
    }

    /// What it has reported.
    pub(crate) fn news(&self) -> &News {
        &self.news
    }
}
