//! The client: it asks for passes, measures them, and prints the results.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use invar::{Device, DeviceInfo, DeviceKind, Listener, Settings};

use super::control::Control;
use super::latency::{Latency, Recorder};
use super::link::{Link, Plan};
use super::load::Load;
use super::message::{
    BUFFER_BYTES, Kind, Offer, Pass, Ready, Reply, Request, SLOTS_MIN, Setup, slot_bytes,
};
use super::pattern::Flow;
use super::plot;
use super::report::{Header, Report, Row};
use super::usage::Used;
use super::{Args, choose, named, settings_for};
use crate::failure::{Failure, line};
use crate::output::{Outputs, created};

/// Messages under way by default.
const WINDOW: u16 = 32;
/// Receives posted ahead while single messages go to and fro.
const REQUESTS_MIN: u16 = 2;
/// Bytes of a pass that checks every byte.
const CHECK_BYTES: u64 = 64 << 20;
/// Times of a pass without a given number of messages: to find the number, and to measure.
const TRIAL: Duration = Duration::from_millis(15);
const TIMED: Duration = Duration::from_millis(200);
const PING_PONG: Duration = Duration::from_millis(80);
/// Time for a reply. The server checks bytes after they have arrived.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of the messages of a brief measurement, and their number.
const BRIEF: (u32, u32) = (8, 64 << 10);
const BRIEF_ITERS: u32 = 100;
/// Time between two polls of connections that are not complete.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The outputs to show beside the table.
#[derive(Default)]
pub(super) struct Extras {
    /// The file for a picture.
    pub(super) plot: Option<PathBuf>,
    /// Whether to print the distribution of half round trips.
    pub(super) histogram: bool,
}

/// The results of a measurement.
pub(super) struct Measured {
    /// How many bytes were wrong.
    pub(super) wrong: u64,
    /// `None` if nothing was measured.
    pub(super) header: Option<Header>,
    pub(super) rows: Vec<Row>,
}

/// The measurement that the user asks for.
pub(super) struct Job {
    settings: Settings,
    nic: Option<String>,
    /// The server's device; `None` leaves it to the server.
    peer_nic: Option<String>,
    sizes: Vec<u32>,
    iters: Option<u32>,
    warmup: u32,
    /// The time of each timed pass; `None` for the default.
    duration: Option<Duration>,
    /// Bits in a second that this end may send in a timed pass.
    rate_bits: Option<f64>,
    /// Whether the timed messages go both ways at once.
    both_ways: bool,
    window: Option<u16>,
    recvs: u16,
    qps: u16,
    check: bool,
    adaptive_routing: Option<bool>,
    /// A given flag that has no effect over TCP.
    of_queue_pairs: Option<&'static str>,
    pcap: Option<File>,
}

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
        let pcap = args.pcap.as_deref().map(created).transpose()?;
        Ok(Job {
            pcap,
            of_queue_pairs: flags.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag)),
            qps: settings.queue_pairs(),
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
        })
    }

    /// A measurement of a few short and long messages between two devices.
    pub(super) fn brief(nic: &str, peer_nic: &str, settings: Settings) -> Self {
        Job {
            nic: Some(nic.to_owned()),
            peer_nic: Some(peer_nic.to_owned()),
            sizes: vec![BRIEF.0, BRIEF.1],
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
            pcap: None,
            settings,
        }
    }

    /// The least time between the starts of two messages.
    fn pace(&self, size: u32) -> Option<Duration> {
        let bits = 8.0 * f64::from(size);
        // Pacing is off for a message that would never leave.
        Duration::try_from_secs_f64(bits / self.rate_bits?).ok().filter(|pace| !pace.is_zero())
    }

    fn window(&self, requests_max: u16) -> u16 {
        self.window.unwrap_or(WINDOW).min(requests_max)
    }

    /// Messages of one size under way: whole groups, and at least two messages.
    fn slots(&self, size: u32, requests_max: u16) -> u16 {
        let window = usize::from(self.window(requests_max));
        let slots = window.min((BUFFER_BYTES / slot_bytes(size)).max(SLOTS_MIN));
        let recvs = usize::from(self.recvs);
        (slots / recvs * recvs).max(recvs) as u16
    }

    /// Bytes of memory for the messages under way, of any size.
    fn region_bytes(&self) -> usize {
        let bytes = |&size: &u32| usize::from(self.slots(size, 256)) * slot_bytes(size);
        self.sizes.iter().map(bytes).max().unwrap_or(1)
    }
}

/// Checks that both ends can post receives ahead.
fn enough(requests_max: u16) -> Result<(), Failure> {
    if requests_max < REQUESTS_MIN {
        let text = format!("INVAR_FIFO_DEPTH={requests_max}: perf needs {REQUESTS_MIN} at least");
        return Err(Failure::usage(text));
    }
    Ok(())
}

/// Asks a server for its devices. Returns them with the control connection's own addresses, first that of
/// this end.
pub(super) fn offers(server: &[SocketAddr]) -> Result<(Vec<Offer>, [IpAddr; 2]), Failure> {
    let mut control = Control::connect(server)?;
    let devices = match control.recv(ANSWER_WITHIN)? {
        Reply::Device { devices, .. } => devices,
        reply => return Err(unexpected(&control, reply)),
    };
    control.send(&Request::Bye)?;
    Ok((devices, [control.local_ip()?, control.peer().ip().to_canonical()]))
}

/// Measures with a server, and returns the results.
pub(super) fn run(
    job: &Job,
    load: Option<Load>,
    outputs: Outputs,
    extras: Extras,
    server: &[SocketAddr],
) -> Result<Measured, Failure> {
    let mut control = Control::connect(server)?;
    let mut report = Report::new(outputs, extras.histogram);
    let result = measure(job, load, &mut control, &mut report);
    let result = result.map_err(|failure| {
        if failure.is_unread() {
            // A server that misses the goodbye notices the closed connection.
            let _ = control.send(&Request::Bye);
            return failure;
        }
        if failure.is_usage() {
            return failure;
        }
        // The server may know the cause, or may hear of the failure from this end alone.
        match control.recv(Duration::from_millis(300)) {
            Ok(Reply::Failed { text }) => {
                Failure::new(format_args!("{failure}; the server: {text}"))
            }
            _ => failure,
        }
    });
    let (header, rows) = report.finish(result.is_ok())?;
    let wrong = result?;
    if let (Some(path), Some(header)) = (&extras.plot, &header) {
        plot::write(path, header, &rows)?;
    }
    Ok(Measured { wrong, header, rows })
}

fn measure(
    job: &Job,
    load: Option<Load>,
    control: &mut Control,
    report: &mut Report,
) -> Result<u64, Failure> {
    let chosen = choose(job.nic.as_deref(), control.local_ip()?, &job.settings)?;
    let theirs = match control.recv(ANSWER_WITHIN)? {
        Reply::Device { transport, devices } => {
            let asked =
                devices.into_iter().find(|offer| Some(&offer.name) == job.peer_nic.as_ref());
            asked.map_or(transport, |offer| offer.transport)
        }
        reply => return Err(unexpected(control, reply)),
    };
    let settings = &settings_for(&job.settings, chosen.kind(), &theirs);
    let device = chosen.open(settings)?;
    let DeviceInfo { name, kind, .. } = device.info();
    if let (DeviceKind::Socket, Some(flag)) = (kind, job.of_queue_pairs) {
        return Err(Failure::usage(format!("{flag}: {name} goes over TCP, without queue pairs")));
    }
    if let Some(file) = &job.pcap {
        let file = file.try_clone().map_err(|error| Failure::io("the capture", &error))?;
        device.capture(file)?;
    }
    let listener = Listener::bind(&device, settings)?;
    let seed = RandomState::new().hash_one(control.peer());
    let size_max = job.sizes.last().copied().unwrap_or(0);
    control.send(&Request::Setup(Setup {
        transport: kind.to_string(),
        nic: job.peer_nic.clone(),
        seed,
        handle: listener.handle(),
        qps: job.qps,
        adaptive_routing: job.adaptive_routing,
        recvs: job.recvs,
        size_max,
        region_bytes: job.region_bytes() as u64,
        both_ways: job.both_ways,
    }))?;
    let ready = match control.recv(ANSWER_WITHIN)? {
        Reply::Ready(ready) => ready,
        reply => return Err(unexpected(control, reply)),
    };
    let requests_max = job.settings.requests_max().min(ready.requests_max);
    enough(requests_max)?;
    let plan = Plan {
        device: &device,
        settings,
        listener: &listener,
        peer: ready.handle,
        outgoing_bytes: job.region_bytes(),
        incoming_bytes: if job.both_ways { job.region_bytes() } else { slot_bytes(size_max) },
        recvs: job.recvs,
        seed,
    };
    let mut link = plan.connect(|| match control.has_line(LOOK_EVERY)? {
        false => Ok(()),
        true => {
            let reply = control.recv(ANSWER_WITHIN)?;
            Err(unexpected(control, reply))
        }
    })?;
    link.try_out()?;
    report.head(header(job, load, &device, &ready, &theirs), job.sizes.len())?;
    let mut session = Session { job, control, link, requests_max, passes: 0 };
    let mut wrong = 0;
    for &size in &job.sizes {
        let row = session.row(size, report)?;
        wrong = row.wrong.saturating_add(wrong);
        report.row(row)?;
    }
    session.control.send(&Request::Bye)?;
    if job.pcap.is_some() {
        device.end_capture()?;
    }
    Ok(wrong)
}

fn header(job: &Job, load: Option<Load>, device: &Device, ready: &Ready, theirs: &str) -> Header {
    let info = device.info();
    let is_nic = info.kind != DeviceKind::Socket;
    Header {
        version: env!("CARGO_PKG_VERSION"),
        nic: info.name.clone(),
        transport: info.kind.to_string(),
        address: info.address,
        peer_nic: line(&ready.nic),
        peer: ready.address,
        peer_transport: line(&theirs),
        path_mtu: is_nic.then(|| job.settings.mtu_bytes(info).min(ready.mtu)),
        qps: is_nic.then_some(job.qps),
        recvs: job.recvs,
        window: job.window(ready.requests_max),
        adaptive_routing: is_nic && job.settings.routes_adaptively(info),
        check: job.check,
        bidirectional: job.both_ways,
        load,
    }
}

/// The failure for a reply that does not answer the request.
fn unexpected(control: &Control, reply: Reply) -> Failure {
    match reply {
        Reply::Failed { text } => Failure::new(format_args!("the server: {text}")),
        _ => Failure::new(format_args!("{} answers what was not asked", control.peer())),
    }
}

/// The results of a pass to the server.
struct Streamed {
    /// The time and processor use of the messages after the lead.
    used: Used,
    wrong: u64,
    peer_cpu_percent: Option<f64>,
}

/// A measurement under way.
struct Session<'a> {
    job: &'a Job,
    control: &'a mut Control,
    link: Link,
    requests_max: u16,
    passes: u32,
}

impl Session<'_> {
    fn row(&mut self, size: u32, report: &mut Report) -> Result<Row, Failure> {
        let mut wrong = 0;
        report.begin(size, "checking");
        if self.job.check {
            let slots = self.job.slots(size, self.requests_max);
            let messages = (CHECK_BYTES / u64::from(size.max(1))).clamp(2, 2 * u64::from(slots));
            wrong = self.stream(Kind::Check, size, messages, 0)?.wrong;
        }
        report.begin(size, "timing");
        let (iters, trial_wrong) = match self.job.iters {
            Some(iters) => (u64::from(iters), 0),
            None => self.trial(size)?,
        };
        let iters = self.whole_groups(iters);
        let warmup = self.whole_groups(u64::from(self.job.warmup));
        let timed = self.stream(self.timed(), size, warmup + iters, warmup)?;
        report.begin(size, "latency");
        let message = timed.used.elapsed.div_f64(iters as f64);
        let (latency, latency_wrong) = self.latency(size, iters, message)?;
        // Nothing is known of a server's numbers.
        let wrong = [wrong, trial_wrong, timed.wrong, latency_wrong];
        let wrong = wrong.into_iter().fold(0, u64::saturating_add);
        let ways = if self.job.both_ways { 2 } else { 1 };
        Ok(Row::new(size, [iters, ways], timed.used, timed.peer_cpu_percent, wrong, latency))
    }

    /// The kind of a timed pass.
    fn timed(&self) -> Kind {
        if self.job.both_ways { Kind::Exchange } else { Kind::Stream }
    }

    /// Finds how many messages take long enough to be timed.
    fn trial(&mut self, size: u32) -> Result<(u64, u64), Failure> {
        let lead = u64::from(self.job.slots(size, self.requests_max));
        let (mut messages, mut wrong) = (self.whole_groups(4), 0);
        loop {
            let trial = self.stream(self.timed(), size, lead + messages, lead)?;
            let elapsed = trial.used.elapsed;
            wrong = trial.wrong.saturating_add(wrong);
            let fitting = |time: Duration| {
                let times = time.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
                (messages as f64 * times) as u64
            };
            if elapsed >= TRIAL / 2 {
                return Ok((fitting(self.job.duration.unwrap_or(TIMED)).max(4), wrong));
            }
            messages = self.whole_groups(fitting(TRIAL).clamp(2 * messages, 32 * messages));
        }
    }

    /// Measures half round trips of single messages, as many as fit into the time.
    fn latency(
        &mut self,
        size: u32,
        iters: u64,
        message: Duration,
    ) -> Result<(Latency, u64), Failure> {
        let round_trip = 2 * message + Duration::from_micros(20);
        let time = self.job.duration.unwrap_or(PING_PONG);
        let fitting = (time.as_nanos() / round_trip.as_nanos()) as u64;
        let messages = self.job.iters.map_or(fitting.max(4), |_| iters.min(fitting.max(4)));
        // The first messages meet cold caches and a sleeping server.
        let lead = messages.div_ceil(10);
        let pass = self.pass(Kind::PingPong, size, [lead + messages, lead], 1)?;
        let mut recorder = Recorder::new();
        let wrong = self.link.ping(&pass, |message, round_trip| {
            if message >= lead {
                recorder.record(round_trip / 2);
            }
        })?;
        Ok((recorder.latency(), self.answer()?.0.saturating_add(wrong)))
    }

    /// Runs a pass to the server.
    fn stream(
        &mut self,
        kind: Kind,
        size: u32,
        messages: u64,
        lead: u64,
    ) -> Result<Streamed, Failure> {
        let messages = self.whole_groups(messages);
        let slots = self.job.slots(size, self.requests_max);
        let pass = self.pass(kind, size, [messages, lead], slots)?;
        let (wrong, used) = match kind {
            Kind::Exchange => self.link.exchange(&pass, Flow::ToServer)?,
            Kind::Stream => (0, self.link.transmit(&pass, self.job.pace(size))?),
            Kind::Check | Kind::PingPong => (0, self.link.transmit(&pass, None)?),
        };
        let (theirs, peer_cpu_percent) = self.answer()?;
        self.link.end_last()?;
        Ok(Streamed { used, wrong: theirs.saturating_add(wrong), peer_cpu_percent })
    }

    fn pass(
        &mut self,
        kind: Kind,
        size: u32,
        [messages, lead]: [u64; 2],
        slots: u16,
    ) -> Result<Pass, Failure> {
        self.passes += 1;
        let pass = Pass { number: self.passes, kind, size, messages, lead, slots };
        self.control.send(&Request::Pass(pass))?;
        Ok(pass)
    }

    /// Waits for the server's count of wrong bytes, and its processor time in percent.
    fn answer(&mut self) -> Result<(u64, Option<f64>), Failure> {
        let reply = self.control.recv(ANSWER_WITHIN);
        match reply.map_err(|failure| self.link.uncontrolled(failure))? {
            Reply::Done { wrong, cpu_percent } => Ok((wrong, cpu_percent)),
            reply => Err(unexpected(self.control, reply)),
        }
    }

    fn whole_groups(&self, messages: u64) -> u64 {
        messages.next_multiple_of(u64::from(self.job.recvs))
    }
}
