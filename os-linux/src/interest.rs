//! The descriptors that wake a waiting thread or task once they are readable or writable.
//!
//! A wait has three steps. The waiter arms the interest, looks whether there is something to do already, and
//! sleeps. Whatever happens after the first step ends the sleep, so no news is missed.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// Number of descriptors that one call takes note of.
const BATCH: usize = 16;

/// The descriptors that end the sleep of one waiter.
///
/// The kernel holds the set of descriptors (`epoll(7)`). Each descriptor ends one sleep at most and is then
/// armed again, so a descriptor that nobody needs any more disturbs once at most. A descriptor stays open
/// as long as the interest exists, or is never armed again.
#[derive(Debug, Default)]
pub struct Interest {
    /// The kernel's set, once there is a descriptor.
    epoll: Option<OwnedFd>,
    known: Vec<Known>,
    is_blind: bool,
}

/// A descriptor that the kernel's set has.
#[derive(Debug)]
struct Known {
    fd: RawFd,
    /// The number that tells the connection from others, or 0.
    id: u64,
    flags: EventFlags,
    is_armed: bool,
}

impl Interest {
    /// Begins to arm: what is armed from now on is complete.
    pub fn begin(&mut self) {
        self.is_blind = false;
        self.take(Some(&Timespec::default()));
    }

    /// Arms a descriptor that can become readable.
    pub fn readable(&mut self, fd: impl AsFd) {
        self.arm(fd.as_fd(), 0, EventFlags::IN);
    }

    /// Arms a descriptor that another connection may have used before. `id` tells the connections apart.
    pub(crate) fn numbered(&mut self, fd: impl AsFd, id: u64, writes: bool) {
        self.arm(fd.as_fd(), id, if writes { EventFlags::OUT } else { EventFlags::IN });
    }

    /// Arms a descriptor that can become writable.
    pub fn writable(&mut self, fd: impl AsFd) {
        self.arm(fd.as_fd(), 0, EventFlags::OUT);
    }

    /// Arms the descriptor of a connection that may end. If its end has woken the waiter already, the waiter must look
    /// now and then until somebody else has noticed the end.
    pub fn hang_up(&mut self, fd: impl AsFd) {
        let (fd, flags) = (fd.as_fd(), EventFlags::RDHUP);
        let raw = fd.as_raw_fd();
        // A connection may be made anew, and its descriptor closed and used again. Only the kernel knows whether its
        // set has this very connection.
        match self.tell_kernel(fd, flags, false) {
            Ok(()) => {
                self.known.retain(|known| known.fd != raw);
                self.known.push(Known { fd: raw, id: 0, flags, is_armed: true });
            }
            Err(Errno::EXIST) => match self.known.iter().find(|known| known.fd == raw) {
                Some(known) if known.flags != flags => self.arm(fd, 0, flags),
                Some(known) if !known.is_armed => self.blind(),
                _ => {}
            },
            Err(_) => self.blind(),
        }
    }

    /// Says that the waiter may have something to do without any descriptor's news.
    pub fn blind(&mut self) {
        self.is_blind = true;
    }

    /// Whether the waiter may have something to do without any descriptor's news. Then it must look now and
    /// then.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// A descriptor that is readable once one of the armed descriptors has news. There is none if nothing was
    /// armed yet, or if the process has no descriptor left.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(AsFd::as_fd)
    }

    /// Sleeps until an armed descriptor has news, at most `within`. Returns whether there is news.
    pub fn sleep(&mut self, within: Duration) -> bool {
        let timeout = Timespec::try_from(within).ok();
        if self.epoll.is_none() {
            std::thread::sleep(within);
            return false;
        }
        self.take(timeout.as_ref())
    }

    /// Waits for news, and takes note of the descriptors that are not armed any more.
    fn take(&mut self, timeout: Option<&Timespec>) -> bool {
        let Some(epoll) = &self.epoll else { return false };
        let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
        // A signal ends the wait early, and then the waiter looks in vain.
        let Ok((events, _)) = epoll::wait(epoll, &mut events, timeout) else { return false };
        for event in &*events {
            let fd = event.data.u64();
            if let Some(known) = self.known.iter_mut().find(|known| known.fd as u64 == fd) {
                known.is_armed = false;
            }
        }
        !events.is_empty()
    }

    fn arm(&mut self, fd: BorrowedFd<'_>, id: u64, flags: EventFlags) {
        let raw = fd.as_raw_fd();
        let known = self.known.iter().position(|known| known.fd == raw);
        if let Some(known) = known.map(|at| &self.known[at])
            && known.is_armed
            && (known.id, known.flags) == (id, flags)
        {
            return;
        }
        match self.tell_kernel(fd, flags, known.is_some()) {
            Ok(()) => {
                let now = Known { fd: raw, id, flags, is_armed: true };
                match known {
                    Some(at) => self.known[at] = now,
                    None => self.known.push(now),
                }
            }
            // No descriptor or memory is left. The waiter looks now and then instead.
            Err(_) => self.blind(),
        }
    }

    fn tell_kernel(
        &mut self,
        fd: BorrowedFd<'_>,
        flags: EventFlags,
        is_known: bool,
    ) -> Result<(), Errno> {
        let epoll = match &self.epoll {
            Some(epoll) => epoll,
            None => self.epoll.insert(epoll::create(CreateFlags::CLOEXEC)?),
        };
        let (data, flags) =
            (EventData::new_u64(fd.as_raw_fd() as u64), flags | EventFlags::ONESHOT);
        if is_known {
            match epoll::modify(epoll, fd, data, flags) {
                Err(Errno::NOENT) => {}
                told => return told,
            }
        }
        epoll::add(epoll, fd, data, flags)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn bytes_that_come_after_arming_end_the_sleep() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let mut interest = Interest::default();
        let start = Instant::now();
        for early in [true, false] {
            interest.begin();
            interest.readable(&ours);
            let mut send = || theirs.write_all(&[1]).unwrap();
            thread::scope(|scope| {
                if early {
                    send();
                } else {
                    scope.spawn(|| {
                        thread::sleep(SHORT);
                        send();
                    });
                }
                assert!(interest.sleep(LONG));
            });
            ours.read_exact(&mut [0]).unwrap();
        }
        assert!(start.elapsed() < LONG);
        assert!(!interest.sleep(SHORT), "there is no news");
    }

    #[test]
    fn a_descriptor_that_is_armed_no_more_disturbs_once_at_most() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut interest = Interest::default();
        interest.begin();
        interest.writable(&ours);
        assert!(interest.sleep(LONG));
        interest.begin();
        interest.readable(&theirs);
        assert!(!interest.sleep(SHORT));
    }

    #[test]
    fn the_end_of_a_connection_ends_the_sleep_and_its_data_does_not() {
        let mut interest = Interest::default();
        let mut ended = Vec::new();
        for _ in 0..2 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            interest.begin();
            interest.hang_up(&ours);
            assert!(!interest.is_blind());
            theirs.write_all(&[1]).unwrap();
            assert!(!interest.sleep(SHORT));
            drop(theirs);
            assert!(interest.sleep(LONG));
            // An end that nobody notices keeps no processor busy.
            interest.begin();
            interest.hang_up(&ours);
            assert!(interest.is_blind());
            assert!(!interest.sleep(SHORT));
            ended.push(ours);
        }
    }

    #[test]
    fn each_of_several_connections_that_take_turns_ends_the_sleep() {
        let mut interest = Interest::default();
        let (lines, mut peers): (Vec<_>, Vec<_>) =
            (0..3).map(|_| UnixStream::pair().unwrap()).unzip();
        for awaited in [&[0][..], &[1], &[0], &[0, 1, 2], &[2]] {
            interest.begin();
            awaited.iter().for_each(|line| interest.hang_up(&lines[*line]));
            assert!(!interest.is_blind(), "{awaited:?}");
            assert!(!interest.sleep(SHORT));
        }
        drop(peers.pop());
        assert!(interest.sleep(LONG));
        interest.begin();
        interest.hang_up(&lines[0]);
        assert!(!interest.is_blind());
        drop(peers.remove(0));
        assert!(interest.sleep(LONG));
    }

    #[test]
    fn the_descriptor_of_the_interest_is_readable_when_there_is_news() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut inner, mut outer) = (Interest::default(), Interest::default());
        assert!(inner.descriptor().is_none());
        inner.begin();
        inner.readable(&ours);
        outer.begin();
        outer.readable(inner.descriptor().unwrap());
        assert!(!outer.sleep(SHORT));
        theirs.write_all(&[1]).unwrap();
        outer.begin();
        outer.readable(inner.descriptor().unwrap());
        assert!(outer.sleep(LONG));
    }

    #[test]
    fn a_waiter_without_descriptors_sleeps_as_long_as_it_says() {
        let mut interest = Interest::default();
        interest.begin();
        interest.blind();
        assert!(interest.is_blind());
        let start = Instant::now();
        assert!(!interest.sleep(SHORT));
        assert!(start.elapsed() >= SHORT);
        interest.begin();
        assert!(!interest.is_blind());
    }
}
