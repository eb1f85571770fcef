//! The proxy's process: service and progress thread, and the producer that it starts.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use invar::raw::Keeper;
use invar::{Accepting, Connecting, Device, DeviceKind, Handle, Listener, SendComm, Settings};
use invar_core::proxy::{ConnectionId, ConnectionSpec, Init, Setup, Sharing};
use invar_linux::abort::Abort;
use invar_linux::processors;
use invar_linux::proxy::{
    ChromeTrace, DumpOnSignal, Progress, ProgressConnections, ProgressSettings, Service,
    ServiceSettings, SharedOps,
};

use crate::ring::SharedRing;
use crate::transport::{End, ProxyWire, Wires};
use crate::{NRANKS, SERVICE, Work, direct};

/// Serves the ranks of `producer`, to its end. Then moves as much without a proxy.
pub(crate) fn serve(
    settings: Settings,
    work: Work,
    producer: &mut Command,
) -> Result<(), Box<dyn Error>> {
    let device = open(&settings)?;
    println!("the proxy moves over {}", device.info().name);
    let cpus = processors::near(device.info().pci_path.as_deref());
    let (abort, ops) = (Abort::default(), SharedOps::create(NRANKS as usize)?);
    let (made, arrivals) = channel();
    let wires = Wires { made: arrivals, wires: HashMap::new() };
    let progress = ProgressSettings {
        device: 0,
        cpus,
        append_batch: settings.append_batch(),
        append_every: settings.append_every(),
    };
    let on_signal = settings.dump_signal();
    let progress = match settings.trace_file() {
        None => Progress::spawn(ops, progress, abort.clone(), wires, ())?,
        Some(path) => {
            let trace = ChromeTrace::new(BufWriter::new(File::create(path)?), 0);
            Progress::spawn(ops, progress, abort.clone(), wires, trace)?
        }
    };
    let connections = progress.connections();
    let (ours, ours_too) = (device.clone(), settings.clone());
    let host = Host { device, settings, connections, made, setups: HashMap::new() };
    let service = Service::spawn(ServiceSettings { device: 0, cpus }, abort, host)?;

    let mut child = producer.env(SERVICE, service.address()).spawn()?;
    let driver = Arc::new(progress.driver());
    // The thread of the signal may live longer than the trace.
    let shown = Arc::downgrade(&driver);
    let dump = move || shown.upgrade().map_or_else(String::new, |driver| driver.dump());
    let on_signal = on_signal.map(|signal| DumpOnSignal::spawn(signal, dump, io::stderr()));
    let _on_signal = on_signal.transpose()?;
    // Who waits for operations may move them: both do, in turns.
    let status = loop {
        driver.round()?;
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::yield_now();
    };
    if !status.success() {
        return Err(format!("the producer ended: {status}").into());
    }
    // All its ranks have told the service to stop.
    service.join()?;
    progress.stop()?;
    direct::run(&ours, &ours_too, work)
}

/// The software NIC on the loopback interface, unless `INVAR_TRANSPORT` says otherwise.
fn open(settings: &Settings) -> Result<Device, invar::Error> {
    if settings.takes(DeviceKind::Soft) {
        return Device::open_at_for(Ipv4Addr::LOCALHOST.into(), settings);
    }
    let survey = Device::survey(settings)?;
    match survey.devices.first() {
        Some(info) => Device::open_for(info, settings),
        None => Device::open_at_for(Ipv4Addr::LOCALHOST.into(), settings),
    }
}

/// How ranks have connections set up.
struct Host {
    device: Device,
    settings: Settings,
    connections: ProgressConnections,
    made: Sender<(ConnectionId, ProxyWire)>,
    setups: HashMap<ConnectionId, ConnectionSetup>,
}

/// How far a connection is.
struct ConnectionSetup {
    init: Init,
    stage: KernelStage,
    /// Its ring, for the rank.
    ring: Option<OwnedFd>,
}

enum KernelStage {
    New,
    Listening(Box<Listener>, Option<Accepting>),
    Connecting(Connecting),
    Connected,
}

impl Host {
    fn setup(&mut self, id: ConnectionId) -> Result<&mut ConnectionSetup, io::Error> {
        self.setups
            .get_mut(&id)
            .ok_or_else(|| io::Error::other("a connection that was never opened"))
    }
}

impl Setup for Host {
    type Error = Box<dyn Error>;
    type Fd = OwnedFd;

    /// Gives the pool of operations to the rank.
    fn open(&mut self, id: ConnectionId, init: Init) -> Result<Option<OwnedFd>, Self::Error> {
        self.setups.insert(id, ConnectionSetup { init, stage: KernelStage::New, ring: None });
        Ok(Some(self.connections.to_fd()?))
    }

    /// To receive: the response is where, for the peer.
    fn setup(
        &mut self,
        id: ConnectionId,
        _: &[u8],
        response: &mut [u8],
    ) -> Result<bool, Self::Error> {
        let (device, settings) = (self.device.clone(), self.settings.clone());
        if !response.is_empty() {
            let listener = Listener::bind(&device, &settings)?;
            let handle = listener.handle();
            let room: &mut [u8; invar::HANDLE_BYTES] = response.try_into()?;
            *room = *handle.as_bytes();
            self.setup(id)?.stage = KernelStage::Listening(Box::new(listener), None);
        }
        Ok(true)
    }

    /// To send: the request is where to.
    fn connect(
        &mut self,
        id: ConnectionId,
        request: &[u8],
        _: &mut [u8],
    ) -> Result<bool, Self::Error> {
        let (device, settings) = (self.device.clone(), self.settings.clone());
        let setup = self.setup(id)?;
        if matches!(setup.stage, KernelStage::New) {
            let handle = Handle::from_bytes(request.try_into()?)?;
            setup.stage = KernelStage::Connecting(SendComm::connect(&device, &handle, &settings)?);
        }
        let keeper = Keeper::of_namespace()?;
        let end = match &mut setup.stage {
            KernelStage::Listening(listener, accepting) => {
                if accepting.is_none() {
                    *accepting = listener.accept()?;
                }
                let end = accepting.as_mut().map_or(Ok(None), Accepting::poll_raw)?;
                end.map(|end| End::Recv(end.kept(&keeper)))
            }
            KernelStage::Connecting(connecting) => {
                connecting.poll_raw()?.map(|end| End::Send(end.kept(&keeper)))
            }
            KernelStage::New | KernelStage::Connected => None,
        };
        let Some(end) = end else { return Ok(false) };
        let ring = SharedRing::create()?;
        (setup.stage, setup.ring) = (KernelStage::Connected, Some(ring.to_fd()?));
        let Init { direction, local_rank, .. } = setup.init;
        self.made.send((id, ProxyWire::new(end, device, ring)?))?;
        let sharing = Sharing::Own;
        self.connections
            .open(id, ConnectionSpec { direction, local_rank, sharing, recv_group: None });
        Ok(true)
    }

    /// The connection's ring.
    fn convert_fd(&mut self, id: ConnectionId, _: u32) -> Result<OwnedFd, Self::Error> {
        Ok(self.setup(id)?.ring.take().ok_or("its ring was given, or it has none yet")?)
    }

    fn close(&mut self, id: ConnectionId) {
        self.setups.remove(&id);
        self.connections.close(id);
    }

    fn left(&mut self, local_rank: u32) {
        self.connections.reclaim(local_rank);
    }
}
