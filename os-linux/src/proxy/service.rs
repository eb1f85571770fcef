//! The service thread, which sets up connections (`proxy.cc ncclProxyService`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use invar_core::proxy::{
    BankSlot, ConnectionEntry, Connections, LOCAL_RANKS_MAX, Pending, ProxySession, Reply,
    SessionEvent, Setup,
};
use rustix::event::{PollFd, PollFlags};
use rustix::thread::CpuSet;

use super::bound::TICK;
use super::{HeapBanks, thread};
use crate::abort::Abort;
use crate::unix::{FdStream, listen, wait};

/// Maximum number of reads from one rank before other ranks have their turn.
const READS_MAX: usize = 64;
/// Sleep between checks of pending requests, because nothing signals their progress.
const PENDING_NAP: Duration = Duration::from_micros(200);

/// Settings of a service.
#[derive(Debug, Default)]
pub struct ServiceSettings {
    /// The GPU that the service serves; part of the thread's name.
    pub device: u32,
    /// Processors that the thread may run on; `None` means all.
    pub cpus: Option<CpuSet>,
}

/// A running service. Dropping it ends all sessions and waits for the thread's end.
#[derive(Debug)]
pub struct Service {
    address: String,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Service {
    /// Starts the service; `setup` sets up the connections.
    pub fn spawn<S>(settings: ServiceSettings, abort: Abort, setup: S) -> io::Result<Self>
    where
        S: Setup<Fd = OwnedFd> + Send + 'static,
    {
        let (listener, address) = listen("proxy")?;
        let end = Arc::new(AtomicBool::new(false));
        let mut serving = Serving {
            listener,
            peers: Vec::new(),
            sessions: 0,
            refused: None,
            connections: Connections::new(HeapBanks::default()),
            setup,
            stopping: false,
        };
        let ends = Arc::clone(&end);
        let name = format!("InvarService{:2}", settings.device);
        let thread = thread::spawn(name, settings.cpus, move || {
            let result = serving.run(&|| ends.load(Ordering::Acquire) || abort.is_set());
            serving.end_all();
            result
        })?;
        Ok(Service { address, end, thread: Some(thread) })
    }

    /// Returns the address to which ranks [connect](super::ProxyClient::connect).
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the service's end. It ends once a rank has asked for the end and all sessions are over,
    /// or when the communicator is aborted.
    pub fn join(mut self) -> io::Result<()> {
        self.thread.take().map_or(Ok(()), joined)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.end.store(true, Ordering::Release);
            // Nobody asks for the reason of the end here.
            let _ = joined(thread);
        }
    }
}

fn joined(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the service thread panicked")))
}

/// The state of the service thread.
struct Serving<S> {
    listener: UnixListener,
    peers: Vec<Peer>,
    /// Number of sessions since the start.
    sessions: u32,
    /// Time at which the host last lacked the descriptors or memory to accept a rank.
    refused: Option<Instant>,
    connections: Connections<HeapBanks<BankSlot<ConnectionEntry>>>,
    setup: S,
    /// Whether a rank has asked for the end.
    stopping: bool,
}

struct Peer {
    stream: FdStream,
    session: ProxySession<HeapBanks<Option<Pending>>>,
}

impl Peer {
    fn interest(&self) -> PollFlags {
        self.stream.interest(self.is_heard())
    }

    /// Whether to read from the rank. The service reads only from ranks that read its replies.
    fn is_heard(&self) -> bool {
        self.stream.is_flushed()
    }

    /// Handles the requests of the rank. A returned event or an error ends the session: the rank is
    /// gone, or it sent an invalid request.
    fn serve<S: Setup<Fd = OwnedFd>>(
        &mut self,
        connections: &mut Connections<HeapBanks<BankSlot<ConnectionEntry>>>,
        setup: &mut S,
    ) -> io::Result<Option<SessionEvent<OwnedFd>>> {
        self.stream.flush()?;
        for _ in 0..READS_MAX {
            if !self.is_heard() {
                break;
            }
            // A rank has no reason to send a file descriptor; the drop closes it.
            let Some((n, _)) = self.stream.recv(self.session.space())? else { break };
            match self.session.filled(n, connections, setup).map_err(io::Error::other)? {
                None => {}
                Some(SessionEvent::Reply(reply)) => self.send(reply)?,
                end => return Ok(end),
            }
        }
        // This loop checks each pending request once.
        for _ in 0..self.session.pending() {
            if let Some(reply) = self.session.progress(connections, setup) {
                self.send(reply)?;
            }
        }
        Ok(None)
    }

    fn send(&mut self, reply: Reply<OwnedFd>) -> io::Result<()> {
        self.stream.send([&reply.header[..], &reply.body].concat(), reply.fd)
    }
}

impl<S: Setup<Fd = OwnedFd>> Serving<S> {
    fn run(&mut self, ended: &dyn Fn() -> bool) -> io::Result<()> {
        while !(ended() || self.stopping && self.peers.is_empty()) {
            let pending = self.peers.iter().any(|peer| peer.session.pending() > 0);
            self.wait(if pending { PENDING_NAP } else { TICK })?;
            self.accept();
            let mut at = 0;
            while at < self.peers.len() {
                match self.peers[at].serve(&mut self.connections, &mut self.setup) {
                    Ok(None) => at += 1,
                    end => {
                        self.stopping |= matches!(end, Ok(Some(SessionEvent::Stop)));
                        let Peer { session, .. } = self.peers.swap_remove(at);
                        session.end(&mut self.connections, &mut self.setup);
                    }
                }
            }
        }
        Ok(())
    }

    fn end_all(&mut self) {
        for Peer { session, .. } in self.peers.drain(..) {
            session.end(&mut self.connections, &mut self.setup);
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let peers = self.peers.iter().map(|peer| (peer, peer.interest()));
        let listens = self.takes_in();
        let interest = if listens { PollFlags::IN } else { PollFlags::empty() };
        let listener = PollFd::from_borrowed_fd(self.listener.as_fd(), interest);
        let mut fds: Vec<PollFd<'_>> = std::iter::once(listener)
            .chain(peers.map(|(peer, interest)| PollFd::new(&peer.stream, interest)))
            .collect();
        wait(&mut fds, timeout)
    }

    /// Whether the service accepts ranks now.
    fn takes_in(&self) -> bool {
        self.refused.is_none_or(|refused| refused.elapsed() >= TICK)
    }

    /// Accepts ranks. The service rejects a rank of another user, and a rank beyond the maximum. If the
    /// host lacks resources, existing sessions continue, and the service accepts again a little later.
    fn accept(&mut self) {
        // A flood of callers must not keep the others from their answers.
        for _ in 0..LOCAL_RANKS_MAX {
            if !self.takes_in() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) if self.peers.len() < LOCAL_RANKS_MAX => {
                    if let Ok(stream) = FdStream::new(stream) {
                        self.sessions += 1;
                        let session = ProxySession::new(self.sessions, HeapBanks::default());
                        self.peers.push(Peer { stream, session });
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.refused = None;
                    return;
                }
                // The rank gave up before the service accepted it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.refused.replace(Instant::now()).is_none() {
                        log::warn!("the proxy's service can take no rank in: {error}");
                    }
                }
            }
        }
    }
}
