//! The memory that a collective works in: NCCL's own, or host memory in its place.
//!
//! GPU memory passes through pinned host memory, since processors reduce: the input is fetched before the
//! collective starts, and the output is stored when it is done. Later collectives use the pinned memory
//! again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use invar::communicator::RawCollective;
use invar::cuda::Gpu;
use invar::raw::HostCopy;
use invar::{Error, Settings};

use super::memory::MemoryRange;
use super::window::Bounce;

/// A collective that has not started, and its memory.
pub(super) struct Staging {
    pub(super) collectives: Vec<RawCollective>,
    input: Option<HostCopy>,
    /// The memory in the place of the output, and the output.
    output: Option<(HostCopy, MemoryRange)>,
    bounce: Option<Bounce>,
}

// SAFETY: The pointers are of memory that NCCL leaves to the collective until it is done, whichever thread
// moves it.
unsafe impl Send for Staging {}

/// Pinned memory that no collective of this process uses.
static FREE: Mutex<Vec<HostCopy>> = Mutex::new(Vec::new());

/// Gives pinned memory to the collectives of a comm.
pub(super) struct HostCopies {
    settings: Settings,
}

/// Frees the memory that no collective uses.
pub(super) fn release() {
    let free = std::mem::take(&mut *free());
    drop(free);
}

fn free() -> MutexGuard<'static, Vec<HostCopy>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostCopies {
    pub(super) fn new(settings: Settings) -> Self {
        HostCopies { settings }
    }

    /// Takes memory for `len` bytes of a GPU. Returns `None` if too little of `INVAR_STAGING_BYTES` is left.
    fn take(&self, gpu: &Gpu, len: usize) -> Result<Option<HostCopy>, Error> {
        let mut free = free();
        let fits = |copy: &HostCopy| {
            copy.capacity() >= len && copy.gpu().info().ordinal == gpu.info().ordinal
        };
        if let Some(at) = free.iter().position(fits) {
            return Ok(Some(free.swap_remove(at)));
        }
        if let Some(copy) = HostCopy::new(gpu, len, &self.settings)? {
            return Ok(Some(copy));
        }
        // What is free is too short, and may make room.
        free.clear();
        HostCopy::new(gpu, len, &self.settings)
    }

    /// Prepares a collective from `input` to `output`, and starts to fetch the input. `build` makes the
    /// collectives from the addresses of both. Returns `None` if too little host memory is left.
    ///
    /// # Safety
    /// NCCL leaves both ranges to the collective until it is done.
    pub(super) unsafe fn stage(
        &self,
        input: &MemoryRange,
        output: &MemoryRange,
        bounce: Option<Bounce>,
        build: impl FnOnce(*const u8, *mut u8) -> Vec<RawCollective>,
    ) -> Result<Option<Staging>, Error> {
        let take = |range: &MemoryRange| match &range.gpu {
            Some(gpu) => self.take(gpu, range.len).map(|copy| copy.map(Some)),
            None => Ok(Some(None)),
        };
        let Some(mut from) = take(input)? else { return Ok(None) };
        let to = match take(output) {
            Ok(Some(to)) => to,
            other => {
                give_back(from);
                return other.map(|_| None);
            }
        };
        let start = |copy: &Option<HostCopy>, range: &MemoryRange| {
            copy.as_ref().map_or(range.at, HostCopy::start)
        };
        let collectives = build(start(&from, input), start(&to, output));
        if let Some(copy) = &mut from {
            // SAFETY: The caller keeps the memory, and the collective starts when the copy is done.
            unsafe { copy.fetch(input.at.addr() as u64, input.len) }?;
        }
        let output = to.map(|copy| (copy, output.clone()));
        Ok(Some(Staging { collectives, input: from, output, bounce }))
    }
}

/// Keeps the memory of a collective for later ones.
pub(super) fn reuse(staging: Staging) {
    let Staging { input, output, .. } = staging;
    give_back(input);
    give_back(output.map(|(copy, _)| copy));
}

fn give_back(copy: Option<HostCopy>) {
    if copy.is_some() {
        free().extend(copy);
    }
}

impl Staging {
    /// Whether the input is where the collective reads it.
    pub(super) fn is_fetched(&mut self) -> Result<bool, Error> {
        self.input.as_mut().map_or(Ok(true), HostCopy::is_done)
    }

    /// Starts to bring the result of the collective, which is done, to its place.
    ///
    /// # Safety
    /// NCCL leaves the memory to the collective until [`is_stored`](Self::is_stored) says so.
    pub(super) unsafe fn store(&mut self) -> Result<(), Error> {
        if let Some(bounce) = &self.bounce {
            // SAFETY: The caller has promised the memory.
            unsafe { bounce.scatter() };
        }
        match &mut self.output {
            // SAFETY: The caller has promised the memory.
            Some((copy, range)) => unsafe { copy.store(range.at.addr() as u64, range.len) },
            None => Ok(()),
        }
    }

    /// Whether the result is in its place.
    pub(super) fn is_stored(&mut self) -> Result<bool, Error> {
        self.output.as_mut().map_or(Ok(true), |(copy, _)| copy.is_done())
    }
}
