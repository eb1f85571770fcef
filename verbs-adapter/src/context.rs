//! An open device with the events that it reports.

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
        Ok(Context { _watcher: watcher.map_err(failed)?, news, opened })
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

    /// Returns the events that the device has reported.
    pub(crate) fn news(&self) -> &News {
        &self.news
    }
}
