//! Where ranks meet: lets them in, passes on what they tell each other, and tells who is gone.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use invar_core::rendezvous::{
    Admission, Header, Kind, Member, Message, NOBODY, Roster, SECRET_BYTES, UniqueId,
};
use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, Lost};
use super::{TICK, deadline, nonce, random, this_member};
use crate::tcp::OobListener;
use crate::unix::wait;

/// Who connects must have joined within this; a host may be very busy while its ranks start.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(20);
/// Connections that have not joined.
const NEWCOMERS_MAX: usize = 256;
/// Where there are so many, the oldest gives way to the next one after this: a rank answers at once.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(3);
/// How long a hub that is let go waits for the ranks to leave.
const LINGER: Duration = Duration::from_secs(2);
/// Between two looks at whether they have.
const NAP: Duration = Duration::from_millis(1);

/// The hub of one communicator, in a thread of its own, which ends with the last rank. Dropped, it
/// waits for that two seconds at most; the thread goes on where ranks are still there, as long as
/// the process does.
#[derive(Debug)]
pub struct Hub {
    id: UniqueId,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    /// Listens at `addr` (port 0: one that the kernel picks) for `nranks` ranks, which have
    /// `within` to come. The address must be one that they can reach. Without a `secret` it makes
    /// one up.
    pub fn listen(
        addr: SocketAddr,
        nranks: u32,
        secret: Option<[u8; SECRET_BYTES]>,
        within: Duration,
    ) -> io::Result<Self> {
        let roster = Roster::new(nranks).ok_or_else(|| {
            let what = format!("a communicator of {nranks} ranks");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        let secret = secret.map_or_else(random, Ok)?;
        let listener = OobListener::bind(addr)?;
        let id = UniqueId::new(listener.local_addr()?, &secret);
        let closing = Arc::new(AtomicBool::new(false));
        let mut meeting = Meeting {
            secret,
            roster,
            deadline: deadline(within),
            within,
            newcomers: Vec::new(),
            ranks: Vec::new(),
            started: false,
        };
        let thread = thread::Builder::new().name("invar-hub".to_owned()).spawn({
            let closing = closing.clone();
            move || meeting.run(listener, &closing)
        })?;
        Ok(Hub { id, closing, thread: Some(thread) })
    }

    /// What every rank must be given.
    pub fn id(&self) -> UniqueId {
        self.id
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        let since = Instant::now();
        while !thread.is_finished() && since.elapsed() < LINGER {
            thread::sleep(NAP);
        }
    }
}

struct Meeting {
    secret: [u8; SECRET_BYTES],
    roster: Roster,
    deadline: Instant,
    within: Duration,
    /// In the order in which they came.
    newcomers: Vec<Newcomer>,
    ranks: Vec<Rank>,
    started: bool,
}

struct Newcomer {
    connection: Connection,
    /// None once it was refused.
    admission: Option<Admission>,
    since: Instant,
}

struct Rank {
    rank: u32,
    member: Member,
    connection: Connection,
    /// It said so.
    left: bool,
}

impl Meeting {
    fn run(&mut self, listener: OobListener, closing: &AtomicBool) {
        let mut listener = Some(listener);
        loop {
            self.sleep(listener.as_ref());
            if let Some(listening) = &listener {
                self.accept(listening);
                self.admit();
                if self.roster.is_complete() {
                    self.start();
                    listener = None;
                } else if Instant::now() >= self.deadline {
                    let missing = self.roster.missing().to_string();
                    let text = format!("{missing} did not join within {:?}", self.within);
                    self.tell(Header::new(Kind::Failed, text.len()), text.as_bytes());
                    return;
                }
            }
            self.serve();
            if self.started && self.ranks.is_empty() {
                return;
            }
            if !self.started && closing.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn sleep(&self, listener: Option<&OobListener>) {
        let newcomers = self.newcomers.iter().map(|newcomer| &newcomer.connection);
        let ranks = self.ranks.iter().map(|rank| &rank.connection);
        let mut fds: Vec<PollFd<'_>> = newcomers
            .chain(ranks)
            .map(|connection| PollFd::from_borrowed_fd(connection.as_fd(), connection.interest()))
            .collect();
        if let Some(listener) = listener.filter(|_| self.has_place()) {
            fds.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        if wait(&mut fds, TICK).is_err() {
            // This host is short of memory: go on slowly.
            thread::sleep(TICK);
        }
    }

    /// Whether another one may call.
    fn has_place(&self) -> bool {
        self.newcomers.len() < NEWCOMERS_MAX || self.newcomers[0].since.elapsed() >= GIVES_WAY_AFTER
    }

    fn accept(&mut self, listener: &OobListener) {
        while self.has_place() {
            // What keeps this host from accepting may pass; the ranks' deadline stands.
            let (Ok(Some(stream)), Ok(nonce)) = (listener.accept(), nonce()) else { return };
            let mut connection = Connection::new(stream);
            let (admission, challenge) = Admission::new(nonce);
            if connection.say(&challenge).is_ok() {
                let since = Instant::now();
                if self.newcomers.len() == NEWCOMERS_MAX {
                    drop(self.newcomers.remove(0));
                }
                self.newcomers.push(Newcomer { connection, admission: Some(admission), since });
            }
        }
    }

    fn admit(&mut self) {
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            // What it has said counts, however late this thread comes to hear it.
            match newcomer.connection.recv() {
                Ok(None) if newcomer.since.elapsed() >= HANDSHAKE_WITHIN => {}
                Ok(None) if newcomer.connection.flush().is_ok() => self.newcomers.push(newcomer),
                Ok(None) | Err(_) => {}
                Ok(Some((header, body))) => {
                    // Who was refused has nothing more to say.
                    let Some(admission) = newcomer.admission.take() else { continue };
                    let answer = admission.handle(header, &body, &self.secret, &mut self.roster);
                    match answer {
                        Ok((rank, member, welcome)) => {
                            let mut connection = newcomer.connection;
                            // Who is gone is found out by receiving.
                            let _ = connection.say(&welcome);
                            self.ranks.push(Rank { rank, member, connection, left: false });
                        }
                        Err(refusal) => {
                            let text = refusal.to_string();
                            let refused = Message::new(Kind::Refused, text.as_bytes());
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
        self.tell(Header { tag: host, ..Header::new(Kind::Started, 0) }, &[]);
        self.started = true;
    }

    /// Passes on what there is.
    fn serve(&mut self) {
        let mut said: Vec<(Header, Vec<u8>)> = Vec::new();
        let mut lost: Vec<(u32, Lost)> = Vec::new();
        for rank in &mut self.ranks {
            loop {
                match rank.connection.recv() {
                    Ok(Some((header, body))) => {
                        rank.left |= header.kind == Kind::Left;
                        said.push((Header { from: rank.rank, ..header }, body));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        lost.push((rank.rank, error));
                        break;
                    }
                }
            }
            if let Err(error) = rank.connection.flush() {
                lost.push((rank.rank, error));
            }
        }
        for (header, body) in said {
            match header.kind {
                Kind::Blob | Kind::Failed | Kind::Left => self.tell(header, &body),
                // Nobody says that after it joined.
                _ => {}
            }
        }
        for (number, error) in lost {
            let Some(at) = self.ranks.iter().position(|rank| rank.rank == number) else { continue };
            let rank = self.ranks.swap_remove(at);
            if !rank.left {
                let text = error.to_string();
                let header = Header { from: number, ..Header::new(Kind::Failed, text.len()) };
                self.tell(header, text.as_bytes());
            }
        }
    }

    /// Says something to the rank that it is for, or to all but the one that it is from.
    fn tell(&mut self, header: Header, body: &[u8]) {
        for rank in &mut self.ranks {
            let meant = header.to == NOBODY || header.to == rank.rank;
            if meant && rank.rank != header.from {
                // As in `admit`.
                let _ = rank.connection.send(header, body);
            }
        }
    }
}
