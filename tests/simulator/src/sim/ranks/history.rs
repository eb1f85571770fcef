//! One history: the ranks, their work, the faults, and the check that it ends well.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use invar::communicator::Links;
use invar::communicator::net::{NetSettings, Network};
use invar::raw::{End, Keeper, KeeperEnd, On};
use invar::{Device, Settings};
use invar_core::coll::{Order, Schedule};
use invar_core::conn::{CommSettings, Wire};
use invar_core::nic::Nic;
use invar_linux::abort::Abort;

use super::news::{CUT_OFF_NS, ENDED_NS, News, PASS_ON_NS};
use super::rank::{Rank, Share, State, Turn};
use super::work::{Channels, Work};
use super::{Event, Fault, MachineState, Outcome, SimNic, World, duo};
use crate::random::Random;
use crate::sim::scenario::{self, OUTAGE_NS, RECOVERY_NS};
use crate::sim::terrain;

/// Without a fault, no operation takes longer than this.
const TIMEOUT_NS: u64 = 20_000_000_000;
/// The time for all retries of a broken link's requests, and of those that are posted later.
const BROKEN_NS: u64 = 5_000_000_000;
/// Each keeper looks about once in this time.
const LOOK_EVERY_NS: u64 = 50_000_000;
/// A rank hears of a failure within this time after the hub, or its own network, has noticed it.
const SPARE_NS: u64 = 100_000_000;

/// Runs the history of a seed.
///
/// # Panics
/// Panics if a rank's result is wrong. Panics if a rank fails without a reason, does not name the rank
/// to blame, or hears of the failure too late. Panics if a wait has no end, or if a resource is left
/// behind.
pub(in crate::sim) fn run(seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let script = Script::new(&mut random);
    let history = History::new(&script, random, seed);
    history.live()
}

/// The work of the ranks, and the fault.
struct Script {
    nranks: u32,
    channels: Channels,
    works: Vec<Work>,
    /// The fault, and the turn at which it happens.
    fault: Option<(RankFault, u64)>,
    /// Whether connections recover.
    recovers: bool,
}

#[derive(Clone, Copy, Debug)]
enum RankFault {
    /// A rank's process ends. Its resources are gone and its connections are closed.
    Kill(u32),
    /// A rank's host loses its network.
    CutOff(u32),
    /// A queue pair of this connection fails, at the receiver's side if the flag is set or else at the
    /// sender's.
    Break(u64, bool),
    /// A rank's port is down for some time. Connections that do not recover may fail.
    Flap(u32),
}

impl Script {
    fn new(random: &mut Random) -> Self {
        let nranks = random.below(7) as u32 + 2;
        let slot_bytes = random.pick(&[64, 64, 64, 128, 256, 2048]);
        let order = |random: &mut Random| {
            let mut row: Vec<u32> = (0..nranks).collect();
            for at in (1..row.len()).rev() {
                row.swap(at, random.below(at as u64 + 1) as usize);
            }
            Order::new(row.into()).expect("each rank is there once")
        };
        let orders = (0..random.below(2) + 1).map(|_| order(random)).collect();
        let nworks = random.below(4) + 1;
        let works = (0..nworks).map(|_| Work::new(random, nranks, slot_bytes)).collect();
        let rank = random.below(nranks.into()) as u32;
        let recovers = random.chance(500_000);
        let fault = match random.below(8) {
            0 | 1 => Some(RankFault::Kill(rank)),
            2 => Some(RankFault::CutOff(rank)),
            3 | 4 => Some(RankFault::Break(random.next(), random.chance(500_000))),
            5 if recovers => Some(RankFault::Flap(rank)),
            _ => None,
        };
        // Histories differ much in length. This spreads the fault evenly over short and long histories.
        let turns = 1 << random.below(13);
        let turn = random.below(turns);
        let fault = fault.map(|fault| (fault, turn));
        Script { nranks, channels: Channels { orders, slot_bytes }, works, fault, recovers }
    }

    /// The pairs of ranks that send to each other, with their channels.
    fn ways(&self) -> BTreeSet<(u32, u32, u32)> {
        let mut ways = BTreeSet::new();
        for (work, rank) in
            self.works.iter().flat_map(|work| (0..self.nranks).map(move |r| (work, r)))
        {
            for task in work.tasks(&self.channels, rank) {
                let order = self.channels.orders[task.channel as usize].clone();
                let schedule = Schedule::new(order, &task).expect("a task that can be");
                for step in schedule {
                    ways.extend(step.send.iter().map(|peer| (rank, *peer, task.channel)));
                }
            }
        }
        ways
    }
}

struct History<'s> {
    random: Random,
    world: World,
    script: &'s Script,
    /// The ranks, by number. A killed rank is `None`.
    ranks: Vec<Option<Rank>>,
    /// The keeper of each rank's process, and the time of its next look.
    keepers: Vec<(Keeper, u64)>,
    connections: Vec<Connection>,
    /// Whether ranks take steps and move links in separate turns.
    apart: bool,
    news: News,
    outcome: Outcome,
    /// The ranks that may be blamed for a failure, and the latest time at which it must be known.
    blame: Option<(Vec<u32>, u64)>,
    /// The rank that cannot be reached any more.
    cut_off: Option<u32>,
    /// The rank whose port is down, and the time at which the port comes up again.
    down: Option<(u32, u64)>,
}

/// The ranks at both ends of a connection, and their queue pairs.
struct Connection {
    ranks: [u32; 2],
    qpns: [u32; 2],
}

impl<'s> History<'s> {
    fn new(script: &'s Script, mut random: Random, seed: u64) -> Self {
        let ipv6 = random.chance(500_000);
        let (world, nics) = terrain::network(&mut random, script.nranks, ipv6);
        terrain::lengthen(&mut random, &world, &nics);
        // In half of the histories full slots go in two pieces. A piece has at least 128 bytes.
        let half = script.channels.slot_bytes as u32 / 2;
        terrain::shorten(seed, &world, &[0, if half < 128 { 0 } else { half }]);
        let apart = random.chance(500_000);
        let mut history = History {
            random,
            world,
            script,
            ranks: Vec::new(),
            keepers: (0..script.nranks).map(|_| (Keeper::without_thread(), 0)).collect(),
            connections: Vec::new(),
            apart,
            news: News::default(),
            outcome: Outcome::default(),
            blame: None,
            cut_off: None,
            down: None,
        };
        history.connect(&nics, ipv6);
        history
    }

    fn connect(&mut self, nics: &[SimNic], ipv6: bool) {
        let Script { nranks, channels, .. } = self.script;
        let pds: Vec<u32> = nics.iter().map(|nic| nic.alloc_pd().expect("a domain")).collect();
        let settings = Settings::default();
        let settings = NetSettings { slot_bytes: channels.slot_bytes, ..settings.into() };
        let rank = |nic: &SimNic, pd: u32| {
            // Nobody connects to this address.
            let address = Ipv4Addr::UNSPECIFIED.into();
            let device = Device::on(nic.clone(), pd, address).expect("a device");
            let network = Network::open(vec![device], &settings, Abort::default());
            let links = Links::over_network(*nranks, channels.orders.len() as u32);
            (links, network.expect("a network"))
        };
        let mut ranks: Vec<_> = nics.iter().zip(&pds).map(|(nic, pd)| rank(nic, *pd)).collect();
        for (from, to, channel) in self.script.ways() {
            let mut settings = scenario::settings(&mut self.random, ipv6);
            if self.script.recovers {
                let recovery_timeout_ns = RECOVERY_NS;
                settings = CommSettings { wire: Wire::Invar, recovery_timeout_ns, ..settings };
            } else {
                settings.recovery_timeout_ns = 0;
            }
            let settings = scenario::prove(&mut self.random, settings);
            let (f, t) = (from as usize, to as usize);
            let world = &self.world;
            let duo =
                duo::connect_in([&nics[f], &nics[t]], [pds[f], pds[t]], [settings; 2], || {
                    world.advance(20_000)
                });
            let duo = duo.expect("nothing has gone wrong yet");
            let clock = || {
                let world = world.clone();
                move || world.now_ns()
            };
            let send = On::with_clock(duo.send, &nics[f], clock());
            let recv = On::with_clock(duo.recv, &nics[t], clock());
            let send = Box::new(KeeperEnd::new(send, &self.keepers[f].0));
            let recv = Box::new(KeeperEnd::new(recv, &self.keepers[t].0));
            let qpns = [send.ends().qpn, recv.ends().qpn];
            self.connections.push(Connection { ranks: [from, to], qpns });
            let (links, network) = &mut ranks[f];
            links.add_send(channel, network.sender(to, channel as u16, 0, send).expect("a link"));
            let (links, network) = &mut ranks[t];
            links.add_recv(
                channel,
                network.receiver(from, channel as u16, 0, recv).expect("a link"),
            );
        }
        let ranks = ranks.into_iter().zip(0..);
        let rank = |((links, network), number)| Some(Rank::new(number, links, network));
        self.ranks = ranks.map(rank).collect();
    }

    fn live(mut self) -> Outcome {
        let started_ns = self.world.now_ns();
        let (mut turns, mut idle, mut pause_ns) = (0_u64, 0, 0);
        while self.ranks.iter().any(|rank| rank.as_ref().is_some_and(|rank| !rank.is_over())) {
            if let Some((fault, at)) = self.script.fault
                && at == turns
            {
                self.suffer(fault);
            }
            turns += 1;
            self.come_up();
            self.keep();
            // While a rank makes progress, little time passes for each turn. While all wait, more and
            // more time passes.
            let moved = if idle < self.ranks.len() {
                pause_ns = self.random.below(5000);
                let number = self.random.below(self.ranks.len() as u64) as usize;
                let share = if self.apart { self.random.pick(&Share::ALL) } else { Share::Both };
                self.turn(number, share)
            } else {
                pause_ns = (pause_ns + pause_ns / 16).clamp(5000, 20_000_000);
                (0..self.ranks.len())
                    .fold(false, |moved, number| self.turn(number, Share::Both) | moved)
            };
            idle = if moved { 0 } else { idle + 1 };
            self.world.advance(pause_ns);
            let deadline_ns = match &self.blame {
                Some((_, known_ns)) => known_ns + TIMEOUT_NS,
                None => started_ns + TIMEOUT_NS,
            };
            assert!(self.world.now_ns() < deadline_ns, "somebody waits without end");
        }
        self.judge();
        self.end()
    }

    /// Lets a rank take a turn. Returns whether anything moved.
    fn turn(&mut self, number: usize, share: Share) -> bool {
        let now_ns = self.world.now_ns();
        let Some(rank) = &mut self.ranks[number] else { return false };
        let heard = match self.blame {
            // Nothing reaches a cut-off rank, except the fact that its connection is lost.
            Some((_, known_ns)) if self.cut_off == Some(rank.number()) => {
                (now_ns >= known_ns).then(|| "the rendezvous is lost".to_owned())
            }
            _ => self.news.heard(rank.number(), now_ns),
        };
        match rank.turn(&self.script.works, &self.script.channels, share, heard, now_ns) {
            Turn::Moved => true,
            Turn::Waiting => false,
            Turn::Tells(text) => {
                self.outcome.count(Event::RankFailed, 1);
                if self.cut_off != Some(rank.number()) {
                    let from = (rank.number(), self.script.nranks);
                    self.news.tell(&mut self.random, now_ns, from, text);
                }
                true
            }
        }
    }

    fn suffer(&mut self, fault: RankFault) {
        let (now_ns, nranks) = (self.world.now_ns(), self.script.nranks);
        match fault {
            RankFault::Kill(rank) => {
                self.world.note_fault(Fault::RankKilled, self.machine(rank));
                self.ranks[rank as usize] = None;
                let known_ns = now_ns + self.random.below(ENDED_NS);
                let text = "its process has ended".to_owned();
                self.news.tell(&mut self.random, known_ns, (rank, nranks), text);
                self.blame = Some((vec![rank], known_ns + PASS_ON_NS));
            }
            RankFault::CutOff(rank) => {
                self.world.note_fault(Fault::PortGone, self.machine(rank));
                self.world.set_up(rank as usize, false);
                self.cut_off = Some(rank);
                let known_ns = now_ns + CUT_OFF_NS;
                let text = "its host is cut off".to_owned();
                self.news.tell(&mut self.random, known_ns, (rank, nranks), text);
                self.blame = Some((vec![rank], known_ns + PASS_ON_NS));
            }
            RankFault::Flap(rank) => {
                self.world.note_fault(Fault::PortOut, self.machine(rank));
                self.world.set_up(rank as usize, false);
                self.down = Some((rank, now_ns + self.random.below(OUTAGE_NS)));
            }
            RankFault::Break(which, receiver) => {
                let which = which as usize % self.connections.len().max(1);
                let Some(Connection { ranks, qpns }) = self.connections.get(which) else { return };
                let end = usize::from(receiver);
                let states = self.world.qp_states(ranks[end] as usize, qpns[end]);
                let machines = ranks.iter().filter_map(|rank| self.machine(*rank));
                self.world.note_fault(Fault::QpBroken, states.into_iter().chain(machines));
                self.world.break_qp(ranks[end] as usize, qpns[end]);
                if !self.script.recovers {
                    self.blame = Some((ranks.to_vec(), now_ns + BROKEN_NS));
                }
            }
        }
    }

    /// Calls each keeper whose next look is due. A busy host delays its keeper.
    fn keep(&mut self) {
        let now_ns = self.world.now_ns();
        for (keeper, look_ns) in &mut self.keepers {
            if *look_ns <= now_ns {
                keeper.look();
                *look_ns = now_ns + self.random.below(2 * LOOK_EVERY_NS);
            }
        }
    }

    /// Brings a port up whose time has come.
    fn come_up(&mut self) {
        if let Some((rank, _)) = self.down.take_if(|(_, until)| *until <= self.world.now_ns()) {
            self.world.set_up(rank as usize, true);
        }
    }

    /// The state of a rank that is alive.
    fn machine(&self, rank: u32) -> Option<MachineState> {
        let rank = self.ranks[rank as usize].as_ref()?;
        Some(rank.machine(&self.script.works))
    }

    /// Checks that each rank has done its part, or failed in time and for the actual reason.
    fn judge(&mut self) {
        let mut failed = 0;
        for rank in self.ranks.iter().flatten() {
            self.outcome.count(Event::PartDone, rank.done as u64);
            match &rank.state {
                State::Failed(text, at_ns) => {
                    let Some((to_blame, known_ns)) = &self.blame else {
                        panic!("rank {} failed without a reason: {text}", rank.number());
                    };
                    let named =
                        to_blame.iter().any(|rank| text.contains(&format!("rank {rank}: ")));
                    let of_itself = self.cut_off == Some(rank.number());
                    assert!(named || of_itself, "rank {} does not say who: {text}", rank.number());
                    let late = at_ns.saturating_sub(known_ns + SPARE_NS);
                    assert_eq!(late, 0, "rank {} is late: {text}", rank.number());
                    failed += 1;
                }
                _ => self.outcome.count(Event::RankDone, 1),
            }
        }
        let told = failed - self.outcome.counted(Event::RankFailed);
        self.outcome.count(Event::RankTold, told);
    }

    /// Ends all ranks, and checks that no resource is left.
    fn end(mut self) -> Outcome {
        self.ranks.clear();
        self.world.advance(1_000_000_000);
        for host in 0..self.script.nranks as usize {
            assert!(self.world.has_nothing(host), "something is left on host {host}");
        }
        self.outcome.end(&self.world)
    }
}
