//! The memory that a collective works in: NCCL's own, or host memory in its place.
//!
//! - GPU memory passes through pinned host memory, since processors reduce. The driver fetches the input
//!   before the collective starts, and stores the output after it. The process keeps the pinned memory for
//!   later collectives of any comm, and frees it when its last comm is closed. To free memory the driver may wait
//!   for the GPU. So if the memory that is kept is too short for a collective, another thread frees it.
//! - The parts of a window pass through host memory in one piece.

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use invar::communicator::{Mover, Posted, RawOperation};
use invar::cuda::Gpu;
use invar::raw::{HostCopy, OwnThread};
use invar::{Communicator, Error, Settings};

use super::memory::MemoryRange;
use crate::outcome::{Failed, failed, misused};

/// The time for which a comm without a collective waits for pinned memory that others use.
const LACKS_MAX: Duration = Duration::from_secs(60);

static POOL: Mutex<Weak<Pool>> = Mutex::new(Weak::new());

/// The pinned host memory of a process that no collective uses.
#[derive(Default)]
struct Pool {
    /// A collective that ended early may have left a copy in progress.
    free: Mutex<Vec<HostCopy>>,
    /// The threads that free memory. The drop waits for them, since NCCL may then unload the plugin.
    freeing: Mutex<Vec<OwnThread>>,
}

/// Lends pinned host memory to the collectives of a comm.
pub(super) struct HostCopies {
    settings: Settings,
    pool: Arc<Pool>,
    /// Since when the comm waits for memory that others use.
    lacks: Mutex<Option<Instant>>,
}

/// Pinned host memory that a collective has borrowed. The drop keeps the memory for later collectives.
#[derive(Default)]
struct LentCopies {
    copies: Vec<HostCopy>,
    pool: Arc<Pool>,
}

/// A collective, and the memory in the place of its input and of its output.
pub(super) struct Staging {
    operations: Vec<RawOperation>,
    input: Option<Box<Detour>>,
    output: Option<Box<Detour>>,
}

/// Host memory in the place of an input or an output that is on a GPU, or in several parts.
struct Detour {
    /// NCCL's memory, in order.
    parts: Vec<MemoryRange>,
    /// The pinned memory of the parts that are on a GPU, in order.
    lent: LentCopies,
    /// The memory in the place of several parts.
    joined: Vec<u8>,
}

// SAFETY: The pointers are of memory that NCCL leaves to the collective until it is done, whichever thread
// moves it.
unsafe impl Send for Staging {}

impl HostCopies {
    pub(super) fn new(settings: Settings) -> Self {
        let mut of_process = locked(&POOL);
        let pool = of_process.upgrade().unwrap_or_default();
        *of_process = Arc::downgrade(&pool);
        HostCopies { settings, pool, lacks: Mutex::default() }
    }

    /// Prepares a collective from `input` to `output`, and starts to fetch the input. `build` makes the
    /// operations from the addresses of both. Returns `None` if too little pinned memory is left.
    ///
    /// # Safety
    /// NCCL leaves the memory to the collective until it is done.
    pub(super) unsafe fn stage(
        &self,
        (input, output): (&[MemoryRange], &[MemoryRange]),
        build: impl FnOnce(*const u8, *mut u8) -> Vec<RawOperation>,
    ) -> Result<Option<Staging>, Failed> {
        let take = |parts| self.take(parts).map_err(|error| failed(&error));
        let Some(of_input) = take(input)? else { return Ok(None) };
        let Some(of_output) = take(output)? else { return Ok(None) };
        *locked(&self.lacks) = None;
        let (from, mut input) = Detour::around(input, of_input)?;
        let (to, output) = Detour::around(output, of_output)?;
        let operations = build(from, to);
        if let Some(input) = &mut input {
            // SAFETY: The caller keeps the memory, and the collective starts when the input is fetched.
            unsafe { input.copy(HostCopy::fetch) }.map_err(|error| failed(&error))?;
        }
        Ok(Some(Staging { operations, input, output }))
    }

    /// Fails if a collective for which [`stage`](Self::stage) finds no memory, and whose comm has no other one in
    /// progress, waits in vain.
    pub(super) fn lack(
        &self,
        (input, output): (&[MemoryRange], &[MemoryRange]),
    ) -> Result<(), Failed> {
        let lens = on_gpus(input).chain(on_gpus(output)).map(|(_, len)| len);
        if !HostCopy::fit_together(lens, &self.settings) {
            return Err(misused(
                "too little pinned host memory is allowed for copies of GPU memory: set \
                 INVAR_STAGING_BYTES higher",
            ));
        }
        match locked(&self.lacks).get_or_insert_with(Instant::now).elapsed() > LACKS_MAX {
            true => Err(misused(format_args!(
                "for {LACKS_MAX:?} other collectives and connections of this process have left too little pinned \
                 host memory: set INVAR_STAGING_BYTES higher"
            ))),
            false => Ok(()),
        }
    }

    /// Whether no collective that ended early has left a copy in progress.
    pub(super) fn is_idle(&self) -> bool {
        locked(&self.pool.free).iter_mut().all(is_idle)
    }

    /// Waits for the copies that collectives left in progress when they ended early.
    pub(super) fn finish(&self) {
        let unfinished = |copy: &mut HostCopy| !is_idle(copy);
        let unfinished: Vec<_> = locked(&self.pool.free).extract_if(.., unfinished).collect();
        // The end of pinned memory waits for its copy.
        drop(unfinished);
    }

    /// Takes free memory for each part that is on a GPU, or pins more. Returns `None` if too little is left; a later
    /// call may find more.
    fn take(&self, parts: &[MemoryRange]) -> Result<Option<LentCopies>, Error> {
        let mut lent = LentCopies { copies: Vec::new(), pool: Arc::clone(&self.pool) };
        for (gpu, len) in on_gpus(parts) {
            let copy = match self.pool.take(gpu, len) {
                Some(copy) => Some(copy),
                None => HostCopy::new(gpu, len, &self.settings)?,
            };
            let Some(copy) = copy else {
                self.pool.free_others(gpu, len);
                return Ok(None);
            };
            lent.copies.push(copy);
        }
        Ok(Some(lent))
    }
}

impl Pool {
    /// Takes the shortest memory that fits.
    fn take(&self, gpu: &Gpu, len: usize) -> Option<HostCopy> {
        let mut free = locked(&self.free);
        let fitting = free.iter_mut().enumerate().filter_map(|(at, copy)| {
            let fits = copy.fits(gpu, len) && copy.is_done().is_ok_and(|is_done| is_done);
            fits.then(|| (copy.bytes(), at))
        });
        let (_, at) = fitting.min()?;
        Some(free.swap_remove(at))
    }

    /// Starts to free the memory that does not fit, in a thread of its own.
    fn free_others(&self, gpu: &Gpu, len: usize) {
        let is_other = |copy: &mut HostCopy| is_idle(copy) && !copy.fits(gpu, len);
        let others: Vec<_> = locked(&self.free).extract_if(.., is_other).collect();
        if others.is_empty() {
            return;
        }
        let mut freeing = locked(&self.freeing);
        freeing.retain(|thread| !thread.is_finished());
        // If no thread starts, this call frees the memory.
        freeing.extend(OwnThread::start("invar-unpin", move || drop(others)).ok());
    }
}

/// Whether no copy is in progress. A GPU whose driver fails copies nothing any more.
fn is_idle(copy: &mut HostCopy) -> bool {
    copy.is_done().unwrap_or(true)
}

impl Drop for LentCopies {
    fn drop(&mut self) {
        locked(&self.pool.free).append(&mut self.copies);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staging {
    /// Whether the input is in host memory.
    pub(super) fn is_fetched(&mut self) -> Result<bool, Error> {
        self.input.as_mut().map_or(Ok(true), |input| input.is_copied())
    }

    /// Starts the collective, whose input is fetched.
    ///
    /// # Safety
    /// The operations are as [`Communicator::post`] demands, and this value lives until they are done.
    pub(super) unsafe fn post(&mut self, communicator: &Communicator) -> Result<Posted, Error> {
        if let Some(input) = &mut self.input {
            input.join();
        }
        // SAFETY: The caller has promised what `post` demands.
        unsafe { communicator.post(&self.operations, Mover::Caller) }
    }

    /// Starts to bring the output of the collective, which is done, to its place.
    pub(super) fn store(&mut self) -> Result<(), Error> {
        let Some(output) = &mut self.output else { return Ok(()) };
        output.split();
        // SAFETY: The caller of `stage` has promised the memory.
        unsafe { output.copy(HostCopy::store) }
    }

    /// Whether the output is in its place.
    pub(super) fn is_stored(&mut self) -> Result<bool, Error> {
        self.output.as_mut().map_or(Ok(true), |output| output.is_copied())
    }

    /// Whether no copy between GPUs and host is in progress.
    pub(super) fn is_idle(&mut self) -> Result<bool, Error> {
        Ok(self.is_fetched()? && self.is_stored()?)
    }
}

impl Detour {
    /// Returns the host memory that a collective works in for these parts, and the detour if that memory is not the
    /// parts' own. `lent` has memory for each part on a GPU.
    fn around(
        parts: &[MemoryRange],
        lent: LentCopies,
    ) -> Result<(*mut u8, Option<Box<Self>>), Failed> {
        if parts.len() < 2 && lent.copies.is_empty() {
            return Ok((parts.first().map_or(ptr::null_mut(), |part| part.at), None));
        }
        let mut joined = Vec::new();
        if parts.len() > 1 {
            let len = parts.iter().map(|part| part.len).sum();
            joined.try_reserve_exact(len).map_err(|_| {
                misused(format_args!("a window of {len} bytes in several parts: no memory"))
            })?;
            joined.resize(len, 0);
        }
        let mut detour = Box::new(Detour { parts: parts.to_vec(), lent, joined });
        // The address stays.
        let start = match parts {
            [_] => detour.lent.copies.first().map_or(ptr::null_mut(), HostCopy::start),
            _ => detour.joined.as_mut_ptr(),
        };
        Ok((start, Some(detour)))
    }

    /// Returns address and length of each part in host memory.
    fn on_host(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut copies = self.lent.copies.iter();
        self.parts.iter().map(move |part| {
            let copy = part.gpu.as_ref().and_then(|_| copies.next());
            (copy.map_or(part.at, HostCopy::start), part.len)
        })
    }

    /// Starts a copy of each part on a GPU, by [`HostCopy::fetch`] or [`HostCopy::store`].
    ///
    /// # Safety
    /// NCCL leaves the memory to the collective until it is done.
    unsafe fn copy(
        &mut self,
        start: unsafe fn(&mut HostCopy, u64, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let on_gpu = self.parts.iter().filter(|part| part.gpu.is_some());
        on_gpu.zip(&mut self.lent.copies).try_for_each(|(part, copy)| {
            // SAFETY: The caller has promised the memory.
            unsafe { start(copy, part.at.addr() as u64, part.len) }
        })
    }

    /// Whether all copies between GPUs and host are done.
    fn is_copied(&mut self) -> Result<bool, Error> {
        for copy in &mut self.lent.copies {
            if !copy.is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies several parts to the memory in their place.
    fn join(&mut self) {
        for (joined, part, len) in self.several() {
            // SAFETY: NCCL leaves the part to the collective, and both have `len` bytes.
            unsafe { ptr::copy_nonoverlapping(part, joined, len) };
        }
    }

    /// Copies to several parts from the memory in their place.
    fn split(&mut self) {
        for (joined, part, len) in self.several() {
            // SAFETY: NCCL leaves the part to the collective, and both have `len` bytes.
            unsafe { ptr::copy_nonoverlapping(joined, part, len) };
        }
    }

    /// Lists each part's place in `joined`, address and length, if there are several parts.
    fn several(&mut self) -> Vec<(*mut u8, *mut u8, usize)> {
        if self.parts.len() < 2 {
            return Vec::new();
        }
        let mut joined = self.joined.as_mut_ptr();
        let place = |(part, len)| {
            let at = joined;
            joined = joined.wrapping_add(len);
            (at, part, len)
        };
        self.on_host().map(place).collect()
    }
}

/// Lists GPU and length of the parts that are on a GPU.
fn on_gpus(parts: &[MemoryRange]) -> impl Iterator<Item = (&Gpu, usize)> {
    parts.iter().filter_map(|part| part.gpu.as_ref().map(|gpu| (gpu, part.len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_window_are_joined_and_split_in_order() {
        let (mut a, mut b) = ([1_u8, 2], [3_u8]);
        let part = |at: *mut u8, len| MemoryRange { at, len, gpu: None, registration: None };
        let parts = vec![part(a.as_mut_ptr(), 2), part(b.as_mut_ptr(), 1)];
        let (start, detour) = Detour::around(&parts, LentCopies::default()).ok().unwrap();
        let mut detour = detour.unwrap();
        detour.join();
        assert_eq!(
            (detour.joined.as_slice(), detour.joined.as_ptr()),
            (&[1, 2, 3][..], start.cast_const())
        );
        detour.joined.copy_from_slice(&[7, 8, 9]);
        detour.split();
        assert_eq!((a, b), ([7, 8], [9]));
    }

    #[test]
    fn one_part_is_used_where_it_is() {
        let mut a = [1_u8, 2];
        let at = a.as_mut_ptr();
        let part = MemoryRange { at, len: 2, gpu: None, registration: None };
        let around = |parts: &[MemoryRange]| {
            let (start, detour) = Detour::around(parts, LentCopies::default()).ok().unwrap();
            (start, detour.is_none())
        };
        assert_eq!(around(&[part]), (at, true));
        assert_eq!(around(&[]), (ptr::null_mut(), true));
    }
}
