//! Connecting: a listener makes a handle, and whoever has the handle connects.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use invar_core::conn::{self, Handle};
use invar_linux::clock::now_ns;
use invar_linux::interest::Interest;
use invar_linux::interface::has_scope;
use invar_linux::socket::SocketDevice;

use crate::device::interfaces;
use crate::error::Kind;
use crate::raw::{AnyRecv, AnySend, Attempt, Keeper, Listen};
use crate::settings::EndSettings;
use crate::wait::{SetupWait, poll_within, time_left};
use crate::{Device, Error, GpuSupport, RecvComm, SendComm, Settings};

/// A listener for senders, on TCP. Its connections receive on one device.
pub struct Listener {
    listen: Box<dyn Listen>,
    device: Device,
    settings: Settings,
}

impl Listener {
    /// Listens on TCP for peers that will send to `device`.
    ///
    /// The listener uses the interface that `NCCL_SOCKET_IFNAME` names, or else the device's own, and
    /// a port of [`Settings::listen_ports`].
    ///
    /// # Errors
    /// The settings do not allow the device, no such interface exists, or no port is free.
    pub fn bind(device: &Device, settings: &Settings) -> Result<Self, Error> {
        settings.check(device.info())?;
        let addr = oob_addr(device, settings)?;
        let ports = settings.tcp_ports();
        let listen = device.adapter().listen(addr, ports, conn_settings(device, settings))?;
        Ok(Listener { listen, device: device.clone(), settings: settings.clone() })
    }

    /// The handle by which senders connect: 128 bytes, which the program brings to each sender.
    ///
    /// Any number of senders may use one handle. Whoever has the handle may connect, so let no others
    /// read it, or give both ends a [`Settings::key`].
    pub fn handle(&self) -> Handle {
        self.listen.handle()
    }

    /// Returns the next peer that has proved that it has the handle, or `None` at once.
    ///
    /// A program may accept several peers side by side. A peer proves itself while it connects: if one
    /// thread has both ends, it must poll both.
    ///
    /// # Errors
    /// This host cannot accept, for example because it has no free descriptor. A stranger is no error.
    pub fn accept(&self) -> Result<Option<Accepting>, Error> {
        let Some(attempt) = self.listen.accept()? else { return Ok(None) };
        let settings = self.settings.of_end();
        let (device, keeper) = (self.device.clone(), Keeper::of_namespace()?);
        let wait = SetupWait::default();
        Ok(Some(Accepting { attempt, device, settings, keeper, wait }))
    }

    /// Waits until a peer has called and is connected, at most `timeout`.
    ///
    /// If a peer gives up on the way, the listener waits for the next one.
    ///
    /// # Errors
    /// No peer was connected in time. The error is that of the last peer that gave up, if one did.
    pub fn accept_within(&self, timeout: Duration) -> Result<RecvComm, Error> {
        let (mut accepting, last_error) = (None, Cell::new(None));
        let gave_up = |error| last_error.set(Some(error));
        let poll = |interest: &mut Interest| self.poll_peer(&mut accepting, interest, gave_up);
        let late =
            || last_error.take().unwrap_or_else(|| self.no_peer(timeout, self.turned_away()));
        poll_within(poll, |waited| time_left(timeout, waited).ok_or_else(late))
    }

    /// Waits like [`Listener::accept_within`], on any executor and without a deadline.
    ///
    /// If the future is dropped, a peer that is just connecting is turned away, and others may come.
    ///
    /// # Errors
    /// This host cannot accept. A peer that gives up on the way is no error.
    pub async fn accept_async(&self) -> Result<RecvComm, Error> {
        let (mut accepting, mut wait) = (None, SetupWait::default());
        poll_fn(|context| {
            wait.poll(context, |interest| self.poll_peer(&mut accepting, interest, drop))
        })
        .await
    }

    /// Accepts a peer if `accepting` has none, and continues to connect it. Arms `interest` if no peer is connected.
    /// `gave_up` gets the error of a peer that gives up.
    fn poll_peer(
        &self,
        accepting: &mut Option<Accepting>,
        interest: &mut Interest,
        gave_up: impl FnOnce(Error),
    ) -> Result<Option<RecvComm>, Error> {
        if accepting.is_none() {
            *accepting = self.accept()?;
        }
        let Some(peer) = accepting else {
            self.listen.arm(interest);
            return Ok(None);
        };
        let end = poll_or_arm(&mut peer.attempt, interest).unwrap_or_else(|error| {
            *accepting = None;
            gave_up(error);
            self.listen.arm(interest);
            None
        });
        Ok(end.zip(accepting.as_ref()).map(|(end, peer)| peer.comm(end)))
    }

    /// Returns the error that no peer connected in time. `turned_away` is a text about the callers that failed.
    pub(crate) fn no_peer(&self, within: Duration, turned_away: String) -> Error {
        let device = self.device.info().name.clone();
        let addr = match listens_at(&self.handle()) {
            Ok(addr) => addr,
            Err(error) => return error,
        };
        let (ms, port) = (within.as_millis(), addr.port());
        let text = format!(
            "no peer connected to {device} at {addr} within {ms} ms{turned_away}; does the sender have this \
             listener's handle, and does a firewall let TCP port {port} pass?"
        );
        Kind::TimedOut { text, device, peer: None }.into()
    }

    /// Returns `; ` and a text about the callers that were turned away, or nothing if there were none.
    pub(crate) fn turned_away(&self) -> String {
        let turned_away = self.listen.turned_away();
        if turned_away.count > 0 { format!("; {turned_away}") } else { String::new() }
    }
}

/// A peer that has called and is not connected yet. Dropping this value turns the peer away.
///
/// The value is a future too, on any executor.
#[must_use = "it goes on only when it is polled"]
pub struct Accepting {
    attempt: Attempt<AnyRecv>,
    device: Device,
    settings: EndSettings,
    keeper: Keeper,
    wait: SetupWait,
}

impl Accepting {
    /// Continues the handshake without waiting. Returns `None` until the peer is connected.
    ///
    /// # Errors
    /// The peer is gone, is incompatible, or took longer than [`Settings::connect_timeout`]. Every
    /// later call returns that error too.
    pub fn poll(&mut self) -> Result<Option<RecvComm>, Error> {
        Ok(self.poll_raw()?.map(|end| self.comm(end)))
    }

    /// Continues like [`Accepting::poll`], and returns the raw end of the connection. The caller of a
    /// raw end keeps the memory of its requests.
    ///
    /// # Errors
    /// See [`Accepting::poll`].
    pub fn poll_raw(&mut self) -> Result<Option<AnyRecv>, Error> {
        self.attempt.poll(now_ns())
    }

    /// Waits until the peer is connected, at most [`Settings::connect_timeout`].
    ///
    /// # Errors
    /// See [`Accepting::poll`].
    pub fn wait(mut self) -> Result<RecvComm, Error> {
        // The attempt has a deadline of its own.
        let ask = |interest: &mut Interest| poll_or_arm(&mut self.attempt, interest);
        let end = poll_within(ask, |_| Ok(Duration::MAX))?;
        Ok(self.comm(end))
    }

    fn comm(&self, end: AnyRecv) -> RecvComm {
        RecvComm::new(end.kept(&self.keeper), self.device.clone(), &self.settings)
    }
}

/// A connection to a listener that is not complete yet. Dropping this value gives the connection up.
///
/// The value is a future too, on any executor.
#[must_use = "it goes on only when it is polled"]
pub struct Connecting {
    attempt: Attempt<AnySend>,
    device: Device,
    settings: EndSettings,
    keeper: Keeper,
    wait: SetupWait,
}

impl SendComm {
    /// Begins to connect `device` to the listener that made `handle`.
    ///
    /// # Errors
    /// The settings do not allow the device, the handle is of another wire, or TCP refuses at once.
    pub fn connect(
        device: &Device,
        handle: &Handle,
        settings: &Settings,
    ) -> Result<Connecting, Error> {
        Connecting::start(device, handle, settings)
    }
}

impl Connecting {
    fn start(device: &Device, handle: &Handle, settings: &Settings) -> Result<Self, Error> {
        settings.check(device.info())?;
        let reached = |listener| reached(device, settings, listener);
        let attempt =
            device.adapter().connect(handle, &reached, conn_settings(device, settings))?;
        let (device, settings) = (device.clone(), settings.of_end());
        let (keeper, wait) = (Keeper::of_namespace()?, SetupWait::default());
        Ok(Connecting { attempt, device, settings, keeper, wait })
    }

    /// Continues the handshake without waiting. Returns `None` until the connection is complete.
    ///
    /// # Errors
    /// The listener cannot be reached, is incompatible, or took longer than
    /// [`Settings::connect_timeout`]. Every later call returns that error too.
    pub fn poll(&mut self) -> Result<Option<SendComm>, Error> {
        Ok(self.poll_raw()?.map(|end| self.comm(end)))
    }

    /// Continues like [`Connecting::poll`], and returns the raw end of the connection. The caller of a
    /// raw end keeps the memory of its requests.
    ///
    /// # Errors
    /// See [`Connecting::poll`].
    pub fn poll_raw(&mut self) -> Result<Option<AnySend>, Error> {
        self.attempt.poll(now_ns())
    }

    /// Waits until the connection is complete, at most [`Settings::connect_timeout`].
    ///
    /// # Errors
    /// See [`Connecting::poll`].
    pub fn wait(mut self) -> Result<SendComm, Error> {
        // The attempt has a deadline of its own.
        let ask = |interest: &mut Interest| poll_or_arm(&mut self.attempt, interest);
        let end = poll_within(ask, |_| Ok(Duration::MAX))?;
        Ok(self.comm(end))
    }

    fn comm(&self, end: AnySend) -> SendComm {
        SendComm::new(end.kept(&self.keeper), self.device.clone(), &self.settings)
    }
}

/// Continues an attempt, or arms what ends the sleep of a waiter.
fn poll_or_arm<E>(attempt: &mut Attempt<E>, interest: &mut Interest) -> Result<Option<E>, Error> {
    let end = attempt.poll(now_ns())?;
    if end.is_none() {
        attempt.arm(interest);
    }
    Ok(end)
}

impl Future for Accepting {
    type Output = Result<RecvComm, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let accepting = self.get_mut();
        let Accepting { attempt, wait, .. } = accepting;
        let end = ready!(wait.poll(context, |interest| poll_or_arm(attempt, interest)))?;
        Poll::Ready(Ok(accepting.comm(end)))
    }
}

impl Future for Connecting {
    type Output = Result<SendComm, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let connecting = self.get_mut();
        let Connecting { attempt, wait, .. } = connecting;
        let end = ready!(wait.poll(context, |interest| poll_or_arm(attempt, interest)))?;
        Poll::Ready(Ok(connecting.comm(end)))
    }
}

/// The address at which the listener of a handle listens, on either wire.
pub(crate) fn listens_at(handle: &Handle) -> Result<SocketAddr, Error> {
    Ok(handle.addr(conn::Wire::Invar).or_else(|_| handle.addr(conn::Wire::Nccl214))?)
}

/// The settings for a connection of this device.
fn conn_settings(device: &Device, settings: &Settings) -> conn::CommSettings {
    // The host may have no GPU at all; NCCL does not check that either (`net_ib.cc ncclIbAccept`).
    let reaches_gpus = || device.gpu_support(settings) != GpuSupport::default();
    settings.for_device(device.info(), reaches_gpus)
}

/// The address at which a listener of the device listens on TCP.
pub(crate) fn oob_addr(device: &Device, settings: &Settings) -> Result<SocketAddr, Error> {
    match settings.listens_on(device.info()) {
        true => device.socket_addr(),
        false => Ok(first_interface(settings)?.address),
    }
}

/// The address of a peer's listener as the device reaches it. A link-local address is on the link of the interface
/// on which a listener of the device listens.
fn reached(
    device: &Device,
    settings: &Settings,
    listener: SocketAddr,
) -> Result<SocketAddr, Error> {
    match settings.listens_on(device.info()) {
        true => device.on_its_link(listener),
        false => over_first_interface(settings, listener),
    }
}

/// The address of a peer as this host reaches it over the first interface.
pub(crate) fn over_first_interface(
    settings: &Settings,
    peer: SocketAddr,
) -> Result<SocketAddr, Error> {
    match has_scope(peer) {
        true => Ok(first_interface(settings)?.interface.on_its_link(peer)),
        false => Ok(peer),
    }
}

/// The first interface that NCCL's rules allow on this host, with its address.
pub(crate) fn first_interface(settings: &Settings) -> Result<SocketDevice, Error> {
    let interfaces = interfaces()?;
    let allowed = settings.allowed_interfaces(&interfaces)?;
    let first = allowed.first().expect("one or more");
    Ok(SocketDevice { interface: first.interface.clone(), address: first.addr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_listener_is_called_over_the_interface_on_which_listeners_listen() {
        let mut interfaces = interfaces().unwrap().into_iter();
        let lo = interfaces.find(|interface| interface.loopback).unwrap();
        let settings = |ifname: &str| {
            let set = [("INVAR_TRANSPORT", "soft"), ("NCCL_SOCKET_IFNAME", ifname)];
            let value = |name: &str| set.iter().find(|(other, _)| *other == name);
            Settings::from_lookup(|name| value(name).map(|(_, value)| (*value).to_owned())).unwrap()
        };
        let device = Device::open_at_for([127, 0, 0, 1].into(), &settings("")).unwrap();
        for settings in [settings(""), settings(&lo.name)] {
            let reached = |listener: &str| {
                reached(&device, &settings, listener.parse().unwrap()).unwrap().to_string()
            };
            assert_eq!(reached("[fe80::9%4711]:5000"), format!("[fe80::9%{}]:5000", lo.index));
            assert_eq!(reached("[fd00::9]:5000"), "[fd00::9]:5000");
        }
    }
}
