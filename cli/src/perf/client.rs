//! The client: it asks for passes, measures them, and prints the results.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use invar::{Device, DeviceInfo, DeviceKind, Listener, Settings};

use super::about::About;
use super::control::{ANSWER_WITHIN, Control};
use super::job::{Job, enough};
use super::link::Plan;
use super::load::Load;
use super::message::{HandleHex, Hex, Offer, Ready, Reply, Request, Setup};
use super::op::OpLink;
use super::operation::Op;
use super::pattern::Flow;
use super::plot;
use super::report::{Header, Report, Row};
use super::session::{AnyLink, Session};
use super::{choose, settings_for};
use crate::failure::{Failure, line};
use crate::output::{OutputFile, Outputs};

/// Time between two polls of connections that are not complete.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time in which the server may tell its own reason after a failure at this end. By default a server whose call is
/// refused fails after 3 s.
const REASON_WITHIN: Duration = Duration::from_secs(3);

/// The outputs to show beside the table.
#[derive(Default)]
pub(super) struct Extras {
    /// The file for a picture.
    pub(super) plot: Option<OutputFile>,
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

/// A measurement that failed.
pub(super) struct Broken {
    pub(super) failure: Failure,
    /// Whether packets arrived at this end's device, and at the server's. `None` if that is not known.
    pub(super) has_heard: [Option<bool>; 2],
    /// Payload bytes of a packet; `None` without a connection, and over TCP.
    pub(super) path_mtu: Option<usize>,
    /// How many sizes had been measured.
    pub(super) sizes: usize,
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Broken { failure, has_heard: [None; 2], path_mtu: None, sizes: 0 }
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        broken.failure
    }
}

/// The first message of a server, and the addresses of both ends.
pub(super) struct Hello {
    pub(super) devices: Vec<Offer>,
    pub(super) about: Option<About>,
    /// The addresses of the control connection, first that of this end.
    pub(super) addrs: [IpAddr; 2],
}

/// Asks a server for its devices.
pub(super) fn offers(server: &[SocketAddr]) -> Result<Hello, Failure> {
    let mut control = Control::connect(server)?;
    let (devices, about) = match control.recv(ANSWER_WITHIN)? {
        Reply::Device { devices, about, .. } => (devices, about),
        reply => return Err(reply.unexpected(&control)),
    };
    control.send(&Request::Bye)?;
    Ok(Hello { devices, about, addrs: [control.local_ip()?, control.peer().ip().to_canonical()] })
}

/// Measures with a server, and returns the results.
pub(super) fn run(
    job: &Job,
    load: Option<Load>,
    outputs: Outputs,
    mut extras: Extras,
    server: &[SocketAddr],
) -> Result<Measured, Broken> {
    let mut control = Control::connect(server)?;
    let mut report = Report::new(outputs, extras.histogram);
    let result = measure(job, load, &mut control, &mut report);
    let mut has_heard = [None; 2];
    let result = result.map_err(|failure| {
        has_heard[0] = failure.has_heard();
        if failure.is_unread() {
            // A server that misses the goodbye notices the closed connection.
            let _ = control.send(&Request::Bye);
            return failure;
        }
        if failure.is_usage() {
            return failure;
        }
        // The server may know the cause, or may hear of the failure from this end alone.
        match control.recv(REASON_WITHIN) {
            Ok(Reply::Failed { text, has_heard: there }) => {
                has_heard[1] = there;
                Failure::new(format_args!("{failure}; the server: {text}"))
            }
            _ => failure,
        }
    });
    let (header, rows) = report.finish(result.is_ok())?;
    let wrong = result.map_err(|failure| Broken {
        failure,
        has_heard,
        path_mtu: header.as_ref().and_then(|header| header.path_mtu),
        sizes: rows.len(),
    })?;
    if let (Some(file), Some(header)) = (&mut extras.plot, &header) {
        plot::write(file, header, &rows)?;
    }
    Ok(Measured { wrong, header, rows })
}

fn measure(
    job: &Job,
    load: Option<Load>,
    control: &mut Control,
    report: &mut Report,
) -> Result<u64, Failure> {
    control.bear_silence(&job.settings)?;
    let chosen = choose(job.nic.as_deref(), control.local_ip()?, &job.settings)?;
    let theirs = match control.recv(ANSWER_WITHIN)? {
        Reply::Device { transport, devices, .. } => {
            let asked =
                devices.into_iter().find(|offer| Some(&offer.name) == job.peer_nic.as_ref());
            asked.map_or(transport, |offer| offer.transport)
        }
        reply => return Err(reply.unexpected(control)),
    };
    let settings = &settings_for(&job.settings, chosen.kind(), &theirs);
    let device = chosen.open(settings)?;
    let DeviceInfo { name, kind, .. } = device.info();
    if let (DeviceKind::Socket, Some(flag)) = (kind, job.of_queue_pairs) {
        return Err(Failure::usage(format!("{flag}: {name} goes over TCP, without queue pairs")));
    }
    if job.has_gid_index && matches!(kind, DeviceKind::Soft | DeviceKind::Socket) {
        return Err(Failure::usage(format!("--gid-index: {name} has no table of GIDs")));
    }
    if let Some(file) = &job.pcap {
        let file = file.try_clone().map_err(|error| Failure::io("the capture", &error))?;
        device.capture(file)?;
    }
    let seed = RandomState::new().hash_one(control.peer());
    let size_max = job.sizes.last().copied().unwrap_or(0);
    let setup = Setup {
        transport: kind.to_string(),
        nic: job.peer_nic.clone(),
        seed,
        op: job.op,
        handle: None,
        queue_pair: None,
        qps: job.qps,
        adaptive_routing: job.adaptive_routing,
        recvs: job.recvs,
        size_max,
        region_bytes: job.region_bytes() as u64,
        both_ways: job.both_ways,
    };
    let (link, ready) = match job.op {
        Op::Message => connect(job, setup, (&device, settings), control)?,
        _ => connect_pair(job, setup, (&device, settings), control)?,
    };
    let requests_max = job.settings.requests_max().min(ready.requests_max);
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

/// Connects both ways for messages.
fn connect(
    job: &Job,
    setup: Setup,
    (device, settings): (&Device, &Settings),
    control: &mut Control,
) -> Result<(AnyLink, Ready), Failure> {
    let listener = Listener::bind(device, settings)?;
    let handle = Some(HandleHex(listener.handle()));
    let (seed, incoming_bytes) = (setup.seed, setup.outgoing_bytes() as usize);
    let ready = ask(Setup { handle, ..setup }, control)?;
    let Some(HandleHex(peer)) = ready.handle else {
        return Err(Failure::new("the server does not say where it takes messages"));
    };
    enough(job.settings.requests_max().min(ready.requests_max))?;
    let plan = Plan {
        device,
        settings,
        listener: &listener,
        peer,
        outgoing_bytes: job.region_bytes(),
        incoming_bytes,
        recvs: job.recvs,
        seed,
        hides_failures: false,
    };
    let mut link = plan.connect(|| match control.has_line(LOOK_EVERY)? {
        false => Ok(()),
        true => {
            let reply: Reply = control.recv(ANSWER_WITHIN)?;
            Err(reply.unexpected(control))
        }
    })?;
    link.try_out()?;
    Ok((AnyLink::Messages(Box::new(link)), ready))
}

/// Connects a queue pair.
fn connect_pair(
    job: &Job,
    setup: Setup,
    (device, settings): (&Device, &Settings),
    control: &mut Control,
) -> Result<(AnyLink, Ready), Failure> {
    let memory = (job.region_bytes(), setup.seed);
    let mut link = OpLink::new((job.op, Flow::ToServer), device, settings, control, memory)?;
    let queue_pair = Some(Hex(link.info()));
    let ready = ask(Setup { queue_pair, ..setup }, control)?;
    let Some(Hex(peer)) = &ready.queue_pair else {
        return Err(Failure::new("the server does not know --op: it is of an older version"));
    };
    link.connect(peer)?;
    link.try_out(control)?;
    Ok((AnyLink::Pair(Box::new(link)), ready))
}

/// Sends the setup, and waits for the answer.
fn ask(setup: Setup, control: &mut Control) -> Result<Ready, Failure> {
    control.send(&Request::Setup(setup))?;
    match control.recv(ANSWER_WITHIN)? {
        Reply::Ready(ready) => Ok(ready),
        reply => Err(reply.unexpected(control)),
    }
}

fn header(job: &Job, load: Option<Load>, device: &Device, ready: &Ready, theirs: &str) -> Header {
    let info = device.info();
    let is_nic = info.kind != DeviceKind::Socket;
    Header {
        version: env!("CARGO_PKG_VERSION"),
        op: job.op,
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
        adaptive_routing: is_nic && job.op == Op::Message && job.settings.routes_adaptively(info),
        check: job.check,
        bidirectional: job.both_ways,
        load,
    }
}
