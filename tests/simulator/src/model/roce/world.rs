//! Carries out a script.

use invar_core::nic::{Access, QpTransition, RecvWr, SendFlags, SendOpcode, SendWr, Sge, Wc};
use invar_core::roce::Packet;
use invar_core::roce::qp::{Counters, Tuning};

use super::expected::{AREAS, Expected, READS, SENDS, WRITES, apply, imm_data};
use super::link::{Link, datagram};
use super::{Attr, Choices, Memory, Op, Peer, Script};
use crate::pattern::pattern;

/// The region that operations read from: key, address, index.
const SOURCE: (u32, u64, usize) = (0x501, 0x7f00_0000_0000, 0);
/// The region that operations write to: key, address, index.
const INBOX: (u32, u64, usize) = (0x602, 0x7f80_0000_1000, 1);
const QPNS: [u32; 2] = [0x11, 0xff_ffff];
/// The work requests that a queue holds. They are few, so that posting has to wait.
const DEPTH: u32 = 4;
/// The time by which a run must be over, however bad the link was.
const TIME_MAX_NS: u64 = 60_000_000_000;

/// The outcome of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The virtual time that the run took.
    pub time_ns: u64,
    /// The counters of both ends.
    pub counters: [Counters; 2],
}

struct End {
    peer: Peer,
    /// The operations that this end posts, and the number of posted ones.
    ops: Vec<Op>,
    posted: usize,
    /// The operations whose receives this end posts, and the number of posted receives.
    receives: Vec<Op>,
    receives_posted: usize,
    next_receive_ns: u64,
}

struct World<'a, 'b> {
    script: &'a Script,
    ends: [End; 2],
    link: Link,
    choices: &'a mut Choices<'b>,
    now: u64,
}

/// Carries out `script`. `choices` decide what the link does with each packet.
///
/// # Panics
/// Panics if a message was delivered wrong, twice, out of order or not at all.
pub fn run(script: &Script, choices: &mut Choices<'_>) -> Outcome {
    let ends = [0, 1].map(|end| End::new(script, end));
    let mut expected = [0, 1].map(|_| Expected::new(script));
    for end in 0..2 {
        let sources =
            [end, 1 - end].map(|end| ends[end].peer.host.regions[SOURCE.2].bytes.as_slice());
        let [ours, theirs] = &mut expected;
        let (us, peer) = if end == 0 { (ours, theirs) } else { (theirs, ours) };
        for (number, op) in (0..).zip(&script.ops[end]) {
            apply(script, number, op, sources, us, peer);
        }
    }
    let link = Link::new(script.faults);
    let mut world = World { script, ends, link, choices, now: 0 };
    let done = |world: &World<'_, '_>| {
        world.ends.iter().all(|end| end.posted == end.ops.len())
            && world.ends.iter().zip(&expected).all(|(end, expected)| {
                end.peer.host.sends.len() >= expected.sends.len()
                    && end.peer.host.receives.len() >= expected.receives.len()
            })
    };
    while !done(&world) {
        assert!(world.now < TIME_MAX_NS, "not done in time");
        assert!(world.step(), "nothing left to happen at {} ns", world.now);
    }
    let time_ns = world.now;
    // Packets that are left on the link, and late acknowledges, must change nothing.
    while world.step() {
        assert!(world.now < TIME_MAX_NS, "does not come to rest");
    }
    for (end, expected) in world.ends.iter().zip(expected) {
        assert_eq!(plain(&end.peer.host.sends), expected.sends);
        assert_eq!(plain(&end.peer.host.receives), expected.receives);
        assert!(
            end.peer.host.regions[INBOX.2].bytes == expected.inbox,
            "other bytes than were sent"
        );
        assert_eq!(end.peer.host.keys, [].into(), "keys that nobody invalidated");
    }
    Outcome { time_ns, counters: world.ends.map(|end| *end.peer.qp.counters()) }
}

/// Removes QP numbers, which the model does not know.
fn plain(wcs: &[Wc]) -> Vec<Wc> {
    wcs.iter().map(|wc| Wc { qp_num: 0, ..*wc }).collect()
}

impl World<'_, '_> {
    /// Posts, sends, and moves on to the next arrival or deadline. Returns `false` if there is none.
    fn step(&mut self) -> bool {
        self.drain();
        for end in &mut self.ends {
            end.post(self.script, self.now);
        }
        for end in 0..2 {
            let packets_max = self.choices.one(&[1, 3, 64]);
            loop {
                let run = self.ends[end].peer.transmit_run(self.now, packets_max);
                if run.is_empty() {
                    break;
                }
                for (transmit, payload) in run {
                    let bytes = datagram(&transmit, &payload);
                    self.link.send(self.now, 1 - end, bytes, self.choices);
                }
            }
        }
        let deadlines =
            self.ends.iter().flat_map(|end| [end.peer.qp.deadline_ns(), end.receive_at()]);
        let drain = self.script.drain.iter().flat_map(|&(at, pause)| [at, at + pause]);
        let times = deadlines.flatten().chain(self.link.next_at()).chain(drain);
        let Some(next) = times.filter(|&at| at > self.now).min() else { return false };
        // Sometimes be late, so that several packets are handled before the first is answered.
        self.now = next + self.choices.one(&[0, 0, 0, 20_000]);
        while let Some((to, bytes)) = self.link.receive(self.now) {
            let Peer { qp, host } = &mut self.ends[to].peer;
            let packet = Packet::decode(&bytes).expect("a packet that was encoded");
            qp.handle_packet(self.now, &packet, host);
        }
        for end in &mut self.ends {
            if end.peer.qp.deadline_ns().is_some_and(|at| at <= self.now) || self.choices.percent(5)
            {
                end.peer.qp.handle_timeout(self.now, &mut end.peer.host);
            }
        }
        true
    }

    /// Stops and resumes the first end's send queue as the script says.
    fn drain(&mut self) {
        use invar_core::nic::QpState::{Rts, Sqd};
        let Some((at, pause)) = self.script.drain else { return };
        let draining = (at..at + pause).contains(&self.now);
        let Peer { qp, host } = &mut self.ends[0].peer;
        match (qp.state(), draining) {
            (Rts, true) => qp.modify(&QpTransition::Sqd, host).unwrap(),
            (Sqd, false) => qp.modify(&QpTransition::Resume, host).unwrap(),
            _ => {}
        }
    }
}

impl End {
    fn new(script: &Script, end: usize) -> End {
        let area = script.area() as usize;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let source = pattern(end, area);
        let inbox = vec![0; AREAS as usize * area];
        let regions = [(SOURCE, Access::REMOTE_READ, source), (INBOX, all, inbox)];
        let regions =
            regions.map(|((key, addr, _), access, bytes)| Memory { key, addr, access, bytes });
        let attr = Attr {
            qpns: QPNS,
            psns: script.psns,
            depth: DEPTH,
            mtu: script.mtu,
            long_mtu_bytes: script.long_mtu_bytes,
            adaptive: script.adaptive,
            rd_atomic: script.rd_atomic,
            min_rnr_timer: 1,
            tuning: Tuning { window_packets_max: script.window, ..Tuning::default() },
            ..Attr::default()
        };
        let attr = if end == 0 { attr } else { attr.peer() };
        let receives = script.ops[1 - end].iter().filter(|op| op.uses_receive());
        let mut peer = Peer::new(&attr, regions.into());
        let numbered = (0..).zip(&script.ops[1 - end]);
        let invalidating = numbered.filter(|(_, op)| op.opcode == SendOpcode::SendWithInv);
        peer.host.keys = invalidating.map(|(number, _)| imm_data(number)).collect();
        End {
            peer,
            ops: script.ops[end].clone(),
            posted: 0,
            receives: receives.copied().collect(),
            receives_posted: 0,
            next_receive_ns: 0,
        }
    }

    fn receive_at(&self) -> Option<u64> {
        (self.receives_posted < self.receives.len()).then_some(self.next_receive_ns)
    }

    fn post(&mut self, script: &Script, now: u64) {
        let area = |area: u32, offset: u32| u64::from(area * script.area() + offset);
        while let Some(op) = self.ops.get(self.posted) {
            let source = SOURCE.1 + area(0, op.from);
            let (addr, lkey, remote_addr, rkey) = match op.opcode {
                SendOpcode::RdmaRead => (INBOX.1 + area(READS, op.to), INBOX.0, source, SOURCE.0),
                _ => (source, SOURCE.0, INBOX.1 + area(WRITES, op.to), INBOX.0),
            };
            let wr = SendWr {
                wr_id: self.posted as u64,
                remote_addr,
                sge: Sge { addr, length: op.len, lkey },
                rkey,
                imm_data: imm_data(self.posted as u64),
                opcode: op.opcode,
                flags: op.flags,
                ..SendWr::default()
            };
            let Ok(slot) = self.peer.qp.post_send(&wr, &mut self.peer.host) else { break };
            if op.flags.contains(SendFlags::INLINE) {
                let from = op.from as usize..(op.from + op.len) as usize;
                self.peer
                    .host
                    .inline
                    .insert(slot, self.peer.host.regions[SOURCE.2].bytes[from].to_vec());
            }
            self.posted += 1;
        }
        while self.receive_at().is_some_and(|at| at <= now) {
            let op = &self.receives[self.receives_posted];
            let addr = INBOX.1 + area(SENDS, op.to);
            let sge = Sge { addr, length: op.len, lkey: INBOX.0 };
            let wr = RecvWr { wr_id: self.receives_posted as u64, sge, ..RecvWr::default() };
            if self.peer.qp.post_recv(&wr, &mut self.peer.host).is_err() {
                break;
            }
            self.receives_posted += 1;
            self.next_receive_ns = now + u64::from(script.receive_pause_ns);
        }
    }
}
