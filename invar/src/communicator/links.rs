//! All links of a rank, by channel and peer.

use std::mem;
use std::time::{Duration, Instant};

use invar_linux::rendezvous::Bootstrap;

use super::coming::{Coming, Network, Slots};
use super::dump::Ways;
use super::job::Job;
use super::link::{RecvLink, SendLink};
use super::local::Local;
use super::net::{NetRecv, NetSend};
use super::plan::Plan;
use crate::Error;

/// A rank's ends of its links.
pub struct Links {
    nranks: u32,
    /// Index: channel × ranks + peer.
    send: Vec<Option<SendLink>>,
    recv: Vec<Option<RecvLink>>,
    /// Whether any may go over the network, which has to be told of what is to come.
    over_network: bool,
    /// Whether the proxy moves those that there are over the network: one call then moves all.
    by_proxy: bool,
    /// By channel: all links are there, and none has to be told.
    is_ready: Vec<bool>,
    /// What makes those that are not there yet, and those that it is at.
    network: Option<Network>,
    coming: Vec<Coming>,
}

/// Ways to be made or used, in order: the channel and the peer, and what goes over.
#[derive(Default)]
struct Needs(Vec<((u32, u32), Slots)>);

impl Links {
    /// Those within this host are there at once.
    pub(super) fn new(
        nranks: u32,
        nchannels: u32,
        local: Option<&Local>,
        network: Option<Network>,
    ) -> Self {
        let ways = (0..nchannels).flat_map(|channel| (0..nranks).map(move |peer| (channel, peer)));
        let links = ways.map(|(channel, peer)| local?.links(channel, peer));
        let (send, recv) = links.map(Option::unzip).unzip();
        let is_ready = vec![false; nchannels as usize];
        let (over_network, coming) = (network.is_some(), Vec::new());
        Links { nranks, send, recv, over_network, by_proxy: false, is_ready, network, coming }
    }

    /// None as yet, of `nranks` ranks on `nchannels` channels; all will go over the network, and
    /// the caller adds them.
    pub fn over_network(nranks: u32, nchannels: u32) -> Self {
        Links { over_network: true, ..Links::new(nranks, nchannels, None, None) }
    }

    /// By which ways the others are reached.
    pub(super) fn ways(&self) -> Ways {
        let peers = self.send.iter().zip(0..self.nranks);
        let local = peers.filter(|(link, _)| link.is_some()).map(|(_, peer)| peer).collect();
        Ways { local, net: self.network.as_ref().map(|network| network.proxy.dumper()) }
    }

    /// Adds the link to a peer on a channel.
    ///
    /// # Panics
    /// There is no such channel.
    pub fn add_send(&mut self, channel: u32, link: NetSend) {
        let at = self.at(channel, link.peer());
        self.by_proxy = link.has_proxy();
        self.send[at] = Some(SendLink::Net(link));
    }

    /// Adds the link from a peer on a channel.
    ///
    /// # Panics
    /// There is no such channel.
    pub fn add_recv(&mut self, channel: u32, link: NetRecv) {
        let at = self.at(channel, link.peer());
        self.by_proxy = link.has_proxy();
        self.recv[at] = Some(RecvLink::Net(link));
    }

    /// Begins to make the links that a plan needs and that are not there, and says how much is to
    /// come. They come by [`progress`](Self::progress), each when its peer needs it too.
    ///
    /// # Errors
    /// What a link says, or the rendezvous.
    pub fn prepare(&mut self, plan: &Plan) -> Result<(), Error> {
        let is_ready = |(channel, _): (u32, _)| self.is_ready[channel as usize];
        if !self.over_network || plan.lanes().all(is_ready) {
            return Ok(());
        }
        let mut needs = Needs::default();
        for (channel, jobs) in plan.lanes() {
            for step in jobs.iter().flat_map(Job::steps) {
                step.send.iter().for_each(|peer| needs.of((channel, *peer)).send += 1);
                step.recv.iter().for_each(|peer| needs.of((channel, *peer)).recv += 1);
            }
        }
        for (way, slots) in needs.0 {
            let at = self.at(way.0, way.1);
            let (send, recv) = (&mut self.send[at], &mut self.recv[at]);
            if let Some(network) = &mut self.network {
                let missing = (slots.send > 0 && send.is_none(), slots.recv > 0 && recv.is_none());
                network.begin(way, slots, missing, &mut self.coming)?;
            }
            if let Some(link) = send {
                link.start(slots.send)?;
            }
            if let Some(link) = recv {
                link.start(slots.recv)?;
            }
        }
        for (channel, _) in plan.lanes() {
            self.is_ready[channel as usize] = self.has_all(channel);
        }
        Ok(())
    }

    /// Whether all links on a channel are there, and none has to be told of what is to come.
    fn has_all(&self, channel: u32) -> bool {
        let first = self.at(channel, 0);
        let row = first..first + self.nranks as usize;
        let there = [
            self.send[row.clone()].iter().flatten().count(),
            self.recv[row].iter().flatten().count(),
        ];
        // There is none with the rank itself.
        !self.by_proxy && there == [self.nranks as usize - 1; 2]
    }

    /// Moves what can be moved, and takes in the links that have come. Gives a rank with which a link
    /// has still to come, or to which something has still to leave in calls of this, if there is one.
    ///
    /// # Errors
    /// What a link says; no way to a rank.
    #[inline]
    pub fn progress(&mut self) -> Result<Option<u32>, Error> {
        if !self.over_network {
            return Ok(None);
        }
        let mut waiting = if self.coming.is_empty() { None } else { self.take_in()? };
        for link in &mut self.send {
            let Some(SendLink::Net(link)) = link else { continue };
            let settled = link.progress()?;
            if self.by_proxy {
                return Ok(waiting);
            }
            if !settled {
                waiting = Some(link.peer());
            }
        }
        let is_net = |link: &&mut RecvLink| matches!(link, RecvLink::Net(_));
        if self.by_proxy
            && let Some(RecvLink::Net(link)) = self.recv.iter_mut().flatten().find(is_net)
        {
            link.progress()?;
        }
        Ok(waiting)
    }

    /// Ends all links at once: whatever memory they were at work in, they no longer are.
    pub(super) fn cut(&mut self) {
        self.send.fill_with(|| None);
        self.recv.fill_with(|| None);
        self.coming.clear();
        self.is_ready.fill(false);
    }

    /// Ends with what is under way: what was sent is there, and was acknowledged. Waits for the
    /// other ranks to leave too, `within` at most.
    pub(super) fn end(&mut self, within: Duration) {
        let Some(network) = &mut self.network else { return };
        let deadline = Instant::now() + within;
        // There is nobody left to be told.
        let _ = network.proxy.stop();
        let mut is_under_way = |link: &mut SendLink| match link {
            SendLink::Shm { .. } => false,
            SendLink::Net(link) => matches!(link.has_delivered(), Ok(false)),
        };
        while network.bootstrap.check().is_ok()
            && self.send.iter_mut().flatten().any(&mut is_under_way)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        network.bootstrap.leave();
        let others = |bootstrap: &Bootstrap| {
            (0..bootstrap.nranks()).all(|rank| rank == bootstrap.rank() || bootstrap.has_left(rank))
        };
        while network.bootstrap.check().is_ok()
            && !network.bootstrap.is_alone()
            && !others(&network.bootstrap)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// To a peer, once it is there; [`prepare`](Self::prepare) comes first.
    #[inline]
    pub(super) fn send(&mut self, channel: u32, peer: u32) -> Option<&mut SendLink> {
        let at = self.at(channel, peer);
        self.send[at].as_mut()
    }

    /// From a peer, once it is there; [`prepare`](Self::prepare) comes first.
    #[inline]
    pub(super) fn recv(&mut self, channel: u32, peer: u32) -> Option<&mut RecvLink> {
        let at = self.at(channel, peer);
        self.recv[at].as_mut()
    }

    /// Takes in the links that have come. Gives a rank with which one has still to.
    #[cold]
    fn take_in(&mut self) -> Result<Option<u32>, Error> {
        for mut coming in mem::take(&mut self.coming) {
            let Some(network) = &mut self.network else { break };
            let (send, recv) = coming.poll(network)?;
            if let Some(mut link) = send {
                link.start(coming.slots.send)?;
                self.add_send(coming.channel, link);
            }
            if let Some(mut link) = recv {
                link.start(coming.slots.recv)?;
                self.add_recv(coming.channel, link);
            }
            if !coming.is_over() {
                self.coming.push(coming);
            }
        }
        Ok(self.coming.first().map(|coming| coming.peer))
    }

    #[inline]
    fn at(&self, channel: u32, peer: u32) -> usize {
        channel as usize * self.nranks as usize + peer as usize
    }
}

impl Needs {
    fn of(&mut self, way: (u32, u32)) -> &mut Slots {
        let at = self.0.binary_search_by_key(&way, |(way, _)| *way).unwrap_or_else(|at| {
            self.0.insert(at, (way, Slots::default()));
            at
        });
        &mut self.0[at].1
    }
}
