//! Prints the pending operations on a signal (`NCCL_PROXY_DUMP_SIGNAL`).

use std::fmt::Display;
use std::io::{self, Write};

use signal_hook::consts::FORBIDDEN;
use signal_hook::iterator::{Handle, Signals};

use super::thread;

/// Writes the text of a function on each signal, in its own thread, until this value is dropped. The
/// signal never ends the process, neither before the drop nor after it. Other handlers of the signal
/// still run.
#[derive(Debug)]
pub struct DumpOnSignal(Handle);

impl DumpOnSignal {
    /// On each `signal`, writes the text that `dump` returns to `to`.
    ///
    /// # Errors
    /// The signal cannot be handled, or the kernel refuses.
    pub fn spawn(
        signal: u8,
        dump: impl Fn() -> String + Send + 'static,
        mut to: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let number = i32::from(signal);
        let refused = |why: &dyn Display| {
            let what = format!("NCCL_PROXY_DUMP_SIGNAL={signal}: {why}");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        if FORBIDDEN.contains(&number) {
            return Err(refused(&"nothing else can be done on it"));
        }
        // The C library reserves two of the existing signals for itself.
        let mut signals = Signals::new([number]).map_err(|error| refused(&error))?;
        let handle = signals.handle();
        thread::spawn("invar-dump".to_owned(), None, move || {
            for _ in signals.forever() {
                // Nobody can receive the error if the write fails.
                let _ = to.write_all(dump().as_bytes()).and_then(|()| to.flush());
            }
        })?;
        Ok(DumpOnSignal(handle))
    }
}

impl Drop for DumpOnSignal {
    /// Ends the thread without waiting for it, because its write may block until somebody reads.
    fn drop(&mut self) {
        self.0.close();
    }
}
