//! The file of this process' flight recorder, and the places in it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use invar_core::stall::Process;
use invar_linux::recorder::{RecorderFile, directory};

use crate::memory_numbers;

/// The file of a process, while something is recorded. A child of fork has a copy of its parent's.
static OF_PROCESS: Mutex<(u32, Weak<Mutex<RecorderFile>>)> = Mutex::new((0, Weak::new()));
/// The file of this process, once something has failed. So the file outlives the process, which may end because
/// of the failure.
static KEPT: Mutex<Option<Arc<Mutex<RecorderFile>>>> = Mutex::new(None);
/// Whether the file could not be made. Then nothing is recorded.
static IS_BROKEN: OnceLock<()> = OnceLock::new();

/// A place in the file, for one record. When the value is dropped, the record stays until another takes the place.
pub(crate) struct RecorderPlace {
    place: usize,
    file: Arc<Mutex<RecorderFile>>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// There is no file; the log says why.
    NoFile,
    /// All places are taken.
    Full,
}

impl RecorderPlace {
    /// Takes a place in the file of this process, and creates the file if there is none.
    pub(crate) fn take(process: Process) -> Result<Self, NoPlace> {
        let file = file_of(process).ok_or(NoPlace::NoFile)?;
        let place = lock(&file).take_place().ok_or(NoPlace::Full)?;
        Ok(RecorderPlace { place, file })
    }

    /// Writes the record, whose bytes depend on the number of the write.
    pub(crate) fn write<B: AsRef<[u8]>>(&self, record: impl FnOnce(u64) -> B) {
        // Without room in the file system, the last record stays.
        let mut file = lock(&self.file);
        let _ = file.write(self.place, record);
        let _ = file.write_memory(memory_numbers::now());
    }

    /// Keeps the file when the process ends.
    pub(crate) fn keep_file(&self) {
        *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&self.file));
    }
}

impl Drop for RecorderPlace {
    fn drop(&mut self) {
        lock(&self.file).give_back(self.place);
    }
}

/// Returns the file of this process, and creates it if there is none.
fn file_of(process: Process) -> Option<Arc<Mutex<RecorderFile>>> {
    let mut of_process = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let (owner, known) = &mut *of_process;
    if *owner == std::process::id()
        && let Some(file) = known.upgrade()
    {
        return Some(file);
    }
    if IS_BROKEN.get().is_some() {
        return None;
    }
    match RecorderFile::create(&directory(), process) {
        Ok(file) => {
            let file = Arc::new(Mutex::new(file));
            *of_process = (std::process::id(), Arc::downgrade(&file));
            Some(file)
        }
        Err(error) => {
            let _ = IS_BROKEN.set(());
            log::warn!(
                "no flight recorder, so invar inspect and INVAR_METRICS show nothing: {}: {error}; \
                 XDG_RUNTIME_DIR may name another folder, and INVAR_RECORDER=0 ends this warning",
                directory().display()
            );
            None
        }
    }
}

fn lock(file: &Mutex<RecorderFile>) -> MutexGuard<'_, RecorderFile> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}
