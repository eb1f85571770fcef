//! An open device with the events that it reports.

use std::ffi::c_int;
use std::io;
use std::process;
use std::sync::Arc;

use crate::OpenError;
use crate::device::{DeviceList, Opened};
use crate::events::{News, Watcher};
use crate::library::Library;
use crate::sys::*;

/// An open device with a thread that watches its events, if libibverbs reports events.
pub(crate) struct Context {
    // The watcher ends before the device is closed, because fields drop in this order.
    _watcher: Option<Watcher>,
    news: Arc<News>,
    opened: Arc<Opened>,
    process: u32,
}

impl Context {
    /// Opens a device in order to use its port `port_num`.
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
        let process = process::id();
        Ok(Context { _watcher: watcher.map_err(failed)?, news, opened, process })
    }

    pub(crate) fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.opened.raw()
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.opened.library()
    }

    /// Releases an object of the device, and returns whether it is released. In a child of `fork` the object belongs to
    /// the parent, and stays.
    pub(crate) fn release(&self, verb: &str, call: impl FnOnce() -> c_int) -> bool {
        if self.process != process::id() {
            return false;
        }
        let rc = call();
        if rc != 0 {
            // Nobody can handle it.
            let error = io::Error::from_raw_os_error(rc.abs());
            log::warn!("{}: {verb}: {error}", self.opened.name());
        }
        rc == 0
    }

    /// Returns the events that the device has reported.
    pub(crate) fn news(&self) -> &News {
        &self.news
    }
}
