//! A child of `fork` uses no value that belongs to its parent, and holds none of its parent's sockets open.
//!
//! A child has a copy of each descriptor of its parent. If the parent is killed, the kernel keeps its connections for
//! the child, and no peer hears of the end. A child could also end its parent's connections. So in a child each of
//! these sockets gives way to one that is connected to nothing. Programs that the parent starts have none of them,
//! since all sockets close on exec.
//!
//! A child keeps its copy if another thread forks while a socket is being opened or closed, or if the process has no
//! descriptor left.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Descriptors with this number or a higher one stay open in children.
const FDS: usize = 1 << 20;
const WORD_BITS: usize = u64::BITS as usize;

/// Number of forks that lead from the first process with this library to this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Number of callers at all listeners of this process that have not proved themselves. A child of `fork` begins
/// with 0, although it has copies of its parent's listeners.
pub(crate) static CALLERS: AtomicUsize = AtomicUsize::new(0);

/// The process that made a value. A child of `fork` has a copy of the value and must not use it.
#[derive(Clone, Copy, Debug)]
pub struct OwnerProcess {
    id: u32,
    forks: u64,
}

impl OwnerProcess {
    /// Returns the calling process.
    pub fn current() -> Self {
        handle_forks();
        OwnerProcess { id: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether the calling process is the owner. The call makes no system call.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Returns the owner's process id.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Registers the handler of forks once.
fn handle_forks() {
    static HANDLER: Once = Once::new();
    // Without memory for the handler, a child has copies of sockets and takes itself for its parent.
    // SAFETY: the handler only calls functions that are safe in a child of a process with threads.
    HANDLER.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
}

/// A bit for each descriptor that is a [`NotInherited`] socket. The kernel gives pages only to words in use.
static SOCKETS: [AtomicU64; FDS / WORD_BITS] = [const { AtomicU64::new(0) }; FDS / WORD_BITS];

/// A socket of this process. In a child of `fork` it is connected to nothing.
#[derive(Debug)]
pub(crate) struct NotInherited<S: AsRawFd>(S);

impl<S: AsRawFd> NotInherited<S> {
    pub(crate) fn new(socket: S) -> Self {
        handle_forks();
        if let Some((word, bit)) = place(socket.as_raw_fd()) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        NotInherited(socket)
    }
}

impl<S: AsRawFd> Drop for NotInherited<S> {
    fn drop(&mut self) {
        // The socket is closed after this, so the number is not in use again yet.
        if let Some((word, bit)) = place(self.0.as_raw_fd()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

impl<S: AsRawFd> Deref for NotInherited<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: AsRawFd> DerefMut for NotInherited<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}

impl<S: AsRawFd + AsFd> AsFd for NotInherited<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((SOCKETS.get(fd / WORD_BITS)?, 1 << (fd % WORD_BITS)))
}

/// Counts the fork, forgets the callers and replaces the sockets, in a child of `fork`. The child has one thread, and
/// locks that other threads of the parent held stay locked: only system calls are possible.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    CALLERS.store(0, Ordering::Relaxed);
    let mut nothing = -1;
    for (at, word) in SOCKETS.iter().enumerate() {
        // Words that are not written stay one page.
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        // The child may use these numbers again.
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = (at * WORD_BITS) as RawFd + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: these calls touch descriptors only. The owner of `fd` keeps it, and finds another socket there.
            unsafe {
                if nothing < 0 {
                    nothing =
                        libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
                }
                libc::dup3(nothing, fd, libc::O_CLOEXEC);
            }
        }
    }
    if nothing >= 0 {
        // SAFETY: the descriptor was opened above, and nobody else knows it.
        unsafe { libc::close(nothing) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;

    /// A child of `fork`, which is killed on drop.
    struct Child(libc::pid_t);

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: nobody has waited for the child yet.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    /// Forks. The child runs `body`, and lives until it is killed.
    fn fork(body: impl FnOnce()) -> Child {
        // SAFETY: the child calls nothing that needs a lock of another thread.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            body();
            loop {
                // SAFETY: the call only waits.
                unsafe { libc::pause() };
            }
        }
        Child(pid)
    }

    #[test]
    fn a_peer_hears_of_the_end_though_a_child_of_fork_lives() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = NotInherited::new(ours);
        let (mut told, tell) = UnixStream::pair().unwrap();
        let _child = fork(|| {
            // The child's copy is connected to nothing.
            let is_dead = (&*ours).write(&[1]).is_err();
            let _ = (&tell).write(&[u8::from(is_dead)]);
            // Its end is not the parent's.
            let _ = ours.shutdown(std::net::Shutdown::Both);
        });
        let mut is_dead = [0];
        told.read_exact(&mut is_dead).unwrap();
        assert_eq!(is_dead, [1]);
        (&*ours).write_all(&[7]).unwrap();
        drop(ours);
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).unwrap();
        assert_eq!(read, [7]);
    }

    #[test]
    fn a_child_knows_the_values_of_its_parent_from_its_own() {
        let owner = OwnerProcess::current();
        let (mut told, tell) = UnixStream::pair().unwrap();
        let _child = fork(|| {
            let own = OwnerProcess::current();
            let is_current = [owner, own].map(|process| u8::from(process.is_current()));
            let _ = (&tell).write(&is_current);
        });
        let mut is_current = [9; 2];
        told.read_exact(&mut is_current).unwrap();
        assert_eq!(is_current, [0, 1]);
        assert!(owner.is_current());
        assert_eq!(owner.id(), std::process::id());
    }

    #[test]
    fn a_child_does_not_count_the_callers_of_its_parent() {
        handle_forks();
        // Listeners of other tests may count too.
        CALLERS.fetch_add(1, Ordering::Relaxed);
        let (mut told, tell) = UnixStream::pair().unwrap();
        let _child = fork(|| {
            let has_none = CALLERS.load(Ordering::Relaxed) == 0;
            let _ = (&tell).write(&[u8::from(has_none)]);
        });
        let mut has_none = [9];
        told.read_exact(&mut has_none).unwrap();
        assert_eq!(has_none, [1]);
        assert!(CALLERS.fetch_sub(1, Ordering::Relaxed) >= 1);
    }

    #[test]
    fn a_number_that_is_used_again_is_left_alone() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        // The number stays in use, so that no other test gets it.
        let ours = Arc::new(ours);
        drop(NotInherited::new(Arc::clone(&ours)));
        let (word, bit) = place(ours.as_raw_fd()).unwrap();
        assert_eq!(word.load(Ordering::Relaxed) & bit, 0);
        assert!(place(-1).is_none() && place(FDS as RawFd).is_none());
    }
}
