//! Tests the library on loopback, over the software NIC unless a test says otherwise.

mod connecting;
mod flush;
mod logs;
mod misuse;
mod packet_auth;
mod peer_gone;
mod ports;
mod stalls;
mod transfer;

use std::time::Duration;

use invar::{Device, Listener, MemoryRegion, RecvComm, Request, SendComm, Settings};
use invar_testkit::library::{self, content, first_device, settings};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::{LIMIT, until};

fn loopback() -> Device {
    Device::open_at("[::1]:0".parse().unwrap()).unwrap()
}

fn over_tcp() -> Device {
    first_device(&settings(&[("INVAR_TRANSPORT", "socket"), ("NCCL_SOCKET_IFNAME", "=lo")]))
}

/// Both ends of a connection of a device with itself.
fn connect(device: &Device, settings: &Settings) -> (SendComm, RecvComm) {
    library::connect(device, &Listener::bind(device, settings).unwrap(), settings)
}

/// A connection with memory at both ends. The sender's memory contains message 0 of `pattern`.
struct Pair {
    send: SendComm,
    recv: RecvComm,
    from: MemoryRegion,
    to: MemoryRegion,
    device: Device,
}

impl Pair {
    fn new(settings: &Settings, bytes: usize) -> Pair {
        Pair::on(loopback(), settings, bytes)
    }

    fn on(device: Device, settings: &Settings, bytes: usize) -> Pair {
        let (send, recv) = connect(&device, settings);
        let from = MemoryRegion::new(&device, bytes).unwrap();
        let to = MemoryRegion::new(&device, bytes).unwrap();
        from.write_at(0, &pattern(0, bytes)).unwrap();
        Pair { send, recv, from, to, device }
    }

    /// Sends the first `len` bytes once the receiver has posted a buffer.
    fn isend(&mut self, len: usize, tag: u32) -> Request {
        until("a slot", || self.send.isend(&self.from, 0..len, tag).unwrap())
    }
}
