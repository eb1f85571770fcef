//! Shows a text to scrapers: over HTTP at a loopback port, over HTTP at a socket of the user, or in a file.
//!
//! A listener takes few callers at once and drops each that is not done in time. Callers that are silent, slow
//! or many can keep others out for a moment, and cost no more than that.

mod owner;
mod text_format;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Socket};

use crate::fork::NotInherited;
use crate::unix;
use owner::{call, shows_ours};
use text_format::text_format;

/// The most callers at once. A further caller takes the place of the oldest.
const CALLERS_MAX: usize = 16;
/// The longest request.
const REQUEST_BYTES_MAX: usize = 4096;
/// A caller that is not done within this time is dropped.
const CALL_MAX: Duration = Duration::from_secs(2);
/// A text is made anew at most this often.
const FRESH: Duration = Duration::from_millis(200);
/// A text is fresh for at least so many times the time that it took to make.
const RENDER_SHARE: u32 = 20;
/// Time between two tries to listen, and between two writes of a file.
const EVERY: Duration = Duration::from_secs(2);
/// Time between two looks at who listens at a place that is taken. A host with many connections has long tables.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Where scrapers find the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `GET /metrics` at this address, which is a loopback address.
    Tcp(SocketAddr),
    /// `GET /metrics` at this Unix socket, for this user and for root.
    Unix(PathBuf),
    /// This file, which is replaced as a whole.
    File(PathBuf),
}

/// A caller, and how far it is.
struct Call {
    caller: Socket,
    since: Instant,
    request: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

/// The text, and until when it is fresh.
struct Text<R> {
    render: R,
    made: Option<(Instant, String)>,
}

/// The reason why this process does not show the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// Another process of this user shows its metrics at the place.
    ShownByOurs,
    /// Another program or user listens at the place.
    Taken,
    Os(ErrorKind),
}

/// The last failure that the log tells of, and when this process last looked who listens at the place.
#[derive(Default)]
struct Told {
    failed: Option<Failed>,
    looked: Option<Instant>,
}

impl Told {
    /// Returns the failure if the log does not tell of it yet. Another user may take the place when a process of this
    /// user has left it, so the call looks again from time to time.
    fn news(
        &mut self,
        kind: ErrorKind,
        now: Instant,
        shows_ours: impl FnOnce() -> bool,
    ) -> Option<Failed> {
        let failed = match kind {
            ErrorKind::AddrInUse => {
                if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK_EVERY) {
                    return None;
                }
                self.looked = Some(now);
                if shows_ours() { Failed::ShownByOurs } else { Failed::Taken }
            }
            kind => {
                self.looked = None;
                Failed::Os(kind)
            }
        };
        (self.failed.replace(failed) != Some(failed)).then_some(failed)
    }
}

/// Shows the text of `render` for ever. Only one process can listen at a place; others wait until it ends.
pub fn show(place: &Endpoint, render: impl FnMut() -> String) -> ! {
    let mut text = Text { render, made: None };
    let mut told = Told::default();
    loop {
        let shown = match place {
            Endpoint::File(path) => write(path, &text_format(text.get())),
            Endpoint::Tcp(_) | Endpoint::Unix(_) => {
                listen(place).and_then(|at| serve(&at, &mut text))
            }
        };
        match shown {
            Err(error) => match told.news(error.kind(), Instant::now(), || shows_ours(place)) {
                None => {}
                Some(Failed::ShownByOurs) => log::info!(
                    "metrics at {place}: another process of this user shows them, with those of all \
                     processes whose recorders it finds"
                ),
                Some(Failed::Taken) => log::warn!(
                    "no metrics at {place}: another program or user listens there; choose another place in \
                     INVAR_METRICS"
                ),
                Some(Failed::Os(_)) => log::warn!("no metrics at {place}: {error}"),
            },
            Ok(()) => told = Told::default(),
        }
        thread::sleep(EVERY);
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Tcp(addr) => write!(f, "{addr}"),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl<R: FnMut() -> String> Text<R> {
    fn get(&mut self) -> &str {
        let made = match self.made.take() {
            Some((until, text)) if Instant::now() < until => (until, text),
            _ => self.render(),
        };
        &self.made.insert(made).1
    }

    /// Makes the text. One that takes long to make is fresh for longer, so that callers do not keep the processor
    /// busy.
    fn render(&mut self) -> (Instant, String) {
        let begun = Instant::now();
        let text = (self.render)();
        (Instant::now() + FRESH.max(begun.elapsed() * RENDER_SHARE), text)
    }
}

/// The line by which answers say whose metrics they have.
fn server_line(uid: u32) -> String {
    format!("Server: invar (uid {uid})\r\n")
}

/// The file that this process wrote last, with its device and its inode. A process that ends in order removes
/// the file, so that no scraper takes it for news.
static WRITTEN: Mutex<Option<(PathBuf, [u64; 2])>> = Mutex::new(None);

/// Writes the file of this process. The process removes the file when it exits.
fn write(path: &Path, text: &str) -> io::Result<()> {
    static AT_EXIT: Once = Once::new();
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn remove() {
        // A child of fork has neither the file nor the thread that may hold the lock.
        if PROCESS.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        // The lock is held until the process has ended, so that the file does not come back.
        let written = ManuallyDrop::new(WRITTEN.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some((path, file)) = &**written {
            remove_own(path, *file);
        }
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    // SAFETY: the function does not unwind, and stays loaded for as long as the process may call it.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(remove) });
    let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    *written = Some((path.to_owned(), replace(path, text)?));
    Ok(())
}

/// Removes a file, unless another process has replaced it meanwhile.
fn remove_own(path: &Path, file: [u64; 2]) {
    if fs::metadata(path).is_ok_and(|of| [of.dev(), of.ino()] == file) {
        let _ = fs::remove_file(path);
    }
}

/// Replaces a file as a whole, so that no reader finds a part. Returns the file's device and inode.
fn replace(path: &Path, text: &str) -> io::Result<[u64; 2]> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    let write = || {
        // Others may write to the folder too: neither their file nor a link of theirs is written to.
        let create = || OpenOptions::new().write(true).create_new(true).open(&new);
        let mut file = match create() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&new).and_then(|()| create())
            }
            created => created,
        }?;
        file.write_all(text.as_bytes())?;
        let of = file.metadata()?;
        fs::rename(&new, path)?;
        Ok([of.dev(), of.ino()])
    };
    write().inspect_err(|_| _ = fs::remove_file(&new))
}

fn listen(place: &Endpoint) -> io::Result<NotInherited<Socket>> {
    let listener: Socket = match place {
        Endpoint::Tcp(addr) if addr.ip().is_loopback() => TcpListener::bind(addr)?.into(),
        Endpoint::Unix(path) => {
            let listener = match UnixListener::bind(path) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && is_left_over(path) => {
                    fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                bound => bound,
            }?;
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            listener.into()
        }
        _ => return Err(io::Error::new(ErrorKind::InvalidInput, "not a loopback address")),
    };
    listener.set_nonblocking(true)?;
    Ok(NotInherited::new(listener))
}

/// Whether a socket is there at which nobody listens any more.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
    is_socket && call(path).is_err_and(refused)
}

/// Answers callers until the listener fails.
fn serve(listener: &Socket, text: &mut Text<impl FnMut() -> String>) -> io::Result<()> {
    let mut calls: Vec<Call> = Vec::new();
    loop {
        wait(listener, &calls)?;
        // A flood of callers must not keep those from their answers that are there.
        for _ in 0..CALLERS_MAX {
            let Some(caller) = accept(listener)? else { break };
            if calls.len() == CALLERS_MAX {
                calls.remove(0);
            }
            calls.push(Call::new(caller));
        }
        calls.retain_mut(|call| call.since.elapsed() < CALL_MAX && call.go_on(text));
    }
}

/// Waits until a caller comes or can go on, or until the next one is to be dropped.
fn wait(listener: &Socket, calls: &[Call]) -> io::Result<()> {
    let interest = |call: &Call| match call.answer.is_empty() {
        true => PollFlags::IN,
        false => PollFlags::OUT,
    };
    let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
    fds.extend(calls.iter().map(|call| PollFd::new(&call.caller, interest(call))));
    let left = calls.first().map(|call| CALL_MAX.saturating_sub(call.since.elapsed()));
    unix::wait(&mut fds, left)
}

/// Takes a caller, if there is one that may call.
fn accept(listener: &Socket) -> io::Result<Option<Socket>> {
    let caller = listener.accept().and_then(|(caller, _)| {
        caller.set_nonblocking(true)?;
        if caller.domain()? != Domain::UNIX {
            return Ok(Some(caller));
        }
        let of = rustix::net::sockopt::socket_peercred(&caller)?;
        let is_ours = of.uid.is_root() || of.uid == rustix::process::geteuid();
        Ok(is_ours.then_some(caller))
    });
    match caller {
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {
                Ok(None)
            }
            _ => Err(error),
        },
        caller => caller,
    }
}

impl Call {
    fn new(caller: Socket) -> Self {
        let (request, answer) = (Vec::new(), Vec::new());
        Call { caller, since: Instant::now(), request, answer, sent: 0 }
    }

    /// Reads and writes what is possible. Returns whether the caller is to stay.
    fn go_on(&mut self, text: &mut Text<impl FnMut() -> String>) -> bool {
        let Call { caller, request, answer, sent, .. } = self;
        let would_block = |error: &io::Error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        };
        if answer.is_empty() {
            let mut bytes = [0; REQUEST_BYTES_MAX];
            match caller.read(&mut bytes[request.len()..]) {
                Ok(0) => return false,
                Ok(len) => request.extend(&bytes[request.len()..][..len]),
                Err(error) => return would_block(&error),
            }
            let is_whole = request.windows(4).any(|four| four == b"\r\n\r\n");
            if !is_whole && request.len() < REQUEST_BYTES_MAX {
                return true;
            }
            *answer = answer_to(request, text);
        }
        // A caller that has gone raises no signal, which would end the program.
        match caller.send_with_flags(&answer[*sent..], libc::MSG_NOSIGNAL) {
            Ok(len) => {
                *sent += len;
                len > 0 && *sent < answer.len()
            }
            Err(error) => would_block(&error),
        }
    }
}

fn answer_to(request: &[u8], text: &mut Text<impl FnMut() -> String>) -> Vec<u8> {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let plain = "text/plain";
    let (status, kind, body) = match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics"), Some(b"HTTP/1.0" | b"HTTP/1.1")) => {
            ("200 OK", OPEN_METRICS, text.get())
        }
        (Some(b"GET"), Some(_), Some(b"HTTP/1.0" | b"HTTP/1.1")) => {
            ("404 Not Found", plain, "metrics are at /metrics\n")
        }
        _ => ("400 Bad Request", plain, "only GET /metrics\n"),
    };
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{}Content-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n",
        server_line(rustix::process::geteuid().as_raw())
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpStream};

    use super::*;

    fn answer(request: &[u8]) -> String {
        let mut text = Text { render: || "# EOF\n".to_owned(), made: None };
        String::from_utf8(answer_to(request, &mut text)).unwrap()
    }

    #[test]
    fn only_a_get_of_metrics_is_answered_with_metrics() {
        let ok = answer(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(ok.starts_with("HTTP/1.1 200 ") && ok.ends_with("\r\n\r\n# EOF\n"), "{ok}");
        assert!(answer(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(answer(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(answer(&[0x47; REQUEST_BYTES_MAX]).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn a_socket_that_a_dead_process_left_is_taken_over_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        drop(UnixListener::bind(&path).unwrap());
        let place = Endpoint::Unix(path.clone());
        let listener = listen(&place).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&place).err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
        drop(listener);
        fs::write(&path, "").unwrap_err();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "kept").unwrap();
        assert!(listen(&place).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    }

    #[test]
    fn a_listener_that_is_no_process_of_this_user_with_metrics_is_told_apart() {
        let listener = listen(&Endpoint::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let ours = Endpoint::Tcp(listener.local_addr().unwrap().as_socket().unwrap());
        thread::spawn(move || serve(&listener, &mut Text { render: String::new, made: None }));
        assert!(shows_ours(&ours));
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let others = Endpoint::Tcp(other.local_addr().unwrap());
        thread::spawn(move || {
            other.accept().unwrap().0.write_all(b"HTTP/1.1 200 OK\r\nServer: dcgm\r\n\r\n")
        });
        assert!(!shows_ours(&others));
    }

    #[test]
    fn a_place_that_another_user_takes_after_a_process_of_this_user_is_told_of() {
        let (start, mut told) = (Instant::now(), Told::default());
        let mut news =
            |s, kind, is_ours| told.news(kind, start + Duration::from_secs(s), || is_ours);
        assert_eq!(news(0, ErrorKind::AddrInUse, true), Some(Failed::ShownByOurs));
        assert_eq!(news(29, ErrorKind::AddrInUse, false), None, "not looked at yet");
        assert_eq!(news(30, ErrorKind::AddrInUse, false), Some(Failed::Taken));
        assert_eq!(news(60, ErrorKind::AddrInUse, false), None, "told already");
        let denied = ErrorKind::PermissionDenied;
        assert_eq!(news(61, denied, false), Some(Failed::Os(denied)));
        assert_eq!(news(62, denied, false), None);
        assert_eq!(news(63, ErrorKind::AddrInUse, true), Some(Failed::ShownByOurs));
    }

    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, kept] = ["metrics.prom", "kept"].map(|name| folder.path().join(name));
        fs::write(&kept, "kept").unwrap();
        let beside = folder.path().join(format!("metrics.prom.{}", std::process::id()));
        std::os::unix::fs::symlink(&kept, beside).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn only_the_process_that_wrote_a_file_last_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.prom");
        let first = replace(&path, "one").unwrap();
        let second = replace(&path, "two").unwrap();
        // An inode may be used again at once.
        if first != second {
            remove_own(&path, first);
            assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        }
        remove_own(&path, second);
        assert!(!path.exists());
    }

    #[test]
    fn an_address_that_others_reach_is_refused() {
        let place = Endpoint::Tcp("0.0.0.0:0".parse().unwrap());
        assert_eq!(listen(&place).err().map(|error| error.kind()), Some(ErrorKind::InvalidInput));
    }

    #[test]
    fn a_caller_that_closes_early_or_sends_nothing_keeps_nobody_out() {
        let listener = listen(&Endpoint::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        thread::spawn(move || {
            let mut text = Text { render: || "a".repeat(1 << 20), made: None };
            serve(&listener, &mut text)
        });
        let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(addr).unwrap()).collect();
        silent[39].shutdown(Shutdown::Both).unwrap();
        let mut caller = TcpStream::connect(addr).unwrap();
        caller.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        caller.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut all = String::new();
        caller.read_to_string(&mut all).unwrap();
        assert!(all.ends_with(&"a".repeat(1 << 20)), "{} bytes", all.len());
    }
}
