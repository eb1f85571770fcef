//! `--op write`, `read` and `send`: passes over a single queue pair, below the protocol of messages.
//!
//! Read in this order: an [`OpLink`] is a queue pair with its memory. [`flow`] has the two parts of a
//! pass: the end that starts requests, and the end that they reach. [`stream`] and [`latency`] run a
//! pass at either end.

mod flow;
mod latency;
mod stream;

use std::time::{Duration, Instant};

use invar::nic::{SendOpcode, Wc};
use invar::raw::{QueuePair, Side, queue_pair};
use invar::{Device, DeviceKind, Error, Settings};

use super::control::Control;
use super::flow::StallTimer;
use super::message::{Pass, Reply, Request};
use super::operation::Op;
use super::pattern::{Bytes, Flow, Pattern};
use crate::failure::Failure;
use flow::{Active, Passive};
pub(super) use stream::Passed;

/// Completions taken at a time.
const POLL_BATCH: usize = 16;
/// Polls between two looks at the clock, and the time between two looks at the control connection.
const LOOK_POLLS: u32 = 256;
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time between two signs of life of a client in a pass.
const SIGN_EVERY: Duration = Duration::from_secs(5);
/// The shortest wait for a line: a look.
const AT_ONCE: Duration = Duration::from_micros(1);
/// The time within which the first packet of a client must come.
const TRY_OUT_WITHIN: Duration = Duration::from_secs(10);

/// One end of the connection of a run: a queue pair, and its memory. Messages from this end lie in the
/// first half, messages to this end in the second.
pub(super) struct OpLink {
    op: Op,
    pair: Box<dyn QueuePair>,
    half_bytes: usize,
    seed: u64,
    /// The direction of this end's messages.
    ours: Flow,
    wcs: [Wc; POLL_BATCH],
    polls: u32,
    looked: Instant,
    signed: Instant,
    stall: StallTimer,
}

impl OpLink {
    /// Creates this end's queue pair. The other end of `control` has the peer.
    pub(super) fn new(
        (op, ours): (Op, Flow),
        device: &Device,
        settings: &Settings,
        control: &Control,
        (half_bytes, seed): (usize, u64),
    ) -> Result<Self, Failure> {
        let info = device.info();
        if info.kind == DeviceKind::Socket || !info.rails.is_empty() {
            let (name, op) = (&info.name, op.name());
            let text = match info.kind {
                DeviceKind::Socket => {
                    format!("--op {op}: {name} goes over TCP, without queue pairs")
                }
                _ => format!("--op {op}: {name} has several rails, and a queue pair has one port"),
            };
            return Err(Failure::usage(text));
        }
        let side = match ours {
            Flow::ToServer => Side::Connector,
            Flow::ToClient => Side::Acceptor,
        };
        let (us, peer) = ((side, control.session()), control.peer().ip().to_canonical());
        let pair = queue_pair(device, settings, us, peer, 2 * half_bytes)?;
        let now = Instant::now();
        Ok(OpLink {
            op,
            pair,
            half_bytes,
            seed,
            ours,
            wcs: [Wc::default(); POLL_BATCH],
            polls: 0,
            looked: now,
            signed: now,
            stall: StallTimer::default(),
        })
    }

    /// The description of this end for the peer.
    pub(super) fn info(&self) -> Vec<u8> {
        self.pair.info().to_vec()
    }

    /// Connects with the peer that has this info. The server is then ready for the client's [`OpLink::try_out`].
    pub(super) fn connect(&mut self, peer_info: &[u8]) -> Result<(), Failure> {
        self.pair.connect(peer_info)?;
        if self.ours == Flow::ToClient {
            let at = self.half_bytes;
            self.pair.post_recv(flow::RECEIVE, at..at + 1)?;
        }
        Ok(())
    }

    /// Sends a byte from the client to the server. The byte shows that the client is at the address that its info
    /// names. Before it arrives the server sends nothing: a stranger may have named the address of somebody else.
    pub(super) fn try_out(&mut self, control: &mut Control) -> Result<(), Failure> {
        if self.ours == Flow::ToServer {
            self.pair.post(SendOpcode::Send, 0, 0..1, 0)?;
        }
        let start = Instant::now();
        loop {
            // The wait for a line sleeps. A line that follows the byte must be looked for before the byte.
            let has_line = control.has_line(LOOK_EVERY)?;
            if self.pair.poll(&mut self.wcs)? > 0 {
                return self.moved(true);
            }
            if self.ours == Flow::ToClient && start.elapsed() > TRY_OUT_WITHIN {
                return Err(Failure::new(format_args!(
                    "no packet of the client's queue pair has come for {} s: check the network between the GIDs of \
                     both ends, and a firewall for UDP",
                    TRY_OUT_WITHIN.as_secs()
                )));
            }
            if has_line {
                return Err(match self.ours {
                    Flow::ToServer => control.recv::<Reply>(AT_ONCE)?.unexpected(control),
                    Flow::ToClient => Failure::new(
                        "the client asks for a pass before its queue pair has sent anything: it may be of an older \
                         version",
                    ),
                });
            }
            self.pair.check()?;
            self.moved(false)?;
        }
    }

    /// The parts of this end in a pass: what it starts, and what reaches it.
    fn parts(&self, pass: &Pass) -> (Active, Passive) {
        let theirs = match self.ours {
            Flow::ToServer => Flow::ToClient,
            Flow::ToClient => Flow::ToServer,
        };
        let pattern = |flow| Pattern::new(self.seed, pass.number, flow, pass.size);
        // The bytes of a READ are those of the end that it reaches.
        let (active, passive) = match self.op {
            Op::Read => (pattern(theirs), pattern(self.ours)),
            _ => (pattern(self.ours), pattern(theirs)),
        };
        let active = Active::new(self.op, pass, active, self.half_bytes);
        (active, Passive::new(self.op, pass, passive, self.half_bytes))
    }

    /// Takes completions. Returns whether there were any.
    #[inline]
    fn poll(&mut self, active: &mut Active, passive: &mut Passive) -> Result<bool, Failure> {
        let polled = self.pair.poll(&mut self.wcs)?;
        for wc in &self.wcs[..polled] {
            if wc.wr_id & flow::RECEIVE == 0 {
                active.completed(&*self.pair)?;
            } else {
                passive.received(&*self.pair, wc.byte_len)?;
            }
        }
        Ok(polled > 0)
    }

    /// Whether it is time to look at the control connection. Looks seldom, since a look is a system call.
    #[inline]
    fn must_look(&mut self) -> Result<bool, Failure> {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(LOOK_POLLS) {
            return Ok(false);
        }
        self.look()
    }

    #[cold]
    fn look(&mut self) -> Result<bool, Failure> {
        let is_time = self.looked.elapsed() >= LOOK_EVERY;
        if is_time {
            self.looked = Instant::now();
            self.pair.check()?;
        }
        Ok(is_time)
    }

    /// Tells the server now and then that the pass goes on.
    #[inline]
    fn sign(&mut self, control: &mut Control) -> Result<(), Failure> {
        if self.must_look()? { self.sign_now(control) } else { Ok(()) }
    }

    /// Tells the server that the pass goes on, if the last sign was some time ago.
    fn sign_now(&mut self, control: &mut Control) -> Result<(), Failure> {
        if self.signed.elapsed() >= SIGN_EVERY {
            self.signed = Instant::now();
            control.send(&Request::Going)?;
        }
        Ok(())
    }

    /// Notes whether something moved, and fails if nothing did for too long.
    #[inline]
    fn moved(&mut self, moved: bool) -> Result<(), Failure> {
        if moved {
            self.stall.renew();
            Ok(())
        } else {
            self.stall.idle()
        }
    }

    /// Polls for a moment, so that the software NIC acknowledges what has arrived last.
    pub(super) fn linger(&mut self, time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        while start.elapsed() < time {
            self.pair.poll(&mut self.wcs)?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Bytes for dyn QueuePair + '_ {
    #[inline]
    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        QueuePair::read_at(self, offset, bytes)
    }

    #[inline]
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        QueuePair::write_at(self, offset, bytes)
    }
}
