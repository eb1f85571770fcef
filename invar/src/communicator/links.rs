//! All links of a rank, by channel and peer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use invar_linux::interest::Interest;
use invar_linux::rendezvous::Bootstrap;
use invar_linux::shm::Bell;

use super::dump::Routes;
use super::link::{RecvLink, SendLink};
use super::local::Local;
use super::net::{LinkEnds, NetRecv, NetSend};
use super::pending_link::{Connector, PendingLink};
use crate::Error;

/// A rank's ends of all its links.
pub struct Links {
    nranks: u32,
    /// The sending ends; the index is channel × number of ranks + peer.
    send: Vec<Option<SendLink>>,
    recv: Vec<Option<RecvLink>>,
    /// Whether any link may go over the network.
    over_network: bool,
    /// Wakes this rank when a rank of this host writes to a link.
    bell: Option<Bell>,
    /// The descriptors of links over the network that this rank waits for.
    interest: Interest,
    /// The alarm that this rank has armed last.
    alarm: Alarm,
    /// Number of sleeps in a row that data could not end.
    yields: u32,
    /// For each channel, whether all its links exist.
    is_ready: Vec<bool>,
    /// Makes the links that do not exist yet.
    connector: Option<Connector>,
    /// The links that the connector has started to make.
    pending: Vec<PendingLink>,
}

/// A rank that data does not wake gives its processor to others this often, and then sleeps.
const YIELDS: u32 = 2000;
/// The first and the longest sleep of a rank that data does not wake. Each further sleep is longer by the first.
const NAPS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(1)];

/// The alarm that wakes a sleeping rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alarm {
    /// Nothing wakes the rank. It waits for shared memory and a network at once, or for a network without
    /// descriptors.
    None,
    Bell,
    Descriptors,
}

/// For each channel and peer, whether a link to the peer is needed, and whether a link from it is
/// needed.
#[derive(Default)]
pub(super) struct Needs(BTreeMap<(u32, u32), (bool, bool)>);

impl Links {
    /// Creates a rank's links. The links within this host exist at once.
    pub(super) fn new(
        nranks: u32,
        nchannels: u32,
        local: Option<&Local>,
        connector: Option<Connector>,
    ) -> Self {
        let ways = (0..nchannels).flat_map(|channel| (0..nranks).map(move |peer| (channel, peer)));
        let links = ways.map(|(channel, peer)| local?.links(channel, peer));
        let (send, recv) = links.map(Option::unzip).unzip();
        let is_ready = vec![false; nchannels as usize];
        let (over_network, pending) = (connector.is_some(), Vec::new());
        let bell = local.and_then(Local::own_bell);
        Links {
            nranks,
            send,
            recv,
            over_network,
            bell,
            interest: Interest::default(),
            alarm: Alarm::None,
            yields: 0,
            is_ready,
            connector,
            pending,
        }
    }

    /// Creates an empty set of links for `nranks` ranks on `nchannels` channels. All links go over the
    /// network, and the caller adds them.
    pub fn over_network(nranks: u32, nchannels: u32) -> Self {
        Links { over_network: true, ..Links::new(nranks, nchannels, None, None) }
    }

    /// Returns the routes to the other ranks.
    pub(super) fn routes(&self) -> Routes {
        let peers = self.send.iter().zip(0..self.nranks);
        let local = peers.filter(|(link, _)| link.is_some()).map(|(_, peer)| peer).collect();
        Routes { local, net: self.connector.as_ref().map(|connector| connector.network.dumper()) }
    }

    /// Adds the link to a peer on a channel.
    ///
    /// # Panics
    /// Panics if there is no such channel.
    pub fn add_send(&mut self, channel: u32, link: NetSend) {
        let at = self.at(channel, link.peer());
        self.send[at] = Some(SendLink::Net(Box::new(link)));
    }

    /// Adds the link from a peer on a channel.
    ///
    /// # Panics
    /// Panics if there is no such channel.
    pub fn add_recv(&mut self, channel: u32, link: NetRecv) {
        let at = self.at(channel, link.peer());
        self.recv[at] = Some(RecvLink::Net(Box::new(link)));
    }

    /// Returns whether all links on a channel exist.
    #[inline]
    pub(super) fn is_ready(&self, channel: u32) -> bool {
        !self.over_network || self.is_ready[channel as usize]
    }

    /// Starts to make the links of `needs` that do not exist. [`progress`](Self::progress) completes
    /// each link when the peer needs it too.
    pub(super) fn make(&mut self, needs: &Needs) -> Result<(), Error> {
        for ((channel, peer), (send, recv)) in &needs.0 {
            let at = self.at(*channel, *peer);
            let missing = (*send && self.send[at].is_none(), *recv && self.recv[at].is_none());
            if let Some(connector) = &self.connector {
                connector.begin((*channel, *peer), missing, &mut self.pending)?;
            }
        }
        for channel in 0..self.is_ready.len() {
            self.is_ready[channel] = self.has_all(channel as u32);
        }
        Ok(())
    }

    fn has_all(&self, channel: u32) -> bool {
        let first = self.at(channel, 0);
        let row = first..first + self.nranks as usize;
        let there = [
            self.send[row.clone()].iter().flatten().count(),
            self.recv[row].iter().flatten().count(),
        ];
        // A rank has no link with itself.
        there == [self.nranks as usize - 1; 2]
    }

    /// Moves the data that can move, and adds the links that have been completed. Returns a peer whose
    /// link is still missing, or whose link needs more calls of `progress` to send its data. Returns
    /// `None` if there is no such peer.
    ///
    /// # Errors
    /// Fails if a link fails, or if there is no path to a rank.
    #[inline]
    pub fn progress(&mut self) -> Result<Option<u32>, Error> {
        if !self.over_network {
            return Ok(None);
        }
        let mut waiting = if self.pending.is_empty() { None } else { self.take_in()? };
        for link in &mut self.send {
            let Some(SendLink::Net(link)) = link else { continue };
            if !link.progress()? {
                waiting = Some(link.peer());
            }
        }
        Ok(waiting)
    }

    /// Returns `; ` and a text about the callers that were turned away while a peer was expected, or nothing.
    pub(super) fn turned_away(&self, peer: u32) -> String {
        let pending = self.pending.iter().filter(|pending| pending.peer == peer);
        pending.map(PendingLink::turned_away).collect()
    }

    /// Drops all links at once. No link uses any memory afterwards.
    pub(super) fn cut(&mut self) {
        self.send.fill_with(|| None);
        self.recv.fill_with(|| None);
        self.pending.clear();
        self.is_ready.fill(false);
    }

    /// Completes the messages in progress: waits at most `deliver_within` until the peers have received and
    /// acknowledged them. Then waits at most `leave_within` until the other ranks leave too.
    pub(super) fn end(&mut self, deliver_within: Duration, leave_within: Duration) {
        let Some(Connector { bootstrap, .. }) = &self.connector else { return };
        let deadline = Instant::now() + deliver_within;
        let mut is_under_way = |link: &mut SendLink| match link {
            SendLink::Shm { .. } => false,
            SendLink::Net(link) => matches!(link.has_delivered(), Ok(false)),
        };
        while bootstrap.check().is_ok()
            && self.send.iter_mut().flatten().any(&mut is_under_way)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        bootstrap.leave();
        let deadline = Instant::now() + leave_within;
        let others = |bootstrap: &Bootstrap| {
            (0..bootstrap.nranks()).all(|rank| rank == bootstrap.rank() || bootstrap.has_left(rank))
        };
        while bootstrap.check().is_ok()
            && !bootstrap.is_alone()
            && !others(bootstrap)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets data that arrives from now on end the next [`sleep`](Self::sleep). Before that sleep, check once
    /// more whether data has come.
    #[cold]
    pub(super) fn arm(&mut self) {
        self.alarm = match &self.bell {
            Some(bell) if !self.over_network && bell.arm() => Alarm::Bell,
            None if self.over_network && self.pending.is_empty() => self.arm_descriptors(),
            _ => Alarm::None,
        };
    }

    fn arm_descriptors(&mut self) -> Alarm {
        self.interest.begin();
        for link in &mut self.send {
            if let Some(SendLink::Net(link)) = link {
                link.arm(&mut self.interest);
            }
        }
        for link in &mut self.recv {
            if let Some(RecvLink::Net(link)) = link {
                link.arm(&mut self.interest);
            }
        }
        if self.interest.is_blind() { Alarm::None } else { Alarm::Descriptors }
    }

    /// Says that nobody needs to wake this rank.
    #[cold]
    pub(super) fn disarm(&mut self) {
        self.bell.iter().for_each(Bell::disarm);
        self.yields = 0;
    }

    /// Sleeps until data may have come, at most `within`.
    #[cold]
    pub(super) fn sleep(&mut self, within: Duration) {
        match (self.alarm, &self.bell) {
            (Alarm::Bell, Some(bell)) => bell.sleep(within),
            (Alarm::Descriptors, _) => drop(self.interest.sleep(within)),
            _ => {
                self.bell.iter().for_each(Bell::disarm);
                self.yields = self.yields.saturating_add(1);
                match self.yields.checked_sub(YIELDS) {
                    None => std::thread::yield_now(),
                    Some(naps) => {
                        let nap = NAPS[0].saturating_mul(naps.saturating_add(1)).min(NAPS[1]);
                        std::thread::sleep(within.min(nap));
                    }
                }
            }
        }
    }

    /// Returns the link to a peer, once it exists. Call [`make`](Self::make) first.
    #[inline]
    pub(super) fn send(&mut self, channel: u32, peer: u32) -> Option<&mut SendLink> {
        let at = self.at(channel, peer);
        self.send[at].as_mut()
    }

    /// Returns the link from a peer, once it exists. Call [`make`](Self::make) first.
    #[inline]
    pub(super) fn recv(&mut self, channel: u32, peer: u32) -> Option<&mut RecvLink> {
        let at = self.at(channel, peer);
        self.recv[at].as_mut()
    }

    /// Adds the links that have been completed. Returns a peer whose link is still missing.
    ///
    /// After an error the other attempts go on to exist, until [`cut`](Self::cut): a peer that connects
    /// must not be refused before it knows the reason.
    #[cold]
    fn take_in(&mut self) -> Result<Option<u32>, Error> {
        let mut next = 0;
        while let (Some(connector), Some(pending)) = (&self.connector, self.pending.get_mut(next)) {
            let Some(LinkEnds { send, recv }) = pending.poll(connector)? else {
                next += 1;
                continue;
            };
            let channel = self.pending.remove(next).channel;
            if let Some(link) = send {
                self.add_send(channel, link);
            }
            if let Some(link) = recv {
                self.add_recv(channel, link);
            }
        }
        Ok(self.pending.first().map(|pending| pending.peer))
    }

    #[inline]
    fn at(&self, channel: u32, peer: u32) -> usize {
        channel as usize * self.nranks as usize + peer as usize
    }
}

impl Needs {
    pub(super) fn send(&mut self, channel: u32, peer: u32) {
        self.0.entry((channel, peer)).or_default().0 = true;
    }

    pub(super) fn recv(&mut self, channel: u32, peer: u32) {
        self.0.entry((channel, peer)).or_default().1 = true;
    }
}
