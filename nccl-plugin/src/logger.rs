//! Log messages: the `log` crate's records go to NCCL's logger, and so to where `NCCL_DEBUG` says.

use std::ffi::{CString, c_int, c_ulong};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use invar::log_subsystem;
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::abi::{Logger, log_level, subsystem};

/// The logger that NCCL passed last; null if NCCL passed none.
static LOGGER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// From now on, sends all log records of this library and the crates below it to `logger`.
pub(crate) fn install(logger: Option<Logger>) {
    let logger = logger.map_or(ptr::null_mut(), |logger| logger as *mut ());
    LOGGER.store(logger, Ordering::Release);
    log::set_max_level(if logger.is_null() { LevelFilter::Off } else { LevelFilter::Trace });
    // This fails if an earlier call has already set the logger, which is the same one.
    let _ = log::set_logger(&ToNccl);
}

/// The subsystem of NCCL to which the messages of a module belong.
fn subsystem_of(target: &str) -> c_ulong {
    let name = log_subsystem(target);
    let found = subsystem::NAMED.iter().find(|(named, _)| *named == name);
    found.map_or(subsystem::NET, |(_, bits)| *bits)
}

struct ToNccl;

impl Log for ToNccl {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        !LOGGER.load(Ordering::Acquire).is_null()
    }

    fn log(&self, record: &Record<'_>) {
        let logger = LOGGER.load(Ordering::Acquire);
        if logger.is_null() {
            return;
        }
        // SAFETY: `install` made the pointer from a `Logger`, which NCCL keeps as long as the plugin.
        let logger = unsafe { std::mem::transmute::<*mut (), Logger>(logger) };
        let (level, subsystems) = match record.level() {
            Level::Error | Level::Warn => (log_level::WARN, subsystem::ALL),
            // NCCL's own networks add INIT too, because NCCL shows INIT if NCCL_DEBUG_SUBSYS is not set.
            Level::Info => (log_level::INFO, subsystem::INIT | subsystem_of(record.target())),
            Level::Debug | Level::Trace => (log_level::TRACE, subsystem_of(record.target())),
        };
        let text = |text: String| CString::new(text.replace('\0', "?")).unwrap_or_default();
        let message = text(format!("NET/Invar : {}", record.args()));
        let file = text(record.file().unwrap_or_default().to_owned());
        let line = record.line().and_then(|line| c_int::try_from(line).ok()).unwrap_or(0);
        // SAFETY: All strings are C strings, and the format takes exactly one string, as NCCL's contract
        // asks.
        unsafe {
            logger(level, subsystems, file.as_ptr(), line, c"%s".as_ptr(), message.as_ptr());
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_subsystem_of_its_module() {
        assert_eq!(subsystem_of("invar::device::rails"), 1);
        assert_eq!(subsystem_of("invar_core::comm::base"), subsystem::NET);
        assert_eq!(subsystem_of("invar_linux::rendezvous::hub"), 4096);
        assert_eq!(subsystem_of("somebody"), subsystem::NET);
    }
}
