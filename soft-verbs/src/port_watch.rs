//! The port of an open device: an asynchronous event tells when it goes down, when it is active again, and when
//! the addresses of its interface change.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use invar_core::nic::{Nic, PortState};
use invar_linux::interface::{Interface, InterfaceAddress};
use invar_linux::own_thread::OwnThread;
use invar_linux::poller::Poller;
use invar_linux::soft::SoftNic;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::events::{EventQueue, Raised};
use crate::signals::without_signals;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of `linux/rtnetlink.h`.
const CHANGES: u32 = 0x1 | 0x10 | 0x100;
/// `IBV_EVENT_PORT_ACTIVE`, `IBV_EVENT_PORT_ERR` and `IBV_EVENT_GID_CHANGE`.
const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
const GID_CHANGE: u32 = 18;
/// The number of a device's only port.
pub(crate) const PORT: usize = 1;

/// A thread that tells the events of a port, until the value is dropped.
pub(crate) struct PortWatch {
    shared: Arc<Shared>,
    thread: OwnThread,
}

struct Shared {
    poller: Poller,
    is_over: AtomicBool,
}

impl PortWatch {
    /// Watches the port of `nic` at `ip`, and puts its events into `events`.
    ///
    /// # Errors
    /// Fails if the process has no descriptor or thread left, or may not ask the kernel about interfaces.
    pub(crate) fn start(
        nic: SoftNic,
        ip: IpAddr,
        events: Arc<EventQueue<Raised>>,
    ) -> io::Result<PortWatch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol stands for 0, which is `NETLINK_ROUTE`.
        let changes = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&changes, &SocketAddrNetlink::new(0, CHANGES))?;
        let shared = Arc::new(Shared { poller: Poller::new()?, is_over: AtomicBool::new(false) });
        let mut was_active = is_active(&nic).unwrap_or_default();
        let index = Interface::holding(ip)?.ok_or(Errno::ADDRNOTAVAIL)?.index;
        let mut known = addresses(index)?;
        let run = {
            let shared = Arc::clone(&shared);
            move || {
                while shared.wait(&changes) {
                    let tell = |event| events.push(Raised { event, element: PORT });
                    // A process without descriptors cannot see the port, which is no fault of the port.
                    let is_active = is_active(&nic).unwrap_or(was_active);
                    if is_active != was_active {
                        tell(if is_active { PORT_ACTIVE } else { PORT_ERR });
                    }
                    was_active = is_active;
                    if let Ok(now) = addresses(index)
                        && now != known
                    {
                        tell(GID_CHANGE);
                        known = now;
                    }
                }
            }
        };
        let thread = without_signals(|| OwnThread::start("invar-port", run))?;
        Ok(PortWatch { shared, thread })
    }
}

impl Drop for PortWatch {
    fn drop(&mut self) {
        // A child of `fork` shares the poller with its parent, and has no thread to end.
        if self.thread.is_here() {
            self.shared.is_over.store(true, Ordering::Relaxed);
            self.shared.poller.call();
        }
    }
}

impl Shared {
    /// Waits for changes of interfaces and takes them all. Returns `false` if the watch ends.
    fn wait(&self, changes: &OwnedFd) -> bool {
        if self.poller.watch(changes.as_fd(), 1).is_err() {
            return false;
        }
        self.poller.sleep(None, |_| {});
        // A change that found no room in the socket (`ENOBUFS`) is an error once, and then the socket goes on.
        let mut message = [0; 4096];
        while matches!(recv(changes, &mut message, RecvFlags::empty()), Ok(_) | Err(Errno::NOBUFS))
        {
        }
        !self.is_over.load(Ordering::Relaxed)
    }
}

fn is_active(nic: &SoftNic) -> Option<bool> {
    nic.query_port().ok().map(|port| port.state == PortState::Active)
}

/// The addresses of an interface, of which there are several under one index if it has aliases.
fn addresses(index: u32) -> io::Result<Vec<InterfaceAddress>> {
    let of_index = |interface: &Interface| interface.index == index;
    let interfaces = Interface::list()?.into_iter().filter(of_index);
    Ok(interfaces.flat_map(|interface| interface.addresses).collect())
}
