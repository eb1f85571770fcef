//! On a signal (`NCCL_PROXY_DUMP_SIGNAL`), a thread writes the operations under way.

use std::fmt::Display;
use std::io::{self, Write};

use signal_hook::consts::FORBIDDEN;
use signal_hook::iterator::{Handle, Signals};

use super::thread;

/// Writes what a function says on each signal, in a thread of its own, until this is dropped. The
/// signal ends the process neither before that nor after it, and what others do on it is done too.
#[derive(Debug)]
pub struct DumpOnSignal(Handle);

impl DumpOnSignal {
    /// Has `dump` written to `to` on `signal`.
    ///
    /// # Errors
    /// A signal that nobody can wait for, and what the kernel says.
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
        // Of those that there are, the C library keeps two for itself.
        let mut signals = Signals::new([number]).map_err(|error| refused(&error))?;
        let handle = signals.handle();
        thread::spawn("invar-dump".to_owned(), None, move || {
            for _ in signals.forever() {
                // Nobody is there to be told that it can't be written.
                let _ = to.write_all(dump().as_bytes()).and_then(|()| to.flush());
            }
        })?;
        Ok(DumpOnSignal(handle))
    }
}

impl Drop for DumpOnSignal {
    /// The thread ends by itself: it may have to wait until somebody reads what it writes.
    fn drop(&mut self) {
        self.0.close();
    }
}
