//! The measurement that the user asks for.

use std::fs::File;
use std::time::Duration;

use invar::Settings;

use super::message::{BUFFER_BYTES, SLOTS_MIN, slot_bytes};
use super::operation::Op;
use super::{Args, named};
use crate::failure::Failure;

/// Messages under way by default.
const WINDOW: u16 = 32;
/// Receives posted ahead while single messages go to and fro.
const REQUESTS_MIN: u16 = 2;
/// The number of messages of each size in a brief measurement.
const BRIEF_ITERS: u32 = 100;

/// The measurement that the user asks for.
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) settings: Settings,
    pub(super) nic: Option<String>,
    /// The server's device; `None` leaves it to the server.
    pub(super) peer_nic: Option<String>,
    pub(super) sizes: Vec<u32>,
    pub(super) iters: Option<u32>,
    pub(super) warmup: u32,
    /// The time of each timed pass; `None` for the default.
    pub(super) duration: Option<Duration>,
    /// Bits in a second that this end may send in a timed pass.
    pub(super) rate_bits: Option<f64>,
    /// Whether the timed messages go both ways at once.
    pub(super) both_ways: bool,
    pub(super) window: Option<u16>,
    pub(super) recvs: u16,
    pub(super) qps: u16,
    pub(super) check: bool,
    pub(super) adaptive_routing: Option<bool>,
    /// A given flag that has no effect over TCP.
    pub(super) of_queue_pairs: Option<&'static str>,
    /// Whether the user has chosen a GID, which only RDMA devices have a table of.
    pub(super) has_gid_index: bool,
    pub(super) pcap: Option<File>,
}

/// The most time between two messages.
const PACE_MAX: Duration = Duration::from_secs(5);

impl Job {
    pub(super) fn new(args: &Args, settings: &Settings) -> Result<Self, Failure> {
        args.sizes.check()?;
        if let Some(name) = &args.nic {
            named(name, settings)?;
        }
        let mut settings = settings.clone();
        if let Some(qps) = args.qps {
            settings = settings.qps(qps);
        }
        if args.adaptive_routing {
            settings = settings.adaptive_routing(true);
        }
        let requests_max = settings.requests_max();
        enough(requests_max)?;
        for (flag, value) in [("--window", args.window), ("--recvs", Some(args.recvs))] {
            if let Some(value) = value.filter(|value| *value > requests_max) {
                let text =
                    format!("{flag} {value}: INVAR_FIFO_DEPTH and wire allow {requests_max}");
                return Err(Failure::usage(text));
            }
        }
        let flags = [("--qps", args.qps.is_some()), ("--adaptive-routing", args.adaptive_routing)];
        check_op(args)?;
        let job = Job {
            op: args.op,
            pcap: None,
            has_gid_index: args.gid_index.is_some(),
            of_queue_pairs: flags.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag)),
            qps: if args.op == Op::Message { settings.queue_pairs() } else { 1 },
            adaptive_routing: args.adaptive_routing.then_some(true),
            settings,
            nic: args.nic.clone(),
            peer_nic: None,
            sizes: args.sizes.series(),
            iters: args.iters,
            warmup: args.warmup,
            duration: args.duration,
            both_ways: args.bidirectional,
            rate_bits: args.rate.map(|gigabits| gigabits * 1e9),
            window: args.window,
            recvs: args.recvs,
            check: !args.no_check,
        };
        match job.sizes.iter().find(|size| job.pace(**size).is_some_and(|pace| pace > PACE_MAX)) {
            None => Ok(job),
            Some(size) => Err(Failure::usage(format_args!(
                "--rate: at this rate {size} bytes take more than {PACE_MAX:?}, as if the sender were stuck"
            ))),
        }
    }

    /// A measurement of a few messages of each size between two devices.
    pub(super) fn brief(nic: &str, peer_nic: &str, settings: Settings, sizes: Vec<u32>) -> Self {
        Job {
            op: Op::Message,
            nic: Some(nic.to_owned()),
            peer_nic: Some(peer_nic.to_owned()),
            sizes,
            iters: Some(BRIEF_ITERS),
            warmup: 5,
            duration: None,
            both_ways: false,
            rate_bits: None,
            window: None,
            recvs: 1,
            qps: settings.queue_pairs(),
            check: true,
            adaptive_routing: None,
            of_queue_pairs: None,
            has_gid_index: false,
            pcap: None,
            settings,
        }
    }

    /// The least time between the starts of two messages.
    pub(super) fn pace(&self, size: u32) -> Option<Duration> {
        let bits = 8.0 * f64::from(size);
        // Pacing is off for a message that would never leave.
        Duration::try_from_secs_f64(bits / self.rate_bits?).ok().filter(|pace| !pace.is_zero())
    }

    pub(super) fn window(&self, requests_max: u16) -> u16 {
        self.window.unwrap_or(WINDOW).min(requests_max)
    }

    /// Messages of one size under way: whole groups, and at least two messages.
    pub(super) fn slots(&self, size: u32, requests_max: u16) -> u16 {
        let window = usize::from(self.window(requests_max) * self.op.slots_each());
        let slots = window.min((BUFFER_BYTES / slot_bytes(size)).max(SLOTS_MIN));
        let recvs = usize::from(self.recvs);
        (slots / recvs * recvs).max(recvs) as u16
    }

    /// Bytes of memory for the messages under way, of any size.
    pub(super) fn region_bytes(&self) -> usize {
        let bytes = |&size: &u32| usize::from(self.slots(size, 256)) * slot_bytes(size);
        self.sizes.iter().map(bytes).max().unwrap_or(1)
    }

    /// Bytes of memory that suffice for the messages of both directions.
    pub(super) fn memory_bytes(&self) -> u64 {
        2 * self.region_bytes() as u64
    }
}

/// Refuses flags that an operation other than messages has no use for.
fn check_op(args: &Args) -> Result<(), Failure> {
    let op = args.op.name();
    let refused = |text: &str| Err(Failure::usage(format!("--op {op}: {text}")));
    match args.op {
        Op::Message => Ok(()),
        _ if args.qps.is_some_and(|qps| qps != 1) => {
            refused("it has one queue pair, without --qps")
        }
        _ if args.recvs != 1 => refused("only messages have grouped receives, so no --recvs"),
        _ if args.adaptive_routing => refused("only messages have --adaptive-routing"),
        Op::Write if args.sizes.min_bytes == 0 => {
            refused("the peer waits for the last byte, so --min-bytes must be 1 or more")
        }
        _ => Ok(()),
    }
}

/// Checks that both ends can post receives ahead.
pub(super) fn enough(requests_max: u16) -> Result<(), Failure> {
    if requests_max < REQUESTS_MIN {
        let text = format!("INVAR_FIFO_DEPTH={requests_max}: perf needs {REQUESTS_MIN} at least");
        return Err(Failure::usage(text));
    }
    Ok(())
}
