//! All links of a rank, by channel and peer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use invar_core::coll::Operation;
use invar_linux::rendezvous::Bootstrap;

use super::dump::Ways;
use super::job::Job;
use super::link::{RecvLink, SendLink};
use super::local::Local;
use super::net::{Address, NetProxy, NetRecv, NetSend};
use super::plan::Plan;
use super::tags;
use crate::Error;
use crate::error::Kind;

/// Channels of a device, unless there is no need for so many (`2` in NCCL).
pub(super) const CHANNELS_PER_DEVICE: u32 = 2;

/// A rank's ends of its links.
pub struct Links {
    nranks: u32,
    /// Index: channel × ranks + peer.
    send: Vec<Option<SendLink>>,
    recv: Vec<Option<RecvLink>>,
    /// Whether any may go over the network, which has to be told of what is to come.
    over_network: bool,
    /// By channel: all links are there, and none has to be told.
    is_ready: Vec<bool>,
    /// What makes those that are not there yet.
    network: Option<Network>,
}

/// How links over the network are made: each when it is first needed.
pub(super) struct Network {
    pub(super) proxy: NetProxy,
    pub(super) ndevices: u32,
    pub(super) bootstrap: Arc<Bootstrap>,
    pub(super) within: Duration,
}

/// Ways to be made or used, in order: the channel, the peer, and how many slots go over each.
#[derive(Default)]
struct Needs(Vec<((u32, u32), u64)>);

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
        Links { nranks, send, recv, over_network: network.is_some(), is_ready, network }
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
        self.send[at] = Some(SendLink::Net(link));
    }

    /// Adds the link from a peer on a channel.
    ///
    /// # Panics
    /// There is no such channel.
    pub fn add_recv(&mut self, channel: u32, link: NetRecv) {
        let at = self.at(channel, link.peer());
        self.recv[at] = Some(RecvLink::Net(link));
    }

    /// Makes the links that a plan needs and that are not there, and says how much is to come. All
    /// ranks prepare what belongs together at once.
    ///
    /// # Errors
    /// No way to a rank, or what a link says.
    pub fn prepare(&mut self, plan: &Plan) -> Result<(), Error> {
        let is_ready = |(channel, ..): (u32, _, _)| self.is_ready[channel as usize];
        if !self.over_network || plan.lanes().all(is_ready) {
            return Ok(());
        }
        let (mut send, mut recv) = (Needs::default(), Needs::default());
        for (channel, operation, jobs) in plan.lanes() {
            // Both ends of a transfer make links on the same channels, whatever its lengths there, and
            // both ways: one of them may do at once what the other does one after the other.
            if let Operation::Send { peer } | Operation::Recv { peer } = operation {
                send.add((channel, peer), 0);
                recv.add((channel, peer), 0);
            }
            for step in jobs.iter().flat_map(Job::steps) {
                step.send.iter().for_each(|peer| send.add((channel, *peer), 1));
                step.recv.iter().for_each(|peer| recv.add((channel, *peer), 1));
            }
        }
        self.connect(&send, &recv)?;
        for ((channel, peer), slots) in send.0.into_iter().filter(|(_, slots)| *slots > 0) {
            self.send(channel, peer).start(slots)?;
        }
        for ((channel, peer), slots) in recv.0.into_iter().filter(|(_, slots)| *slots > 0) {
            self.recv(channel, peer).start(slots)?;
        }
        for (channel, ..) in plan.lanes() {
            self.is_ready[channel as usize] = self.has_all(channel);
        }
        Ok(())
    }

    /// Whether all links on a channel are there, and none has to be told of what is to come.
    fn has_all(&self, channel: u32) -> bool {
        let first = self.at(channel, 0);
        let row = first..first + self.nranks as usize;
        let send = self.send[row.clone()].iter().flatten().filter(|link| !link.has_proxy());
        let recv = self.recv[row].iter().flatten().filter(|link| !link.has_proxy());
        // There is none with the rank itself.
        [send.count(), recv.count()] == [self.nranks as usize - 1; 2]
    }

    /// Moves what can be moved. Gives a rank to which something has still to leave in calls of
    /// this, if there is one.
    ///
    /// # Errors
    /// What a link says.
    #[inline]
    pub fn progress(&mut self) -> Result<Option<u32>, Error> {
        if !self.over_network {
            return Ok(None);
        }
        let (mut waiting, mut has_round) = (None, false);
        for link in &mut self.send {
            let Some(SendLink::Net(link)) = link else { continue };
            let has_proxy = link.has_proxy();
            // One link that the proxy moves moves all of them.
            if has_proxy && has_round {
                continue;
            }
            has_round |= has_proxy;
            if !link.progress()? && !has_proxy {
                waiting = Some(link.peer());
            }
        }
        if !has_round
            && let Some(RecvLink::Net(link)) =
                self.recv.iter_mut().flatten().find(|link| link.has_proxy())
        {
            link.progress()?;
        }
        Ok(waiting)
    }

    /// Ends all links at once: whatever memory they were at work in, they no longer are.
    pub(super) fn cut(&mut self) {
        self.send.fill_with(|| None);
        self.recv.fill_with(|| None);
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

    /// To a peer; [`prepare`](Self::prepare) comes first.
    #[inline]
    pub(super) fn send(&mut self, channel: u32, peer: u32) -> &mut SendLink {
        let at = self.at(channel, peer);
        self.send[at].as_mut().expect("it was prepared")
    }

    /// From a peer; [`prepare`](Self::prepare) comes first.
    #[inline]
    pub(super) fn recv(&mut self, channel: u32, peer: u32) -> &mut RecvLink {
        let at = self.at(channel, peer);
        self.recv[at].as_mut().expect("it was prepared")
    }

    /// First all ranks listen, then all connect, so that none waits for one that waits for it.
    fn connect(&mut self, send: &Needs, recv: &Needs) -> Result<(), Error> {
        let nranks = self.nranks;
        let at = |(channel, peer): (u32, u32)| (channel * nranks + peer) as usize;
        let Some(network) = &mut self.network else { return Ok(()) };
        let rank = network.bootstrap.rank();
        let is_new = |way| self.send[at(way)].is_none() && self.recv[at(way)].is_none();
        // What both send to each other goes over one connection: the lower rank connects.
        let shared = |network: &Network, way| {
            recv.has(way) && send.has(way) && is_new(way) && network.goes_both_ways(way.0)
        };
        let (mut receiving, mut sending) = (Vec::new(), Vec::new());
        for way in recv.ways().filter(|way| self.recv[at(*way)].is_none()) {
            let ((channel, peer), device) = (way, network.device(way.0));
            let (link, address) = if !shared(network, way) {
                network.proxy.listen(peer, channel as u16, device)?
            } else if rank > peer {
                let listening = network.proxy.listen_both_ways(peer, channel as u16, device)?;
                let (link, back, address) = listening;
                sending.push((at(way), back));
                (link, address)
            } else {
                continue;
            };
            receiving.push((at(way), link));
            network.bootstrap.send(peer, tags::LINK + channel, &address.0)?;
        }
        for way in send.ways().filter(|way| self.send[at(*way)].is_none()) {
            let ((channel, peer), device) = (way, network.device(way.0));
            let is_shared = shared(network, way);
            if is_shared && rank > peer {
                continue;
            }
            let address = network.bootstrap.recv(peer, tags::LINK + channel, network.within)?;
            let address = address.try_into().map(Address).map_err(|_| {
                let text = "it gave no address to connect to".to_owned();
                Kind::Rank { rank: peer, text }
            })?;
            let proxy = &mut network.proxy;
            let link = if is_shared {
                let (link, back) =
                    proxy.connect_both_ways(peer, channel as u16, device, &address)?;
                receiving.push((at(way), back));
                link
            } else {
                proxy.connect(peer, channel as u16, device, &address)?
            };
            sending.push((at(way), link));
        }
        for (at, link) in sending {
            self.send[at] = Some(SendLink::Net(network.proxy.sender(link)?));
        }
        for (at, link) in receiving {
            self.recv[at] = Some(RecvLink::Net(network.proxy.receiver(link)?));
        }
        Ok(())
    }

    #[inline]
    fn at(&self, channel: u32, peer: u32) -> usize {
        channel as usize * self.nranks as usize + peer as usize
    }
}

impl Needs {
    /// So many slots more.
    fn add(&mut self, way: (u32, u32), slots: u64) {
        match self.0.binary_search_by_key(&way, |(way, _)| *way) {
            Ok(at) => self.0[at].1 += slots,
            Err(at) => self.0.insert(at, (way, slots)),
        }
    }

    fn has(&self, way: (u32, u32)) -> bool {
        self.0.binary_search_by_key(&way, |(way, _)| *way).is_ok()
    }

    fn ways(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|(way, _)| *way)
    }
}

impl Network {
    /// Which device a channel goes over.
    fn device(&self, channel: u32) -> usize {
        (channel / CHANNELS_PER_DEVICE % self.ndevices) as usize
    }

    /// Whether links both ways can share a connection on a channel.
    fn goes_both_ways(&self, channel: u32) -> bool {
        self.proxy.goes_both_ways(self.device(channel))
    }
}
