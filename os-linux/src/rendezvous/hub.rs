//! The hub at which ranks meet. It admits ranks, forwards their messages, and reports ranks that are
//! gone.

mod stuck;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use invar_core::auth::{Secret, Service};
use invar_core::param::PortRange;
use invar_core::rendezvous::{
    Admitted, COMMUNICATOR_ID_BYTES, Member, NOBODY, RendezvousHeader, RendezvousKind,
    RendezvousMessage, Roster, SEALED_BYTES_MAX, Speaker, UniqueId, admit,
};
use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, Lost};
use super::{TICK, deadline, this_member};
use crate::clock::now_ns;
use crate::own_thread::OwnThread;
use crate::random::random;
use crate::tcp::{AuthListener, Proof, TurnedAway, is_out_of_files};
use crate::unix::wait;
use stuck::{LastView, Stuck};

/// Maximum time between a rank's proof and its join message. A host may be very busy while its ranks
/// start.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(20);
/// While this many bytes wait for any rank, the hub reads from no rank.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Most messages of a rank that the hub forwards in a turn.
const MESSAGES_AT_ONCE: usize = 64;
/// Time that a dropped hub waits for the ranks to leave.
const LINGER: Duration = Duration::from_secs(2);
/// Interval between two checks whether the ranks have left.
const NAP: Duration = Duration::from_millis(1);

/// A hub that listens and does not serve yet. Ranks that call meanwhile wait in the kernel's queue.
#[derive(Debug)]
pub struct HubListener {
    id: UniqueId,
    listener: AuthListener,
}

/// The hub of one communicator, in its own thread, which ends with the last rank. Dropping it waits at
/// most two seconds for that. If ranks are still there, the thread continues until the process ends.
#[derive(Debug)]
pub struct Hub {
    id: UniqueId,
    closing: Arc<AtomicBool>,
    thread: Option<OwnThread>,
}

impl HubListener {
    /// Listens at `addr`; if `addr` has port 0, on the first free port of `ports`. The ranks must be able
    /// to reach the address. Without a `secret` the hub makes one up.
    pub fn bind(addr: SocketAddr, ports: PortRange, secret: Option<Secret>) -> io::Result<Self> {
        let secret = secret.map_or_else(|| random().map(Secret::new), Ok)?;
        let listener = AuthListener::bind(addr, ports, Proof::Secret(secret, Service::Rendezvous))?;
        Ok(HubListener { id: UniqueId::new(listener.local_addr()?, &secret), listener })
    }

    /// Returns the id that every rank needs to join.
    pub fn id(&self) -> UniqueId {
        self.id
    }

    /// Starts to serve `nranks` ranks, which must join `within` that time.
    pub fn start(self, nranks: u32, within: Duration) -> io::Result<Hub> {
        let HubListener { id, listener } = self;
        let roster = Roster::new(nranks).ok_or_else(|| {
            let what = format!("a communicator of {nranks} ranks");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let closing = Arc::new(AtomicBool::new(false));
        let mut meeting = Meeting {
            communicator: random()?,
            roster,
            deadline: deadline(within),
            within,
            newcomers: Vec::new(),
            ranks: Vec::new(),
            refused: None,
            failed: None,
            started: false,
            stuck: Stuck::default(),
        };
        let thread = OwnThread::start("invar-hub", {
            let closing = closing.clone();
            move || meeting.run(listener, &closing)
        })?;
        Ok(Hub { id, closing, thread: Some(thread) })
    }
}

impl Hub {
    /// Listens as [`HubListener::bind`] does, and serves `nranks` ranks at once.
    pub fn listen(
        addr: SocketAddr,
        ports: PortRange,
        nranks: u32,
        secret: Option<Secret>,
        within: Duration,
    ) -> io::Result<Self> {
        HubListener::bind(addr, ports, secret)?.start(nranks, within)
    }

    /// Returns the id that every rank needs to join.
    pub fn id(&self) -> UniqueId {
        self.id
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        let Some(thread) = self.thread.take().filter(OwnThread::is_here) else { return };
        let since = Instant::now();
        while !thread.is_finished() && since.elapsed() < LINGER {
            thread::sleep(NAP);
        }
        thread.detach();
    }
}

struct Meeting {
    communicator: [u8; COMMUNICATOR_ID_BYTES],
    roster: Roster,
    deadline: Instant,
    within: Duration,
    /// Callers that have proved themselves and not joined yet.
    newcomers: Vec<Newcomer>,
    ranks: Vec<Rank>,
    /// The last error with which this host could not accept a caller.
    refused: Option<io::Error>,
    /// The first failure, for ranks that join later.
    failed: Option<(RendezvousHeader, Vec<u8>)>,
    started: bool,
    stuck: Stuck,
}

struct Newcomer {
    connection: Connection,
    is_refused: bool,
    since: Instant,
}

struct Rank {
    rank: u32,
    member: Member,
    connection: Connection,
    /// Whether the rank has said that it is done.
    left: bool,
    view: LastView,
}

impl Meeting {
    fn run(&mut self, listener: AuthListener, closing: &AtomicBool) {
        let mut listener = Some(listener);
        loop {
            self.sleep(listener.as_ref());
            if let Some(listening) = &mut listener {
                self.accept(listening);
                self.admit();
                if self.roster.is_complete() && self.failed.is_none() {
                    self.start();
                    listener = None;
                } else if Instant::now() >= self.deadline {
                    if self.failed.is_none() {
                        let missing = self.roster.missing().to_string();
                        let mut text = format!("{missing} did not join within {:?}", self.within);
                        text += &why_not(listening.turned_away(), self.refused.as_ref());
                        text.truncate(text.floor_char_boundary(SEALED_BYTES_MAX));
                        self.tell(
                            RendezvousHeader::new(RendezvousKind::Failed, text.len()),
                            text.as_bytes(),
                        );
                    }
                    return;
                }
            }
            self.serve();
            self.look_for_stuck();
            if self.started && self.ranks.is_empty() {
                return;
            }
            if !self.started && closing.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn sleep(&self, listener: Option<&AuthListener>) {
        let receives = !self.is_clogged();
        let newcomers = self.newcomers.iter().map(|newcomer| (&newcomer.connection, true));
        let ranks = self.ranks.iter().map(|rank| (&rank.connection, receives));
        let mut fds: Vec<PollFd<'_>> = newcomers
            .chain(ranks)
            .map(|(connection, receives)| PollFd::new(connection, connection.interest(receives)))
            .collect();
        let mut within = TICK;
        match listener {
            Some(listener) if listener.is_full() => within = NAP,
            Some(listener) => fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)),
            None => {}
        }
        if wait(&mut fds, within).is_err() {
            // This host is short of memory: continue slowly.
            thread::sleep(TICK);
        }
    }

    fn accept(&mut self, listener: &mut AuthListener) {
        loop {
            match listener.poll(now_ns()) {
                Ok(Some((stream, session))) => {
                    let connection = Connection::new(stream, &session, Speaker::Hub);
                    let since = Instant::now();
                    self.newcomers.push(Newcomer { connection, is_refused: false, since });
                }
                Ok(None) => {
                    self.refused = listener.out_of_files().or(self.refused.take());
                    return;
                }
                // The error may be temporary; the ranks' deadline stays the same.
                Err(error) => {
                    self.refused = Some(error);
                    thread::sleep(NAP);
                    return;
                }
            }
        }
    }

    fn admit(&mut self) {
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            // A message that has arrived counts, however late this thread reads it.
            match newcomer.connection.recv() {
                Ok(None) if newcomer.since.elapsed() >= HANDSHAKE_WITHIN => {}
                Ok(None) if newcomer.connection.flush().is_ok() => self.newcomers.push(newcomer),
                Ok(None) | Err(_) => {}
                Ok(Some((header, body))) => {
                    // A refused rank has nothing more to say.
                    if newcomer.is_refused {
                        continue;
                    }
                    match admit(header, &body, &mut self.roster) {
                        Ok(Admitted { rank, member, silence_ms }) => {
                            let mut connection = newcomer.connection;
                            if silence_ms > 0 {
                                connection.bear_silence(Duration::from_millis(silence_ms.into()));
                            }
                            let welcome = RendezvousMessage::new(RendezvousKind::Welcome, &[]);
                            // If the rank is gone, receiving will show it.
                            let _ = connection.say(&welcome);
                            if let Some((header, body)) = &self.failed {
                                let _ = connection.send(*header, body);
                            }
                            let (left, view) = (false, None);
                            self.ranks.push(Rank { rank, member, connection, left, view });
                        }
                        Err(refusal) => {
                            let text = refusal.to_string();
                            let refused =
                                RendezvousMessage::new(RendezvousKind::Refused, text.as_bytes());
                            newcomer.is_refused = true;
                            if newcomer.connection.say(&refused).is_ok() {
                                self.newcomers.push(newcomer);
                            }
                        }
                    }
                }
            }
        }
    }

    fn start(&mut self) {
        self.newcomers.clear();
        let us = this_member();
        let host =
            self.ranks.iter().find(|rank| rank.member == us).map_or(NOBODY, |rank| rank.rank);
        let id = self.communicator;
        self.tell(
            RendezvousHeader {
                tag: host,
                ..RendezvousHeader::new(RendezvousKind::Started, id.len())
            },
            &id,
        );
        self.started = true;
    }

    /// Whether a rank reads its messages more slowly than others send them.
    fn is_clogged(&self) -> bool {
        self.ranks.iter().any(|rank| rank.connection.unsent_bytes() >= UNSENT_BYTES_MAX)
    }

    /// Forwards the available messages.
    fn serve(&mut self) {
        let mut lost: Vec<(u32, Lost)> = Vec::new();
        for rank in &mut self.ranks {
            if let Err(error) = rank.connection.flush() {
                lost.push((rank.rank, error));
            }
        }
        for at in 0..self.ranks.len() {
            // A rank that sends without end must not keep the hub from the others.
            for _ in 0..MESSAGES_AT_ONCE {
                // What a rank has sent before it ended is bounded, and its end must be seen.
                if self.is_clogged() && !self.ranks[at].connection.has_ended() {
                    break;
                }
                let rank = &mut self.ranks[at];
                match rank.connection.recv() {
                    Ok(Some((header, body))) => {
                        rank.left |= header.kind == RendezvousKind::Left;
                        let header = RendezvousHeader { from: rank.rank, ..header };
                        match header.kind {
                            RendezvousKind::Blob
                            | RendezvousKind::Failed
                            | RendezvousKind::Left => self.tell(header, &body),
                            RendezvousKind::View => self.heard_view(at, &body),
                            // A rank that has joined sends no other kinds.
                            _ => {}
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        lost.push((rank.rank, error));
                        break;
                    }
                }
            }
        }
        for (number, error) in lost {
            let Some(at) = self.ranks.iter().position(|rank| rank.rank == number) else { continue };
            let rank = self.ranks.swap_remove(at);
            if !rank.left {
                let text = error.to_string();
                let header = RendezvousHeader {
                    from: number,
                    ..RendezvousHeader::new(RendezvousKind::Failed, text.len())
                };
                self.tell(header, text.as_bytes());
            }
        }
    }

    /// Sends a message to its addressee, or to all ranks except the sender.
    fn tell(&mut self, header: RendezvousHeader, body: &[u8]) {
        if header.kind == RendezvousKind::Failed && self.failed.is_none() {
            self.failed = Some((header, body.to_vec()));
        }
        for rank in &mut self.ranks {
            let meant = header.to == NOBODY || header.to == rank.rank;
            if meant && rank.rank != header.from {
                // Flushing or reading this rank will show the error again.
                let _ = rank.connection.send(header, body);
            }
        }
    }
}

/// Formats the reasons that may have kept ranks out, as the end of an error's text.
fn why_not(turned_away: &TurnedAway, refused: Option<&io::Error>) -> String {
    let mut text = String::new();
    if turned_away.count > 0 {
        text += &format!("; {turned_away}");
    }
    if let Some(error) = refused {
        text += &format!("; the host of the rendezvous could take no caller in: {error}");
        if is_out_of_files(error) {
            text += "; raise the number of open files there (ulimit -n)";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use invar_core::auth::AuthError;

    use super::*;
    use crate::tcp::WhyNot;

    #[test]
    fn ranks_that_are_missed_may_have_another_secret_or_met_a_host_without_descriptors() {
        assert_eq!(why_not(&TurnedAway::default(), None), "");
        let last = ("10.0.0.7:4000".parse().unwrap(), WhyNot::Auth(AuthError::Secret));
        let turned_away = TurnedAway { count: 3, last: Some(last) };
        let files = io::Error::from_raw_os_error(libc::EMFILE);
        let text = why_not(&turned_away, Some(&files));
        let secret = "; 3 callers were turned away, the last from 10.0.0.7:4000: the peer does not";
        assert!(text.starts_with(secret), "{text}");
        assert!(text.contains("no caller in: Too many open files"), "{text}");
        assert!(text.ends_with("there (ulimit -n)"), "{text}");
    }
}
