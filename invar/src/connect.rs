//! Connecting: a listener makes a handle, whoever has it connects.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use invar_core::conn::Handle;
use invar_core::device::NameFilter;
use invar_linux::clock::now_ns;
use invar_linux::interface::{self, Found, Interface, Rules};

use crate::error::Kind;
use crate::raw::{AnyRecv, AnySend, Attempt, Listen};
use crate::{Device, Error, RecvComm, SendComm, Settings, staged};

/// How often who waits for a connection looks.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// Waits for senders.
pub struct Listener {
    listen: Box<dyn Listen>,
    device: Device,
    settings: Settings,
}

impl Listener {
    /// Listens on TCP for peers that will send to `device`: on the interface that
    /// `NCCL_SOCKET_IFNAME` names, otherwise on the device's own.
    pub fn bind(device: &Device, settings: &Settings) -> Result<Self, Error> {
        settings.check(device.info())?;
        let addr = oob_addr(device, settings)?;
        let ports = settings.tcp_ports();
        let listen = device.adapter().listen(addr, ports, settings.for_device(device))?;
        Ok(Listener { listen, device: device.clone(), settings: settings.clone() })
    }

    /// What a sender needs to connect: 128 bytes, to be copied to it by other means. Any number
    /// of senders may use it. Whoever has it may connect, so let no others read it, or give both ends
    /// a [`Settings::key`].
    pub fn handle(&self) -> Handle {
        self.listen.handle()
    }

    /// The next peer that has proved that it has the handle, if there is one. Several may be accepted
    /// side by side. A peer proves itself while it is connecting: if that is in the same thread, poll
    /// both.
    pub fn accept(&self) -> Result<Option<Accepting>, Error> {
        let Some(attempt) = self.listen.accept()? else { return Ok(None) };
        let staging = self.settings.gpu.staging;
        Ok(Some(Accepting { attempt, device: self.device.clone(), staging }))
    }

    /// Waits for a peer, and until it is connected; `timeout` is for both. A peer that gives up on the
    /// way is no failure: the next one may come.
    pub fn accept_within(&self, timeout: Duration) -> Result<RecvComm, Error> {
        let start = Instant::now();
        let (mut accepting, mut last_error) = (None::<Accepting>, None);
        loop {
            if accepting.is_none() {
                accepting = self.accept()?;
            }
            match accepting.as_mut().map_or(Ok(None), Accepting::poll) {
                Ok(Some(comm)) => return Ok(comm),
                Ok(None) => {}
                Err(error) => (accepting, last_error) = (None, Some(error)),
            }
            if start.elapsed() >= timeout {
                return Err(last_error.unwrap_or_else(|| self.no_peer(timeout)));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn no_peer(&self, within: Duration) -> Error {
        let turned_away = self.listen.turned_away();
        let text = if turned_away.count > 0 { format!("; {turned_away}") } else { String::new() };
        Kind::NoPeer { within, turned_away: text }.into()
    }
}

/// A peer that has called and is not connected yet. Dropping it turns the peer away.
#[must_use = "it goes on only when it is polled"]
pub struct Accepting {
    attempt: Attempt<AnyRecv>,
    device: Device,
    staging: staged::Size,
}

impl Accepting {
    /// Goes on without waiting; `None`: call again.
    ///
    /// # Errors
    /// A peer that is gone, is none of ours, or took longer than
    /// [`Settings::connect_timeout`]. Every later call gives the same.
    pub fn poll(&mut self) -> Result<Option<RecvComm>, Error> {
        let end = self.poll_raw()?;
        Ok(end.map(|end| RecvComm::new(end.boxed(), self.device.clone(), self.staging)))
    }

    /// As [`Accepting::poll`], for who keeps the memory of the connection's requests.
    pub fn poll_raw(&mut self) -> Result<Option<AnyRecv>, Error> {
        self.attempt.poll(now_ns())
    }

    /// Goes on until it is connected.
    pub fn wait(mut self) -> Result<RecvComm, Error> {
        until_there(|| self.poll())
    }
}

/// A connection to a listener that is not there yet. Dropping it gives it up.
#[must_use = "it goes on only when it is polled"]
pub struct Connecting {
    attempt: Attempt<AnySend>,
    device: Device,
    staging: staged::Size,
}

impl Connecting {
    pub(crate) fn start(
        device: &Device,
        handle: &Handle,
        settings: &Settings,
    ) -> Result<Self, Error> {
        settings.check(device.info())?;
        let attempt = device.adapter().connect(handle, settings.for_device(device))?;
        Ok(Connecting { attempt, device: device.clone(), staging: settings.gpu.staging })
    }

    /// Goes on without waiting; `None`: call again.
    ///
    /// # Errors
    /// A peer that is not reached, is none of ours, or took longer than
    /// [`Settings::connect_timeout`]. Every later call gives the same.
    pub fn poll(&mut self) -> Result<Option<SendComm>, Error> {
        let end = self.poll_raw()?;
        Ok(end.map(|end| SendComm::new(end.boxed(), self.device.clone(), self.staging)))
    }

    /// As [`Connecting::poll`], for who keeps the memory of the connection's requests.
    pub fn poll_raw(&mut self) -> Result<Option<AnySend>, Error> {
        self.attempt.poll(now_ns())
    }

    /// Goes on until it is connected.
    pub fn wait(mut self) -> Result<SendComm, Error> {
        until_there(|| self.poll())
    }
}

/// Asks until there is an answer. It comes: connecting has a deadline of its own.
fn until_there<T>(mut poll: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
    loop {
        if let Some(comm) = poll()? {
            return Ok(comm);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Where to listen on TCP.
fn oob_addr(device: &Device, settings: &Settings) -> Result<SocketAddr, Error> {
    if settings.socket_ifname.is_empty() {
        return device.socket_addr();
    }
    let interfaces =
        Interface::list().map_err(|error| Error::io("listing the network interfaces", error))?;
    let found = interfaces_for(settings, &interfaces)?;
    let first = found.first().map(|found| found.addr);
    first.map_or_else(|| device.socket_addr(), Ok)
}

/// Those that `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY` allow, at least one, the best first.
pub(crate) fn interfaces_for<'a>(
    settings: &Settings,
    interfaces: &'a [Interface],
) -> Result<Vec<Found<'a>>, Error> {
    let names = NameFilter::parse(&settings.socket_ifname)
        .map_err(|error| Kind::Setting(format!("NCCL_SOCKET_IFNAME: {error}")))?;
    let rules = Rules { names, family: settings.socket_family, comm_id: None };
    Ok(interface::find(interfaces, &rules).map_err(Kind::NoInterface)?)
}
