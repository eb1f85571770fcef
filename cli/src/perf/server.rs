//! The server: it takes part in the passes that clients ask for.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, mem, thread};

use invar::{Device, Listener, Settings};
use invar_core::auth::{Secret, Service, Session};
use invar_core::conn::Stream;
use invar_linux::clock::now_ns;
use invar_linux::tcp::{AuthListener, OobStream, Proof};

use super::about::About;
use super::control::Control;
use super::link::Plan;
use super::message::{HandleHex, Hex, Kind, OFFERS_MAX, Offer, Ready, Reply, Request, Setup};
use super::op::OpLink;
use super::pattern::Flow;
use super::{choose, may_reach, place, settings_for};
use crate::failure::Failure;
use crate::logger::tell;
use crate::output::print;
use crate::parent::die_with;

/// Time after which a client that asks for nothing is given up.
const CLIENT_WITHIN: Duration = Duration::from_secs(60);
/// Time for which this end polls after a pass. The software NIC holds an acknowledge for less than this,
/// and sends it only while it is polled.
const POLL_FOR: Duration = Duration::from_millis(1);
/// Time between two polls of connections that are not complete.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time that a client waits for the one before it, which ends soon if it is done.
const TURN_WITHIN: Duration = Duration::from_secs(3);
/// The most callers at a time that send their setup or wait for their turn.
const CALLERS_MAX: usize = 64;
/// Time between two looks at callers whose time is up, and after a call that could not be taken.
const PAUSE: Duration = Duration::from_millis(100);
/// A server that goes on after failures tells of them at most this often.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Bytes of memory that a client may have by default.
pub(super) const CLIENT_MEMORY: u64 = 1 << 30;
/// Time within which the data connection to another host than the client's must come about. The client hears of a
/// failure only then, so that the time does not show what is at that place.
const ELSEWHERE_WITHIN: Duration = Duration::from_secs(8);
/// The text before the address in the line that names the server's address.
pub(super) const LISTENING: &str = "invar perf: listening at ";

/// The clients that a server takes, and how it serves them.
pub(super) struct Serving {
    /// The only device; `None` for any.
    pub(super) nic: Option<String>,
    /// Whether the server serves one client after another.
    pub(super) keep: bool,
    /// The process with which the server ends, and which reports for both.
    pub(super) child_of: Option<u32>,
    /// Bytes of memory that a client may have.
    pub(super) memory_max: u64,
}

/// Prints where a server listens, and the command of the other end.
pub(super) fn announce(addr: SocketAddr, elsewhere: &str) -> Result<(), Failure> {
    let line = format!("{LISTENING}{addr}; elsewhere: {elsewhere} HOST:{}", addr.port());
    print(io::stdout(), "where to connect", &line)
}

/// Serves clients. Calls `announce` with the address once the server listens.
pub(super) fn run(
    args: &Serving,
    addr: SocketAddr,
    settings: &Settings,
    announce: impl FnOnce(SocketAddr) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(parent) = args.child_of {
        die_with(parent)?;
    }
    if let Some(name) = &args.nic {
        super::named(name, settings)?;
    }
    // This opens RDMA devices for a moment. A server that has said where it listens holds none.
    let offers = offers(args.nic.as_deref(), settings)?;
    let listener = bind(addr, settings)?;
    let addr = listener.local_addr().map_err(|error| Failure::io("the listener", &error))?;
    announce(addr)?;
    let (to_serve, heard) = mpsc::sync_channel(0);
    let known = Mutex::default();
    let transports =
        Transports { nic: args.nic.clone(), settings: settings.clone(), known, offers };
    let callers = Callers::new(args, transports);
    thread::spawn(move || take_calls(listener, Arc::new(callers), &to_serve));
    // Strangers may call, so that a flood of failures must not make a flood of lines.
    let (mut told, mut untold) = (None::<Instant>, 0);
    for mut client in heard {
        let served = client.serve(args, settings);
        match served.map_err(|failure| turn_away(client.control, &failure)) {
            Err(_) if args.keep && told.is_some_and(|told| told.elapsed() < TELL_EVERY) => {
                untold += 1
            }
            Err(failure) if args.keep => {
                match mem::take(&mut untold) {
                    0 => tell(failure),
                    more => tell(format_args!("{failure}, and {more} failures more before")),
                }
                told = Some(Instant::now());
            }
            Ok(()) if args.keep => {}
            // The parent process reports this failure.
            Err(_) if args.child_of.is_some() => return Ok(()),
            served => return served,
        }
    }
    Ok(())
}

/// The transport of the device for callers at an address of this host. The server finds it once for each
/// address, since strangers call too.
struct Transports {
    nic: Option<String>,
    settings: Settings,
    known: Mutex<HashMap<IpAddr, String>>,
    /// The devices that clients may ask for.
    offers: Vec<Offer>,
}

/// The devices of this host that clients may ask for.
fn offers(nic: Option<&str>, settings: &Settings) -> Result<Vec<Offer>, Failure> {
    let devices = Device::survey(settings)?.devices.into_iter();
    let devices = devices.filter(|info| settings.takes(info.kind) && may_reach(info));
    let devices = devices.filter(|info| nic.is_none_or(|nic| nic == info.name));
    Ok(devices.filter_map(|info| Offer::of(&info)).take(OFFERS_MAX).collect())
}

impl Transports {
    fn at(&self, local: IpAddr) -> Result<String, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(transport) = known.get(&local) {
            return Ok(transport.clone());
        }
        let transport = choose(self.nic.as_deref(), local, &self.settings)?.kind().to_string();
        known.insert(local, transport.clone());
        Ok(transport)
    }
}

/// A caller that has sent its setup.
struct Client {
    control: Control,
    setup: Setup,
}

impl Client {
    /// Serves the client until its goodbye.
    fn serve(&mut self, args: &Serving, settings: &Settings) -> Result<(), Failure> {
        let Client { control, setup } = self;
        let settings = adjusted(settings, setup);
        let nic = match (&setup.nic, &args.nic) {
            (Some(asked), Some(only)) if asked != only => {
                return Err(Failure::new(format_args!("{asked}: this server has only {only}")));
            }
            (asked, only) => asked.as_deref().or(only.as_deref()),
        };
        control.bear_silence(&settings)?;
        let chosen = choose(nic, control.local_ip()?, &settings)?;
        let settings = settings_for(&settings, chosen.kind(), &setup.transport);
        let device = chosen.open(&settings)?;
        let ready = Ready {
            handle: None,
            queue_pair: None,
            nic: device.info().name.clone(),
            address: device.info().address,
            mtu: settings.mtu_bytes(device.info()),
            requests_max: settings.requests_max(),
        };
        let peer = match (&setup.handle, &setup.queue_pair) {
            (Some(HandleHex(handle)), _) => *handle,
            (None, Some(Hex(peer))) => {
                return serve_op(control, setup, peer, (&device, &settings), ready);
            }
            (None, None) => return Err(Failure::new("a setup without a connection")),
        };
        let place = peer.addr(settings.wire()).map_err(Failure::new)?;
        place::check(place.ip(), control)?;
        let caller = control.peer();
        let listener = Listener::bind(&device, &settings)?;
        let handle = Some(HandleHex(listener.handle()));
        control.send(&Reply::Ready(Ready { handle, ..ready }))?;
        // If `place` is not the client's own address, the client must not learn what answers there.
        let is_elsewhere = place.ip().to_canonical() != caller.ip().to_canonical();
        let plan = Plan {
            device: &device,
            settings: &settings,
            listener: &listener,
            peer,
            outgoing_bytes: setup.outgoing_bytes() as usize,
            incoming_bytes: setup.region_bytes as usize,
            recvs: setup.recvs,
            seed: setup.seed,
            hides_failures: is_elsewhere,
        };
        let (mut start, within) = (None, settings.connect_within().min(ELSEWHERE_WITHIN));
        let link = plan.connect(|| {
            // The plan has its memory now, which may have taken long.
            let start = *start.get_or_insert_with(Instant::now);
            // The client may be connected first, and may already ask for the first pass.
            if control.has_line(LOOK_EVERY)? {
                thread::sleep(LOOK_EVERY);
            }
            match is_elsewhere && start.elapsed() >= within {
                true => Err(Failure::new(format_args!(
                    "no data connection to {place} within {within:?}"
                ))),
                false => Ok(()),
            }
        });
        let mut link = link.map_err(|failure| {
            if !is_elsewhere {
                return failure;
            }
            tell(failure);
            Failure::new(format_args!(
                "no data connection to {place} came about; the server's output says why"
            ))
        })?;
        link.try_out()?;
        loop {
            // The client hears of a failed last message from this end alone, which then closes.
            let start = Instant::now();
            while !link.has_ended_last()? && start.elapsed() < CLIENT_WITHIN {
                if start.elapsed() < POLL_FOR {
                    thread::yield_now();
                    continue;
                }
                if control.has_line(LOOK_EVERY).map_err(|failure| link.uncontrolled(failure))? {
                    break;
                }
            }
            match control.recv(CLIENT_WITHIN).map_err(|failure| link.uncontrolled(failure))? {
                Request::Pass(pass) => {
                    setup.check_pass(&pass).map_err(Failure::new)?;
                    let (wrong, cpu_percent) = match pass.kind {
                        Kind::Check | Kind::Stream => {
                            let (wrong, used) = link.receive(&pass)?;
                            (wrong, Some(used.percent()))
                        }
                        Kind::Exchange => {
                            let (wrong, used) = link.exchange(&pass, Flow::ToClient)?;
                            (wrong, Some(used.percent()))
                        }
                        Kind::PingPong => (link.pong(&pass)?, None),
                    };
                    control.send(&Reply::Done { wrong, cpu_percent })?;
                }
                Request::Bye => return Ok(()),
                Request::Setup(_) | Request::Going | Request::End => {
                    return Err(Failure::new(OUT_OF_TURN));
                }
            }
        }
    }
}

/// The failure for a request that does not follow the one before it.
const OUT_OF_TURN: &str = "the client asks for something out of turn";

/// Serves a client that measures a queue pair, until its goodbye.
fn serve_op(
    control: &mut Control,
    setup: &Setup,
    peer: &[u8],
    (device, settings): (&Device, &Settings),
    ready: Ready,
) -> Result<(), Failure> {
    if let Some(ip) = place::of_queue_pair(peer) {
        place::check(ip, control)?;
    }
    let memory = (setup.region_bytes as usize, setup.seed);
    let mut link = OpLink::new((setup.op, Flow::ToClient), device, settings, control, memory)?;
    link.connect(peer)?;
    let queue_pair = Some(Hex(link.info()));
    control.send(&Reply::Ready(Ready { queue_pair, ..ready }))?;
    link.try_out(control)?;
    link.linger(POLL_FOR)?;
    loop {
        match control.recv(CLIENT_WITHIN)? {
            Request::Pass(pass) => {
                setup.check_pass(&pass).map_err(Failure::new)?;
                let (wrong, used) = link.serve(&pass, control)?;
                control.send(&Reply::Done { wrong, cpu_percent: Some(used.percent()) })?;
                link.linger(POLL_FOR)?;
            }
            Request::Bye => return Ok(()),
            Request::Setup(_) | Request::Going | Request::End => {
                return Err(Failure::new(OUT_OF_TURN));
            }
        }
    }
}

/// Hears each caller in a thread of its own, so that a slow caller keeps no client waiting.
fn take_calls(mut listener: AuthListener, callers: Arc<Callers>, to_serve: &SyncSender<Client>) {
    let mut turned_away = 0;
    loop {
        let taken = take_call(&mut listener, &callers, to_serve);
        let now = listener.turned_away();
        callers.turned_away(now.count - turned_away, now);
        turned_away = now.count;
        if let Err(error) = taken {
            callers.turned_away(1, format_args!("accepting a client: {error}"));
            thread::sleep(PAUSE);
        }
    }
}

/// Waits a moment for a caller, and starts to hear it.
fn take_call(
    listener: &mut AuthListener,
    callers: &Arc<Callers>,
    to_serve: &SyncSender<Client>,
) -> io::Result<()> {
    listener.wait(PAUSE)?;
    while let Some((stream, session)) = listener.poll(now_ns())? {
        let Some(peer) = stream.peer_addr() else { continue };
        let (taken_in, to_serve) = (callers.take_in(&stream, peer)?, to_serve.clone());
        let hear = move || hear_out((stream, session), peer, &taken_in, &to_serve);
        if let Err(error) = thread::Builder::new().spawn(hear) {
            callers.was_heard_out(peer);
            return Err(error);
        }
    }
    Ok(())
}

/// The callers that have proved to be `invar perf`, which anybody can. The thread that hears a caller
/// holds a reference to it.
struct Callers {
    /// The callers that have not sent their setup yet, the oldest first.
    silent: Mutex<VecDeque<(SocketAddr, OobStream)>>,
    /// How many callers were turned away.
    turned_away: AtomicU64,
    /// Whether this end reports callers that were turned away.
    tells: bool,
    transports: Transports,
    /// Bytes of memory that a client may have.
    memory_max: u64,
}

impl Callers {
    fn new(args: &Serving, transports: Transports) -> Self {
        Callers {
            silent: Mutex::default(),
            turned_away: AtomicU64::new(0),
            tells: args.child_of.is_none(),
            transports,
            memory_max: args.memory_max,
        }
    }

    /// Adds a caller. If there are too many, the oldest caller of the address that has the most gives way.
    fn take_in(self: &Arc<Self>, stream: &OobStream, peer: SocketAddr) -> io::Result<Arc<Self>> {
        let mut silent = self.silent();
        if Arc::strong_count(self) > CALLERS_MAX {
            let count = |ip: IpAddr| silent.iter().filter(|(peer, _)| peer.ip() == ip).count();
            // The last of several equal ones is chosen, so the oldest comes last.
            let oldest = (0..silent.len()).rev().max_by_key(|at| count(silent[*at].0.ip()));
            let Some((oldest, stream)) = oldest.and_then(|at| silent.remove(at)) else {
                return Err(io::Error::other(format!("{peer} is one of too many")));
            };
            stream.shutdown();
            let text = format_args!(
                "{oldest}, which has sent no request, is dropped to make room for {peer}"
            );
            self.turned_away(1, text);
        }
        silent.push_back((peer, stream.try_clone()?));
        Ok(Arc::clone(self))
    }

    /// Removes a caller that has been heard. Returns false if the caller had to give way.
    fn was_heard_out(&self, peer: SocketAddr) -> bool {
        let mut silent = self.silent();
        let at = silent.iter().position(|(silent, _)| *silent == peer);
        at.is_some_and(|at| silent.remove(at).is_some())
    }

    /// Reports why callers were turned away, less and less often, so that a flood of callers makes no
    /// flood of lines.
    fn turned_away(&self, count: u64, why: impl fmt::Display) {
        let before = self.turned_away.fetch_add(count, Ordering::Relaxed);
        let is_told = before.checked_ilog2() != (before + count).checked_ilog2();
        if is_told && self.tells {
            tell(why);
        }
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<(SocketAddr, OobStream)>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands a client over to be served. Turns away a caller that is no client, or that would have to wait
/// for another. A caller that sends no setup never ends the server.
fn hear_out(
    (stream, session): (OobStream, Session),
    peer: SocketAddr,
    callers: &Callers,
    to_serve: &SyncSender<Client>,
) {
    let mut control = Control::new(stream, peer, session);
    let setup = setup(&mut control, callers);
    if !callers.was_heard_out(peer) {
        return;
    }
    let mut client = match setup {
        Ok(Some(setup)) => Client { control, setup },
        Ok(None) => return,
        Err(failure) => return callers.turned_away(1, turn_away(control, &failure)),
    };
    let start = Instant::now();
    loop {
        client = match to_serve.try_send(client) {
            // If nobody serves any more, the process ends.
            Ok(()) | Err(TrySendError::Disconnected(_)) => return,
            Err(TrySendError::Full(client)) => client,
        };
        if start.elapsed() >= TURN_WITHIN {
            let busy = Failure::new("busy with another client");
            return callers.turned_away(1, turn_away(client.control, &busy));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Tells a client which device it meets, and hears its setup. Returns `None` if that is all that the client
/// wants to know.
fn setup(
    control: &mut Control,
    Callers { transports, memory_max, .. }: &Callers,
) -> Result<Option<Setup>, Failure> {
    let transport = transports.at(control.local_ip()?)?;
    let about = Some(About::here(&transports.settings));
    control.send(&Reply::Device { transport, devices: transports.offers.clone(), about })?;
    match control.recv(CLIENT_WITHIN)? {
        Request::Setup(setup) => {
            setup.check(*memory_max).map_err(Failure::new)?;
            Ok(Some(setup))
        }
        Request::Bye => Ok(None),
        Request::Pass(_) | Request::Going | Request::End => {
            Err(Failure::new("the client did not say what it wants"))
        }
    }
}

/// Tells a client why it is not served, or no longer served. Returns this end's own line about that.
fn turn_away(mut control: Control, failure: &Failure) -> Failure {
    // A client that is gone does not hear the reason.
    let (peer, text) = (control.peer().to_string(), failure.to_string());
    let has_heard = failure.has_heard();
    let _ = control.send(&Reply::Failed { text: text.clone(), has_heard });
    Failure::new(if text.starts_with(&peer) { text } else { format!("{peer}: {text}") })
}

/// Listens at `addr`. If `addr` is `[::]` and the host has IPv4 only, listens at all IPv4 addresses.
fn bind(addr: SocketAddr, settings: &Settings) -> Result<AuthListener, Failure> {
    let is_any_v6 = addr.is_ipv6() && addr.ip().is_unspecified();
    let proof = Proof::Secret(Secret::PUBLIC, Service::Perf);
    let listen = |addr| AuthListener::bind(addr, settings.tcp_ports(), proof);
    let listener = match listen(addr) {
        Err(error) if is_any_v6 && error.kind() != ErrorKind::AddrInUse => {
            listen((Ipv4Addr::UNSPECIFIED, addr.port()).into())
        }
        listener => listener,
    };
    listener.map_err(|error| Failure::io(format_args!("listening at {addr}"), &error))
}

/// Puts the client's setup over this end's environment.
fn adjusted(settings: &Settings, setup: &Setup) -> Settings {
    let settings = settings.clone().qps(setup.qps);
    match setup.adaptive_routing {
        Some(on) => settings.adaptive_routing(on),
        None => settings,
    }
}
