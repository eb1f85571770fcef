//! Files of the flight recorder: one for each process, in a directory of the user.
//!
//! A file is deleted when its last owner drops it. It stays if the process ends in any other way. The process
//! holds a lock on its file, so that others know whether the process lives. Each new process deletes all but
//! the youngest files of dead processes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use invar_core::metrics::MemoryNumbers;
use invar_core::recorder::{
    HEADER_BYTES, Header, NUMBERS_AT, RANK_RECORD_BYTES, RECORD_BYTES, RECORD_BYTES_MAX,
    RankRecord, Record, RecordError,
};
use invar_core::stall::Process;

use crate::clock::now_ns;

/// Bytes of each record in a file, and of the header. The second page has only messages of a connection. Without
/// messages nobody writes or reads it, so it is a hole in the file and takes no memory.
const PLACE_BYTES: usize = 2 * PAGE_BYTES;
const PAGE_BYTES: usize = 4096;
/// The most connections and ranks of a process that are recorded at one time.
const PLACES: usize = 4096;
/// A file grows beyond this number of places only if more connections and ranks are open at one time.
const PLACES_KEPT: usize = 256;
/// The files of dead processes that are kept.
const DEAD_KEPT: usize = 16;
/// The most files that a reader looks at in a directory: whoever owns the directory could make more and more.
const FILES_MAX: usize = 4096;
/// The number of times that a reader reads a place, since the writer may be at work.
const TRIES: usize = 4;
/// The most bytes of files that a [`Reader`] reads of each other user.
pub const OTHERS_BYTES_MAX: u64 = 64 << 20;
/// The most files of one process number, which differ if containers share a directory.
const SAME_PID_MAX: u32 = 16;

const _: () = assert!(
    RECORD_BYTES_MAX <= PLACE_BYTES
        && RECORD_BYTES == PAGE_BYTES
        && RANK_RECORD_BYTES <= PAGE_BYTES
        && HEADER_BYTES <= PAGE_BYTES
);

/// The file of this process.
#[derive(Debug)]
pub struct RecorderFile {
    /// The process whose file it is. A child of fork has a copy of the value, which does nothing.
    process: u32,
    file: File,
    path: PathBuf,
    /// The number of places that the file has.
    places: usize,
    /// Places whose connection or rank has ended, oldest first. A record stays until another takes its place.
    ended: VecDeque<usize>,
    turn: u64,
    memory: MemoryNumbers,
}

/// A file of a recorder, as a reader finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Path of the record's file.
    pub path: PathBuf,
    /// The user that owns the file.
    pub user: u32,
    /// The process that keeps the record.
    pub header: Header,
    /// Whether the process lives, or at least holds the file open.
    pub is_alive: bool,
    /// The records of its connections, with their numbers.
    pub records: Vec<(usize, Record)>,
    /// The records of its ranks of communicators, with their numbers.
    pub ranks: Vec<(usize, RankRecord)>,
    /// Number of records that could not be read, because they were being written or are damaged.
    pub damaged: usize,
}

/// Returns the directory for files of this user: `$XDG_RUNTIME_DIR/invar`, or `/tmp/invar-UID`.
pub fn directory() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let is_ours = |dir: &PathBuf| fs::metadata(dir).is_ok_and(|of| of.is_dir() && of.uid() == uid);
    match runtime.filter(is_ours) {
        Some(dir) => dir.join("invar"),
        None => PathBuf::from(format!("/tmp/invar-{uid}")),
    }
}

impl RecorderFile {
    /// Creates the file of this process in `dir`, and the directory if need be.
    ///
    /// # Errors
    /// The directory belongs to someone else or is open to others, or a system call fails.
    pub fn create(dir: &Path, process: Process) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if owner_alone(dir)? != Some(rustix::process::geteuid().as_raw()) {
            let text = format!("{} is not a directory of this user alone", dir.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        remove_dead(dir);
        let (file, path) = create_file(dir, process.pid)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_offset_ns = (unix.as_nanos() as i64).wrapping_sub(now_ns() as i64);
        let memory = MemoryNumbers::default();
        file.write_all_at(&Header { process, unix_offset_ns, memory }.to_bytes(), 0)?;
        let (process, ended) = (std::process::id(), VecDeque::new());
        Ok(RecorderFile { process, file, path, places: 0, ended, turn: 0, memory })
    }

    /// Takes a place for a record. Returns `None` if all are in use.
    pub fn take_place(&mut self) -> Option<usize> {
        if self.places >= PLACES_KEPT
            && let Some(place) = self.ended.pop_front()
        {
            return Some(place);
        }
        if self.places == PLACES {
            return None;
        }
        self.places += 1;
        Some(self.places - 1)
    }

    /// Writes a record, whose bytes depend on the number of the write.
    ///
    /// # Errors
    /// A system call fails, as if the file system is full.
    pub fn write<B: AsRef<[u8]>>(
        &mut self,
        place: usize,
        record: impl FnOnce(u64) -> B,
    ) -> io::Result<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        self.turn += 1;
        let at = PLACE_BYTES * (1 + place);
        self.file.write_all_at(record(self.turn).as_ref(), at as u64)
    }

    /// Writes the counts of memory that the process has registered and staged, if they have changed.
    ///
    /// # Errors
    /// A system call fails.
    pub fn write_memory(&mut self, memory: MemoryNumbers) -> io::Result<()> {
        if self.process != std::process::id() || self.memory == memory {
            return Ok(());
        }
        self.memory = memory;
        self.file.write_all_at(&memory.to_bytes(), NUMBERS_AT as u64)
    }

    /// Gives a place back, which [`RecorderFile::take_place`] has returned. The record stays until another one takes
    /// the place.
    pub fn give_back(&mut self, place: usize) {
        self.ended.push_back(place);
    }
}

impl Drop for RecorderFile {
    fn drop(&mut self) {
        // If somebody else has removed the file, nothing is left to do.
        if self.process == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns the owner of a directory that nobody else can use.
fn owner_alone(dir: &Path) -> io::Result<Option<u32>> {
    let of = fs::symlink_metadata(dir)?;
    Ok((of.is_dir() && of.mode() & 0o077 == 0).then(|| of.uid()))
}

/// Creates a file that no living process has.
fn create_file(dir: &Path, pid: u32) -> io::Result<(File, PathBuf)> {
    for number in 0..SAME_PID_MAX {
        let path = match number {
            0 => dir.join(format!("{pid}.rec")),
            _ => dir.join(format!("{pid}-{number}.rec")),
        };
        if is_dead(&path) {
            let _ = fs::remove_file(&path);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.custom_flags(libc::O_NOFOLLOW).open(&path) {
            Ok(file) => {
                file.lock()?;
                return Ok((file, path));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "too many recorders of one process number"))
}

/// Whether a file's process has ended.
fn is_dead(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| is_unlocked(&file))
}

fn is_unlocked(file: &File) -> bool {
    // A shared lock, which is given back when the file is closed, so that two readers may look at once.
    !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Deletes the oldest files of dead processes.
fn remove_dead(dir: &Path) {
    let mut dead: Vec<_> = files_in(dir)
        .into_iter()
        .filter(|path| is_dead(path))
        .map(|path| (fs::metadata(&path).and_then(|of| of.modified()).ok(), path))
        .collect();
    dead.sort();
    let count = dead.len().saturating_sub(DEAD_KEPT);
    dead.into_iter().take(count).for_each(|(_, path)| _ = fs::remove_file(path));
}

/// Reads the files of many processes. Each other user, who could make any number of long files, has a budget of
/// [`OTHERS_BYTES_MAX`].
#[derive(Debug)]
pub struct Reader {
    /// The user who reads, and who has no budget.
    user: u32,
    /// The bytes that may still be read of each other user's files.
    left: HashMap<u32, u64>,
    left_out: usize,
}

impl Reader {
    /// Creates a reader for the user of this process.
    pub fn of_this_user() -> Self {
        Reader { user: rustix::process::geteuid().as_raw(), left: HashMap::new(), left_out: 0 }
    }

    /// Reads a file, as [`read`] does.
    ///
    /// # Errors
    /// Fails as [`read`] does. It also fails if the file's user has no budget left.
    pub fn read(&mut self, path: &Path) -> io::Result<Recorded> {
        let (file, of) = open(path)?;
        let mut unlimited = u64::MAX;
        let left = match of.uid() == self.user {
            true => &mut unlimited,
            false => self.left.entry(of.uid()).or_insert(OTHERS_BYTES_MAX),
        };
        read_open(path, &file, &of, left).map_err(|error| {
            if error.kind() != ErrorKind::QuotaExceeded {
                return error;
            }
            self.left_out += 1;
            io::Error::other(format!("user {} has too many bytes in such files", of.uid()))
        })
    }

    /// Returns the number of files that were not read, because their users had no budget left.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

/// Reads a recorder's file. The path must not be a link: another user may have made it, and to open a device may
/// already do harm.
///
/// # Errors
/// The file cannot be read, or is no recorder's file. The error says which.
pub fn read(path: &Path) -> io::Result<Recorded> {
    let (file, of) = open(path)?;
    let mut unlimited = u64::MAX;
    read_open(path, &file, &of, &mut unlimited)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let of = file.metadata()?;
    if of.is_file() { Ok((file, of)) } else { Err(invalid("it is no file".to_owned())) }
}

/// Reads the places that a file had when it was opened, and takes the bytes that it reads from those that are left.
fn read_open(path: &Path, file: &File, of: &Metadata, left: &mut u64) -> io::Result<Recorded> {
    let places =
        of.len().div_ceil(PLACE_BYTES as u64).saturating_sub(1).min(PLACES as u64) as usize;
    // A file that does not fit takes nothing from the files after it.
    if *left < (PAGE_BYTES * (1 + places)) as u64 {
        return Err(ErrorKind::QuotaExceeded.into());
    }
    let mut pages = Pages { file, left };
    let mut header = [0; PAGE_BYTES];
    let len = pages.read(0, &mut header)?;
    let header = Header::parse(&header[..len]).map_err(|error| invalid(error.to_string()))?;
    let (mut records, mut ranks, mut damaged) = (Vec::new(), Vec::new(), 0);
    for number in 0..places {
        match pages.place(number)? {
            Some(Parsed::End(record)) => records.push((number, *record)),
            Some(Parsed::Rank(rank)) => ranks.push((number, *rank)),
            Some(Parsed::Nothing) => {}
            None => damaged += 1,
        }
    }
    let is_alive = !is_unlocked(file);
    Ok(Recorded {
        path: path.to_owned(),
        user: of.uid(),
        header,
        is_alive,
        records,
        ranks,
        damaged,
    })
}

/// A file that is read page by page.
struct Pages<'a> {
    file: &'a File,
    /// The bytes that may still be read.
    left: &'a mut u64,
}

impl Pages<'_> {
    /// Reads a page. Returns the number of its bytes, which are fewer at the end of the file.
    fn read(&mut self, at: usize, page: &mut [u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(page.len() as u64);
        *self.left = left.ok_or(ErrorKind::QuotaExceeded)?;
        self.file.read_at(page, at as u64)
    }

    /// Reads a place. Returns `None` if the place is damaged. If the messages of a record belong to another write,
    /// reads the record without them: a kill may end a write between two pages.
    fn place(&mut self, number: usize) -> io::Result<Option<Parsed>> {
        let at = PLACE_BYTES * (1 + number);
        let mut bytes = [0; PLACE_BYTES];
        let mut first = 0;
        for _ in 0..TRIES {
            first = self.read(at, &mut bytes[..PAGE_BYTES])?;
            let second = match Record::has_messages(&bytes[..first]) {
                true => self.read(at + PAGE_BYTES, &mut bytes[PAGE_BYTES..])?,
                false => 0,
            };
            if let Ok(parsed) = Parsed::of(&bytes[..first + second]) {
                return Ok(Some(parsed));
            }
        }
        Ok(Parsed::of(&bytes[..first]).ok())
    }
}

/// A place in a file, as a reader finds it.
enum Parsed {
    Nothing,
    End(Box<Record>),
    Rank(Box<RankRecord>),
}

impl Parsed {
    fn of(place: &[u8]) -> Result<Self, RecordError> {
        if RankRecord::is_one(place) {
            return RankRecord::parse(place).map(|rank| Parsed::Rank(Box::new(rank)));
        }
        let record = Record::parse(place)?;
        Ok(record.map_or(Parsed::Nothing, |record| Parsed::End(Box::new(record))))
    }
}

/// Returns the number of the process that a recorder's file is named after, as `4711.rec` or `4711-1.rec`.
pub fn process_of(file: &Path) -> Option<u32> {
    let stem = file.file_name()?.to_str()?.strip_suffix(".rec")?;
    let (pid, number) = stem.split_once('-').unwrap_or((stem, "0"));
    number.parse::<usize>().ok()?;
    pid.parse().ok()
}

/// Returns the files of recorders in a directory, of many no more than 4096.
pub fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_file()));
    files
        .map(|entry| entry.path())
        .filter(|path| process_of(path).is_some())
        .take(FILES_MAX)
        .collect()
}

/// Returns the files of recorders that this user can trust: its own, and for root those of all users.
pub fn files() -> Vec<PathBuf> {
    if rustix::process::geteuid().is_root() { files_of(|_| true) } else { own_files() }
}

/// Returns the files of recorders of this user's processes, wherever the processes keep them.
pub fn own_files() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    files_of(|owner| owner == uid)
}

/// Returns the files of users, each once. A directory counts if its owner alone can use it, so that nobody else
/// puts files there.
fn files_of(is_wanted: impl Fn(u32) -> bool) -> Vec<PathBuf> {
    let below = |dir: &str| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut dirs = vec![directory()];
    dirs.extend(below("/run/user").into_iter().map(|dir| dir.join("invar")));
    let is_ours = |dir: &PathBuf| {
        dir.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("invar-"))
    };
    dirs.extend(below("/tmp").into_iter().filter(is_ours));
    dirs.sort();
    dirs.dedup();
    let mut files = Vec::new();
    // A file may have several names.
    let mut known = HashSet::new();
    for dir in dirs {
        let Some(user) = owner_alone(&dir).ok().flatten().filter(|owner| is_wanted(*owner)) else {
            continue;
        };
        files.extend(files_in(&dir).into_iter().filter(|path| {
            fs::symlink_metadata(path)
                .is_ok_and(|of| of.uid() == user && known.insert((of.dev(), of.ino())))
        }));
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests;
