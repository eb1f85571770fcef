//! The port of an open device: an asynchronous event tells when it goes down, and when it is active again.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{io, mem, process};

use invar_core::nic::{Nic, PortState};
use invar_linux::soft::SoftNic;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, write};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::events::{EventQueue, Raised};
use crate::signals::without_signals;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of `linux/rtnetlink.h`.
const CHANGES: u32 = 0x1 | 0x10 | 0x100;
/// `IBV_EVENT_PORT_ACTIVE` and `IBV_EVENT_PORT_ERR`.
const PORT_ACTIVE: u32 = 9;
const PORT_ERR: u32 = 10;
/// The number of a device's only port.
const PORT: usize = 1;

/// A thread that tells the events of a port, until the value is dropped.
pub(crate) struct PortWatch {
    stop: Arc<OwnedFd>,
    /// The process of the thread. A child of `fork` has none.
    process: u32,
    thread: Option<JoinHandle<()>>,
}

impl PortWatch {
    /// Watches the port of `nic`, and puts its events into `events`.
    ///
    /// # Errors
    /// Fails if the process has no descriptor or thread left, or may not ask the kernel about interfaces.
    pub(crate) fn start(nic: SoftNic, events: Arc<EventQueue<Raised>>) -> io::Result<PortWatch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol stands for 0, which is `NETLINK_ROUTE`.
        let changes = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&changes, &SocketAddrNetlink::new(0, CHANGES))?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let mut was_active = is_active(&nic);
        let run = {
            let stop = Arc::clone(&stop);
            move || {
                while wait(&changes, &stop) {
                    let is_active = is_active(&nic);
                    if is_active != was_active {
                        let event = if is_active { PORT_ACTIVE } else { PORT_ERR };
                        events.push(Raised { event, element: PORT });
                    }
                    was_active = is_active;
                }
            }
        };
        let thread =
            without_signals(|| thread::Builder::new().name("invar-port".to_owned()).spawn(run))?;
        Ok(PortWatch { stop, process: process::id(), thread: Some(thread) })
    }
}

impl Drop for PortWatch {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.process != process::id() {
            // The thread is in the parent.
            mem::forget(thread);
            return;
        }
        let _ = write(&self.stop, &1u64.to_ne_bytes());
        thread.map(JoinHandle::join);
    }
}

fn is_active(nic: &SoftNic) -> bool {
    nic.query_port().is_ok_and(|port| port.state == PortState::Active)
}

/// Waits for changes of interfaces and takes them all. Returns `false` if the watch ends.
fn wait(changes: &OwnedFd, stop: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(changes, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    while let Err(error) = poll(&mut polled, None) {
        if error != Errno::INTR {
            return false;
        }
    }
    if !polled[1].revents().is_empty() {
        return false;
    }
    // A change that found no room in the socket (`ENOBUFS`) is an error once, and then the socket goes on.
    let mut message = [0; 4096];
    while matches!(recv(changes, &mut message, RecvFlags::empty()), Ok(_) | Err(Errno::NOBUFS)) {}
    true
}
