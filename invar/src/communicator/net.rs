//! Links between ranks over the network, moved by a proxy.
//!
//! A link goes one way between two ranks on one channel. At both ends it is a ring of registered
//! slots: the sending rank fills the next and publishes it, the receiving one uses and releases it.
//! What is between is the proxy's: a rank says beforehand how many slots are to come, and the
//! proxy's engine moves them, in a thread of its own or in that of a rank that waits and calls
//! `progress`.
//!
//! ```
//! use std::time::Duration;
//! use invar::net::{NetProxy, NetSettings};
//! use invar_linux::proxy::Abort;
//!
//! let device = invar::Device::open_at("127.0.0.1:0".parse()?)?;
//! let settings = NetSettings::from(invar::Settings::from_env()?);
//! // Two ranks, as a rule on two hosts.
//! let mut zero = NetProxy::start(vec![device.clone()], &settings, Abort::default())?;
//! let mut one = NetProxy::start(vec![device], &settings, Abort::default())?;
//! let (receiving, address) = one.listen(0, 0, 0)?;
//! let sending = zero.connect(1, 0, 0, &address)?;
//! let (mut send, mut recv) = (zero.sender(sending)?, one.receiver(receiving)?);
//!
//! send.start(1)?;
//! recv.start(1)?;
//! let slot = send.free(1)?.expect("eight are free");
//! // SAFETY: it is ours until it is published.
//! unsafe { slot.write(42) };
//! send.publish(1)?;
//! let (slot, len) = loop {
//!     send.progress()?;
//!     recv.progress()?;
//!     if let Some(full) = recv.full()? {
//!         break full;
//!     }
//! };
//! // SAFETY: it is ours until it is released.
//! assert_eq!((unsafe { slot.read() }, len), (42, 1));
//! recv.release();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod direct;
mod ends;
mod greeting;
mod link;
mod ring;
mod setup;
mod standing;
mod wire;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use invar_core::proxy::{CallId, ConnectionId, Direction, Init, Kind as Request, Poster};
use invar_linux::processors;
use invar_linux::proxy::{
    Abort, ChromeTrace, ClientError, DumpOnSignal, Progress, ProgressSettings, ProxyClient,
    Service, ServiceSettings, SharedOps,
};

use crate::error::Kind;
use crate::{Device, DeviceKind, Error, HANDLE_BYTES, Handle, Settings};
use direct::{DirectRecv, DirectSend};
use link::{Posting, Way};
use setup::{BOTH_WAYS, Made, Opener, Share};
use standing::Standings;
use wire::{Arrivals, Wire, Wires};

pub use ends::NetEnds;
pub use link::{NetRecv, NetSend};

/// How a proxy and its links are made.
#[derive(Clone, Debug)]
pub struct NetSettings {
    /// Of connections.
    pub connections: Settings,
    /// Bytes of a slot, of which a link has eight at each end: 128 MiB at most. Both ends must have the
    /// same.
    pub slot_bytes: usize,
    /// How long a link may take to come about where it is waited for.
    pub timeout: Duration,
    /// Whether links do without the proxy: they move in the rank's calls of each, and nowhere else.
    /// That is shorter, and over TCP they can send and receive where the data is to be, without a
    /// slot between.
    pub without_proxy: bool,
    /// Whose proxy it is: the rank in the name of its trace.
    pub rank: u32,
    /// The GPU that it serves, or the place among the ranks of this host: the number in the names of
    /// its threads.
    pub device: u32,
}

impl From<Settings> for NetSettings {
    fn from(connections: Settings) -> Self {
        NetSettings {
            connections,
            slot_bytes: 256 << 10,
            timeout: Duration::from_secs(30),
            without_proxy: false,
            rank: 0,
            device: 0,
        }
    }
}

impl NetSettings {
    fn slot_bytes(&self) -> Result<usize, Error> {
        if self.slot_bytes > ring::SLOT_BYTES_MAX {
            let (asked, max) = (self.slot_bytes, ring::SLOT_BYTES_MAX);
            let text = format!("slots of {asked} bytes for links, of {max} at most");
            return Err(Kind::Usage(text).into());
        }
        Ok(self.slot_bytes.next_multiple_of(SLOT_ALIGN).max(SLOT_ALIGN))
    }
}

/// The proxy of one rank: what sets its links up and moves their data.
pub struct NetProxy {
    // In the order in which they end: sessions, then those who serve them.
    client: ProxyClient,
    _service: Service,
    progress: Option<Progress<Error>>,
    post: Arc<Posting>,
    made: Made,
    standings: Standings,
    /// Of each device, whether a connection over it can be used both ways.
    both_ways: Vec<bool>,
    _on_signal: Option<DumpOnSignal>,
}

/// What [`NetProxy::dump`] says, for who does not have the proxy.
pub(super) struct NetDump(Weak<Posting>);

impl NetDump {
    /// Nothing once the proxy is gone.
    pub(super) fn text(&self) -> String {
        self.0.upgrade().map_or_else(String::new, |post| post.driver.dump())
    }
}

/// A link that comes about; [`NetProxy::sender`] waits for it, [`NetProxy::poll_sender`] does not.
#[must_use]
pub struct Sending(Way, CallId);

/// A link that comes about; [`NetProxy::receiver`] waits for it, [`NetProxy::poll_receiver`] does not.
#[must_use]
pub struct Receiving(Way, CallId);

/// The rank of a proxy of its own.
const LOCAL_RANK: u32 = 0;

impl NetProxy {
    /// Starts a proxy whose links go over `devices`. `abort` ends every wait of its links.
    pub fn start(
        devices: Vec<Device>,
        settings: &NetSettings,
        abort: Abort,
    ) -> Result<Self, Error> {
        let rules = &settings.connections.proxy;
        let (ops, arrivals, made) =
            (SharedOps::create(1).map_err(starting)?, Arrivals::default(), Made::default());
        let device = settings.device;
        // As the threads of NCCL's proxy, which run near the GPU.
        let cpus = processors::near(devices.iter().filter_map(|d| d.info().pci_path.as_deref()));
        let progress = ProgressSettings {
            device,
            cpus,
            append_batch: rules.append_batch,
            append_every: rules.append_every,
        };
        let both_ways =
            devices.iter().map(|device| device.info().kind == DeviceKind::Socket).collect();
        let standings = Standings::default();
        let wires = Wires::new(arrivals.clone(), standings.clone());
        let (posted, aborted) = (ops.clone(), abort.clone());
        let progress = match &rules.trace {
            None => Progress::spawn(posted, progress, aborted, wires, ()),
            Some(path) => {
                let trace = create_trace(path, settings.rank)?;
                let trace = ChromeTrace::new(BufWriter::new(trace), device);
                Progress::spawn(posted, progress, aborted, wires, trace)
            }
        };
        let progress = progress.map_err(starting)?;
        let opener = Opener {
            devices,
            settings: settings.connections.clone(),
            slot_bytes: settings.slot_bytes()?,
            without_proxy: settings.without_proxy,
            connections: progress.connections(),
            arrivals,
            made: made.clone(),
            places: HashMap::new(),
        };
        let service = Service::spawn(ServiceSettings { device, cpus }, abort.clone(), opener);
        let service = service.map_err(starting)?;
        let client = ProxyClient::connect(service.address(), abort, settings.timeout);
        let post = Arc::new(Posting {
            ops,
            poster: Mutex::new(Poster::new(LOCAL_RANK)),
            driver: progress.driver(),
            timeout: settings.timeout,
        });
        let client = client.map_err(refused)?;
        let dump = NetDump(Arc::downgrade(&post));
        let on_signal = rules
            .dump_signal
            .map(|signal| DumpOnSignal::spawn(signal, move || dump.text(), io::stderr()))
            .transpose()
            .map_err(starting)?;
        Ok(NetProxy {
            client,
            _service: service,
            progress: Some(progress),
            post,
            made,
            standings,
            both_ways,
            _on_signal: on_signal,
        })
    }

    /// Begins to listen for rank `peer` on `channel`, on the device of that index. The handle is
    /// for that rank's [`NetProxy::connect`]. Whoever has it may connect, unless the
    /// [connections](NetSettings::connections) have a [key](Settings::key).
    pub fn listen(
        &mut self,
        peer: u32,
        channel: u16,
        device: usize,
    ) -> Result<(Receiving, Handle), Error> {
        let connection = self.open(device, Direction::Recv)?;
        self.listen_for(Way { connection, peer, channel }, &[])
    }

    /// Begins to connect to rank `peer`, which listens for this rank with `handle` on `channel`.
    pub fn connect(
        &mut self,
        peer: u32,
        channel: u16,
        device: usize,
        handle: &Handle,
    ) -> Result<Sending, Error> {
        let connection = self.open(device, Direction::Send)?;
        self.connect_to(Way { connection, peer, channel }, &[], handle)
    }

    /// Whether links both ways can share a connection over the device of that index: messages one
    /// way then acknowledge those the other way.
    pub fn goes_both_ways(&self, device: usize) -> bool {
        self.both_ways.get(device) == Some(&true)
    }

    /// As [`NetProxy::listen`], with a link back over the same connection. The handle is for that
    /// rank's [`NetProxy::connect_both_ways`].
    ///
    /// # Errors
    /// A device that [does not go both ways](NetProxy::goes_both_ways), and those of `listen`.
    pub fn listen_both_ways(
        &mut self,
        peer: u32,
        channel: u16,
        device: usize,
    ) -> Result<(Receiving, Sending, Handle), Error> {
        let connection = self.open_shared(device, Direction::Recv)?;
        let (receiving, handle) = self.listen_for(Way { connection, peer, channel }, BOTH_WAYS)?;
        let (way, call) = self.back(receiving.0, device, Direction::Send)?;
        Ok((receiving, Sending(way, call), handle))
    }

    /// As [`NetProxy::connect`], with a link back over the same connection.
    ///
    /// # Errors
    /// As of [`NetProxy::listen_both_ways`].
    pub fn connect_both_ways(
        &mut self,
        peer: u32,
        channel: u16,
        device: usize,
        handle: &Handle,
    ) -> Result<(Sending, Receiving), Error> {
        let connection = self.open_shared(device, Direction::Send)?;
        let sending = self.connect_to(Way { connection, peer, channel }, BOTH_WAYS, handle)?;
        let (way, call) = self.back(sending.0, device, Direction::Recv)?;
        Ok((sending, Receiving(way, call)))
    }

    /// Waits until a link is there.
    pub fn sender(&mut self, sending: Sending) -> Result<NetSend, Error> {
        let Sending(way, call) = sending;
        self.client.wait(call, &mut []).map_err(|error| unmade(way, &error))?;
        self.made_sender(way)
    }

    /// Waits until a link is there.
    pub fn receiver(&mut self, receiving: Receiving) -> Result<NetRecv, Error> {
        let Receiving(way, call) = receiving;
        self.client.wait(call, &mut []).map_err(|error| unmade(way, &error))?;
        self.made_receiver(way)
    }

    /// The link, if it is there; once.
    pub fn poll_sender(&mut self, sending: &Sending) -> Result<Option<NetSend>, Error> {
        let Sending(way, call) = *sending;
        let done = self.client.poll(call, &mut []).map_err(|error| unmade(way, &error))?;
        done.map(|_| self.made_sender(way)).transpose()
    }

    /// The link, if it is there; once.
    pub fn poll_receiver(&mut self, receiving: &Receiving) -> Result<Option<NetRecv>, Error> {
        let Receiving(way, call) = *receiving;
        let done = self.client.poll(call, &mut []).map_err(|error| unmade(way, &error))?;
        done.map(|_| self.made_receiver(way)).transpose()
    }

    /// What is being moved, in the notation of NCCL's dump.
    pub fn dump(&self) -> String {
        self.post.driver.dump()
    }

    pub(super) fn dumper(&self) -> NetDump {
        NetDump(Arc::downgrade(&self.post))
    }

    /// Moves all that links have been told to move, and then no more. Of links without a proxy,
    /// [`NetSend::has_delivered`] tells that.
    ///
    /// The connections are there until this and the links are dropped. A peer's last message may
    /// still have to be acknowledged, so that is for when the peers have stopped too.
    pub fn stop(&mut self) -> Result<(), Error> {
        let ended = self.progress.take().map_or(Ok(()), Progress::stop);
        ended.map_err(|failure| link::failed(&failure))
    }

    fn listen_for(&mut self, way: Way, ways: &[u8]) -> Result<(Receiving, Handle), Error> {
        let mut handle = [0; HANDLE_BYTES];
        let (client, connection) = (&mut self.client, way.connection);
        let set_up = client.call_blocking(Request::Setup, connection, ways, &mut handle);
        set_up.map_err(refused)?;
        let call = client.call(Request::Connect, connection, &[], 0).map_err(refused)?;
        Ok((Receiving(way, call), Handle::from_bytes(handle)))
    }

    fn connect_to(&mut self, way: Way, ways: &[u8], handle: &Handle) -> Result<Sending, Error> {
        let (client, connection) = (&mut self.client, way.connection);
        client.call_blocking(Request::Setup, connection, ways, &mut []).map_err(refused)?;
        let call = client.call(Request::Connect, connection, handle.as_bytes(), 0);
        Ok(Sending(way, call.map_err(refused)?))
    }

    /// The way back over a connection that is used both ways.
    fn back(
        &mut self,
        first: Way,
        device: usize,
        direction: Direction,
    ) -> Result<(Way, CallId), Error> {
        let connection = self.open(device, direction)?;
        let (client, number) = (&mut self.client, first.connection.0.to_le_bytes());
        client.call_blocking(Request::Setup, connection, &number, &mut []).map_err(refused)?;
        let call = client.call(Request::Connect, connection, &[], 0);
        Ok((Way { connection, ..first }, call.map_err(refused)?))
    }

    /// A connection that is to be used both ways.
    fn open_shared(&mut self, device: usize, direction: Direction) -> Result<ConnectionId, Error> {
        if !self.goes_both_ways(device) {
            let text = format!("connections over device {device} do not go both ways");
            return Err(Kind::Usage(text).into());
        }
        self.open(device, direction)
    }

    fn open(&mut self, device: usize, direction: Direction) -> Result<ConnectionId, Error> {
        let transport = u32::try_from(device).unwrap_or(u32::MAX);
        let init = Init { transport, direction, local_rank: LOCAL_RANK };
        Ok(self.client.open(init).map_err(refused)?.0)
    }

    fn made_sender(&self, way: Way) -> Result<NetSend, Error> {
        match self.made.take(way.connection) {
            Some(Share::Ring(ring)) => Ok(NetSend::new(ring, Arc::clone(&self.post), way)),
            Some(Share::Whole(Wire::Send(wire))) => {
                let standing = self.standings.add(way, Direction::Send);
                Ok(NetSend::direct(DirectSend::new(wire, standing)))
            }
            _ => Err(missing(way)),
        }
    }

    fn made_receiver(&self, way: Way) -> Result<NetRecv, Error> {
        match self.made.take(way.connection) {
            Some(Share::Ring(ring)) => Ok(NetRecv::new(ring, Arc::clone(&self.post), way)),
            Some(Share::Whole(Wire::Recv(wire))) => {
                let standing = self.standings.add(way, Direction::Recv);
                Ok(NetRecv::direct(DirectRecv::new(wire, standing)))
            }
            _ => Err(missing(way)),
        }
    }
}

/// Slots begin on a cache line.
const SLOT_ALIGN: usize = 64;

/// A trace of its own for each rank.
fn create_trace(path: &str, rank: u32) -> Result<File, Error> {
    let rank = rank.to_string();
    let path = match path.contains("%r") {
        true => path.replace("%r", &rank),
        false => format!("{path}.{rank}"),
    };
    File::create(&path)
        .map_err(|error| Error::io(format_args!("INVAR_PROXY_TRACE: creating {path}"), error))
}

fn starting(error: io::Error) -> Error {
    Error::io("starting the proxy", error)
}

fn unmade(way: Way, error: &ClientError) -> Error {
    Kind::Rank { rank: way.peer, text: error.to_string() }.into()
}

fn missing(way: Way) -> Error {
    let text = "a link that was made is not there".to_owned();
    Kind::Rank { rank: way.peer, text }.into()
}

fn refused(error: ClientError) -> Error {
    Kind::Proxy(error.to_string()).into()
}
