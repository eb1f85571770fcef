//! The abort flag, which ends every wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A communicator's abort flag (`abortFlag`); clones share it. Once set, the flag stays set.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<AtomicBool>);

impl Abort {
    /// Sets the flag. This ends every loop and every wait that has a clone, within a tenth of a second.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
