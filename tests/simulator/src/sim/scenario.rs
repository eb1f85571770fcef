//! A history that a seed decides: hosts, links, comms, the calls on the comms, and faults.

mod comm;

use std::array;

use invar_core::auth::Secret;
use invar_core::conn::{CommSettings, PacketAuth, Wire};
use invar_core::nic::{Nic, QpOptions};
use invar_linux::rails::Rails;

use super::terrain::{lengthen, network, shorten};
use super::{Event, Fault, Outcome, SimNic, State as MachineState, World};
use crate::duo;
use crate::model::comm::{End, Op, Shape, Traffic};
use crate::random::Random;
use comm::{Comm, State};

/// The most time that a request takes with any faults: eight timeouts of 67 ms, and all
/// retransmissions.
const REQUEST_MAX_NS: u64 = 20_000_000_000;

/// The value of `NCCL_IB_TIMEOUT`. It stands for 67 ms.
const TIMEOUT: u8 = 14;

/// The time in which a comm that recovers must work again, and the longest outage. After an outage the
/// retries of the last attempt may have just begun.
pub(super) const RECOVERY_NS: u64 = 6_000_000_000;
pub(super) const OUTAGE_NS: u64 = 4_000_000_000;

/// The longest time after which an end learns that its peer has lost their stream.
const KEEPALIVE_NS: u64 = 1_000_000_000;

/// The time at which a port comes up that is down for ever.
const NEVER: u64 = u64::MAX;

/// Changes a seed to that of the choices of packets. With a stream of their own, these choices leave all others as
/// they are.
const PACKETS: u64 = 0x9a4b_1d7e_53c0_f862;

/// The longest messages of comms, in bytes.
const MESSAGES_BYTES_MAX: [usize; 3] = [64, 3000, 20_000];

/// The limits of ports on the length of a work request, in bytes; 0 stands for none. The longest messages go in two
/// pieces. A row of the FIFO goes in one.
const LIMITS: [u32; 6] = [0, 0, 0, 512, 1536, 10_112];

/// The histories in a million in which the process of an end is killed.
const DEATHS_PPM: u32 = 100_000;

/// Runs the history of a seed.
///
/// # Panics
/// Panics if a message is lost, duplicated, out of order or damaged. Panics if a comm fails without a
/// reason, or waits for longer than 20 s of simulated time. Panics if a device has resources left at
/// the end.
pub(super) fn run(seed: u64) -> Outcome {
    let mut history = History::new(
        seed,
        |random| random.below(3) as usize + 2,
        |_, nics| nics.into_iter().map(|nic| (vec![nic.host()], nic)).collect(),
    );
    history.act_often();
    history.finish()
}

/// Runs the history of a seed, in which each host has one to three ports and each comm runs over those of
/// both ends. On some hosts all ports but the first are standby.
///
/// # Panics
/// Panics if [`run`] does. A comm has a reason to fail if no pair of its rails is left.
pub(super) fn run_rails(seed: u64) -> Outcome {
    let mut history = History::new(
        seed,
        |random| 3 * (random.below(2) as usize + 2),
        |random, nics| {
            let hosts = nics.chunks(3).map(|ports| {
                let ports = &ports[..random.pick(&[1, 2, 2, 3])];
                let active = random.pick(&[1, ports.len(), ports.len()]);
                let nic = Rails::new(ports.to_vec(), active).expect("one to three rails");
                (ports.iter().map(SimNic::host).collect(), nic)
            });
            hosts.collect()
        },
    );
    history.act_often();
    history.finish()
}

struct History<N: Nic> {
    random: Random,
    world: World,
    /// The ports of each NIC, one for each rail, and the NIC.
    nics: Vec<(Vec<usize>, N)>,
    comms: Vec<Comm<N>>,
    outcome: Outcome,
    /// The time at which each port comes up again, or 0 if it is up.
    up_again_ns: Vec<u64>,
    /// The times at which streams work again, and their comms.
    outs: Vec<(u64, usize)>,
    /// The times at which both ends of a stream know that it is broken, and the comms.
    cuts: Vec<(u64, usize)>,
    /// The number of faults in a million actions.
    fault_ppm: u32,
    /// Decides on the killed end alone, so that histories without one stay as they are.
    fate: Random,
}

impl<N: Nic + Clone> History<N> {
    /// `ports` gives the number of ports, and `assemble` makes NICs of them.
    fn new(
        seed: u64,
        ports: impl FnOnce(&mut Random) -> usize,
        assemble: impl FnOnce(&mut Random, Vec<SimNic>) -> Vec<(Vec<usize>, N)>,
    ) -> Self {
        let mut random = Random::new(seed);
        let ipv6 = random.chance(500_000);
        let ports = ports(&mut random);
        let (world, nics) = network(&mut random, ports as u32, ipv6);
        let mut packets = Random::new(seed ^ PACKETS);
        lengthen(&mut packets, &world, &nics);
        shorten(seed, &world, &LIMITS);
        let nics = assemble(&mut random, nics);
        world.delay_completions(random.pick(&[0, 3_000, 100_000]));
        if random.chance(500_000) {
            world.report_ports();
        }
        let fault_ppm = random.pick(&[0, 0, 10_000, 40_000, 150_000]);
        let fate = Random::new(!seed);
        let (comms, outcome, up_again_ns) = (Vec::new(), Outcome::default(), vec![0; ports]);
        let [outs, cuts] = [const { Vec::new() }; 2];
        let mut history = History {
            random,
            world,
            nics,
            comms,
            outcome,
            up_again_ns,
            outs,
            cuts,
            fault_ppm,
            fate,
        };
        for _ in 0..history.random.below(3) + 1 {
            history.connect(ipv6, &mut packets);
        }
        history
    }

    /// Checks the peer at some ends of a comm. A recovery goes on only there.
    fn look(&mut self, which: usize) {
        let ends = [0; 2].map(|_| self.random.chance(500_000));
        let now_ns = self.world.now_ns();
        let comm = &mut self.comms[which];
        comm.step(&mut self.outcome, now_ns, |traffic| {
            traffic.check_peers(now_ns, ends).map(|()| false)
        });
    }

    fn act_often(&mut self) {
        let actions = self.random.below(150) + 30;
        let dies_before = self.fate.chance(DEATHS_PPM).then(|| self.fate.below(actions));
        for action in 0..actions {
            if dies_before == Some(action) {
                self.kill_an_end();
            }
            self.act();
        }
    }

    #[inline(never)]
    fn connect(&mut self, ipv6: bool, packets: &mut Random) {
        let hosts = [0; 2].map(|_| self.random.below(self.nics.len() as u64) as usize);
        let random = &mut self.random;
        let settings = prove(packets, settings(random, ipv6));
        let [(_, a), (_, b)] = hosts.map(|host| &self.nics[host]);
        let ports = hosts.map(|host| self.nics[host].0.clone());
        let duo = duo::connect([a, b], [settings; 2], || self.world.advance(20_000))
            .expect("nothing has gone wrong yet");
        let recovers = settings.recovery_timeout_ns > 0 && settings.wire == Wire::Invar;
        // A send queue has room for two pieces of each message.
        let limit = 2 * self.world.message_bytes_max() as usize;
        let message_bytes_max = random.pick(&MESSAGES_BYTES_MAX).min(limit);
        let shape = Shape { message_bytes_max, cells: 40, prompt: false };
        let cable = duo.cable.clone();
        if random.chance(500_000) {
            cable.set_pieces(random.pick(&[20, 300]));
        }
        let traffic = Traffic::new([a, b], [settings; 2], duo, shape);
        let state = State::Open(Box::new(traffic));
        self.comms.push(Comm { ports, state, cable, recovers, may_fail: false });
    }

    /// Makes one call or causes a fault, and lets a little time pass.
    fn act(&mut self) {
        if self.random.chance(self.fault_ppm) {
            self.break_something();
        }
        let which = self.random.below(self.comms.len() as u64) as usize;
        let op = Op::decode(self.random.next().to_le_bytes());
        let now_ns = self.world.now_ns();
        let comm = &mut self.comms[which];
        comm.step(&mut self.outcome, now_ns, |traffic| traffic.apply(op).map(|()| false));
        if self.random.chance(300_000) {
            self.look(which);
        }
        let longest_ns = if self.random.chance(50_000) { 2_000_000 } else { 20_000 };
        let ns = self.random.below(longest_ns);
        self.pass(ns);
    }

    fn break_something(&mut self) {
        let host = self.random.below(self.up_again_ns.len() as u64) as usize;
        match self.random.below(13) {
            // The port is down for less time than all retries take.
            0..=2 => {
                let until_ns = self.world.now_ns() + self.random.below(40_000_000);
                self.take_down(Fault::PortDown, host, until_ns);
            }
            3..=5 => {
                self.note_fault(Fault::HostSlow, host);
                let service_ns = self.random.below(4000) + 1;
                self.world.slow_down(host, service_ns, self.random.below(60) as usize + 4);
            }
            // The port is down for longer than all retries take.
            6 | 7 => {
                let until_ns = self.world.now_ns() + self.random.below(OUTAGE_NS);
                self.take_down(Fault::PortOut, host, until_ns);
                let touched = self.comms.iter_mut().filter(|comm| comm.has(host));
                touched.for_each(|comm| comm.may_fail |= !comm.recovers);
                if self.random.chance(500_000) {
                    // The streams use the same network.
                    let touched = |which: &usize| self.comms[*which].has(host);
                    let touched: Vec<usize> = (0..self.comms.len()).filter(touched).collect();
                    touched.into_iter().for_each(|which| self.take_line_out(which));
                }
            }
            // The stream beside the queue pairs is lost, for one end or for both.
            10 | 11 => self.lose_line(),
            12 => {
                let which = self.random.below(self.comms.len() as u64) as usize;
                self.take_line_out(which);
            }
            // The port is down for ever.
            8 => {
                self.take_down(Fault::PortGone, host, NEVER);
                let touched = self.comms.iter_mut().filter(|comm| comm.has(host));
                let is_gone = |port: usize| self.up_again_ns[port] == NEVER;
                touched
                    .for_each(|comm| comm.may_fail |= !comm.recovers || comm.is_cut_off(is_gone));
            }
            _ => {
                let which = self.random.below(self.comms.len() as u64) as usize;
                let comm = &mut self.comms[which];
                let State::Open(traffic) = &comm.state else { return };
                let end = self.random.below(2) as usize;
                let (host, qpn) = comm.place(end, traffic.qpns()[end]);
                let states = self.world.qp_states(host, qpn);
                let states = states
                    .into_iter()
                    .chain([comm.machines(&self.world)[end]])
                    .chain(comm.rails(|rail| comm.ports[end].get(rail) == Some(&host)));
                self.world.note_fault(Fault::QpBroken, states);
                self.world.break_qp(host, qpn);
                comm.may_fail |= !comm.recovers;
            }
        }
    }

    /// Takes a port down until a time. An earlier fault of the port that lasts longer goes on.
    fn take_down(&mut self, fault: Fault, port: usize, until_ns: u64) {
        self.note_fault(fault, port);
        self.world.set_up(port, false);
        let up_again_ns = &mut self.up_again_ns[port];
        *up_again_ns = until_ns.max(*up_again_ns);
    }

    /// Kills the process of an end of a comm.
    fn kill_an_end(&mut self) {
        let which = self.fate.below(self.comms.len() as u64) as usize;
        let comm = &mut self.comms[which];
        let end = self.fate.pick(&[End::Sender, End::Receiver]);
        if let State::Open(_) = comm.state {
            self.world.note_fault(Fault::EndKilled, comm.all_machines(&self.world));
            comm.end_early(&mut self.outcome, |traffic| traffic.kill(end));
        }
    }

    /// Breaks the stream of a comm, for one end or for both.
    fn lose_line(&mut self) {
        let which = self.random.below(self.comms.len() as u64) as usize;
        let ends = self.random.pick(&[[true, true], [true, false], [false, true]]);
        let comm = &mut self.comms[which];
        self.world.note_fault(Fault::LineLost, comm.all_machines(&self.world));
        comm.cable.cut(ends);
        comm.may_fail |= !comm.recovers;
        let known_ns = self.world.now_ns() + self.random.below(KEEPALIVE_NS);
        self.cuts.push((known_ns, which));
    }

    /// Takes the network of a stream out for some time. The stream may be lost meanwhile.
    fn take_line_out(&mut self, which: usize) {
        let comm = &mut self.comms[which];
        self.world.note_fault(Fault::LineOut, comm.all_machines(&self.world));
        comm.cable.set_out(true);
        let until = self.world.now_ns() + self.random.below(OUTAGE_NS);
        self.outs.retain(|(_, out)| *out != which);
        self.outs.push((until, which));
        if self.random.chance(500_000) {
            comm.may_fail |= !comm.recovers;
            let lost_ns = self.world.now_ns() + self.random.below(OUTAGE_NS);
            self.cuts.push((lost_ns.min(until), which));
        }
    }

    /// Records a fault that hits a whole host: each end of a comm there, and its rail.
    fn note_fault(&self, fault: Fault, host: usize) {
        let ends = self.comms.iter().flat_map(|comm| {
            let ends = comm.ports.iter().zip(comm.machines(&self.world));
            let ends = ends.filter(|(at, _)| at.contains(&host)).map(|(_, state)| state);
            ends.chain(
                comm.rails(|rail| comm.ports.iter().any(|ports| ports.get(rail) == Some(&host))),
            )
        });
        self.world.note_fault(fault, ends);
    }

    /// Lets time pass. Ports come up again when their time has come.
    fn pass(&mut self, ns: u64) {
        self.world.advance(ns);
        let now = self.world.now_ns();
        for (port, up_again_ns) in self.up_again_ns.iter_mut().enumerate() {
            if *up_again_ns != 0 && *up_again_ns <= now {
                self.world.set_up(port, true);
                *up_again_ns = 0;
            }
        }
        let comms = &self.comms;
        self.outs.retain(|&(until, which)| {
            if until <= now {
                comms[which].cable.set_out(false);
            }
            until > now
        });
        self.cuts.retain(|&(at, which)| {
            if at <= now {
                comms[which].cable.cut([true; 2]);
            }
            at > now
        });
    }

    /// Finishes everything that was begun.
    fn finish(mut self) -> Outcome {
        let deadline_ns = self.world.now_ns() + REQUEST_MAX_NS;
        let mut pause_ns = 10_000;
        loop {
            for comm in &mut self.comms {
                let now_ns = self.world.now_ns();
                comm.step(&mut self.outcome, now_ns, |traffic| traffic.finish(now_ns));
            }
            if self.comms.iter().all(|comm| matches!(comm.state, State::Over)) {
                break;
            }
            let now = self.world.now_ns();
            let states = || -> Vec<_> {
                self.comms
                    .iter()
                    .map(|comm| comm.machines(&self.world).map(MachineState::name))
                    .collect()
            };
            assert!(
                now < deadline_ns,
                "a request is under way after {REQUEST_MAX_NS} ns; senders and receivers: {:?}",
                states()
            );
            self.pass(pause_ns);
            // Most requests end soon. The others wait for timeouts.
            pause_ns = (pause_ns + pause_ns / 16).min(1_000_000);
        }
        let renewals = self.comms.iter().map(|comm| comm.cable.renewals() as u64).sum();
        self.outcome.count(Event::LineRenewed, renewals);
        [&mut self.outs, &mut self.cuts].into_iter().for_each(Vec::clear);
        // A packet that arrives late meets no receiver and does no harm.
        self.comms.clear();
        self.pass(1_000_000_000);

        let mut outcome = self.outcome.end(&self.world);
        for host in 0..self.up_again_ns.len() {
            assert!(self.world.has_nothing(host), "something is left on host {host}");
            let counters = self.world.device_counters(host);
            outcome.count(Event::DamageDetected, counters.icrc_bad + counters.tag_bad);
            outcome.count(Event::PacketSentAgain, counters.qps.packets_retransmitted);
        }
        outcome
    }
}

/// Random settings that the two ends of a connection may have agreed on.
pub(super) fn settings(random: &mut Random, ipv6: bool) -> CommSettings {
    CommSettings {
        // Over IPv4, NCCL's wire has no way to agree on an ICRC that can be verified.
        wire: if ipv6 && random.chance(250_000) { Wire::Nccl214 } else { Wire::Invar },
        fifo_depth: 1 << random.below(9),
        qps: random.pick(&[1, 1, 1, 2, 4]),
        timeout: TIMEOUT,
        use_inline: random.chance(500_000),
        ar_threshold_bytes: random.pick(&[0, 1000, 8192]),
        truncate: random.chance(500_000),
        suspect_after_ns: random.pick(&[0, 3_000_000, 30_000_000, 500_000_000]),
        recovery_timeout_ns: if random.chance(500_000) { RECOVERY_NS } else { 0 },
        flush: random.chance(300_000),
        options: if random.chance(500_000) {
            QpOptions::all()
        } else {
            QpOptions::ICRC_MASKS_IP_ID
        },
        ..CommSettings::default()
    }
}

/// Lets the ends of a connection on Invar's wire prove themselves. The packets of half of these connections carry
/// tags.
pub(super) fn prove(random: &mut Random, settings: CommSettings) -> CommSettings {
    use PacketAuth::{Always, Network, Off};
    if settings.wire == Wire::Nccl214 {
        return settings;
    }
    let key = Some(Secret::new(array::from_fn(|_| random.next() as u8)));
    CommSettings { key, packet_auth: random.pick(&[Off, Off, Network, Always]), ..settings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_fault_of_a_port_does_not_end_an_earlier_one_that_lasts_longer() {
        let mut history = History::new(
            1,
            |_| 2,
            |_, nics| nics.into_iter().map(|nic| (vec![nic.host()], nic)).collect(),
        );
        let is_up = |history: &History<SimNic>, port| history.world.net().wire.is_up(port);
        let in_ns = |history: &History<SimNic>, ns| history.world.now_ns() + ns;
        for (port, fault, until_ns) in
            [(0, Fault::PortGone, NEVER), (1, Fault::PortOut, in_ns(&history, 5_000))]
        {
            history.take_down(fault, port, until_ns);
            let until_ns = in_ns(&history, 1_000);
            history.take_down(Fault::PortDown, port, until_ns);
        }
        history.pass(2_000);
        assert!(!is_up(&history, 0) && !is_up(&history, 1), "a port is up too early");
        history.pass(1_000_000_000);
        assert!(!is_up(&history, 0), "a port that is gone is up again");
        assert!(is_up(&history, 1));
    }
}
