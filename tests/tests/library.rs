//! Tests the library on loopback, over the software NIC unless a test says otherwise.

mod library {
    mod connecting;
    mod flush;
    mod late;
    mod misuse;
    mod packet_auth;
    mod peer_gone;
    mod ports;
    mod transfer;
}

use std::time::{Duration, Instant};

use invar::{Device, Listener, MemoryRegion, RecvComm, Request, SendComm, Settings};

/// The time limit, which is longer than any working operation takes.
const TIMEOUT: Duration = Duration::from_secs(20);

fn loopback() -> Device {
    Device::open_at("[::1]:0".parse().unwrap()).unwrap()
}

fn over_tcp() -> Device {
    let set = [("INVAR_TRANSPORT", "socket"), ("NCCL_SOCKET_IFNAME", "=lo")];
    let value = |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| *value);
    let settings = Settings::from_lookup(|name| value(name).map(str::to_owned)).unwrap();
    Device::open_for(&Device::survey(&settings).unwrap().devices[0], &settings).unwrap()
}

/// Both ends of a connection of a device with itself.
fn connect(device: &Device, settings: &Settings) -> (SendComm, RecvComm) {
    let listener = Listener::bind(device, settings).unwrap();
    let mut connecting = SendComm::connect(device, &listener.handle(), settings).unwrap();
    let (mut accepting, mut send, mut recv) = (None, None, None);
    while send.is_none() || recv.is_none() {
        if send.is_none() {
            send = connecting.poll().unwrap();
        }
        match &mut accepting {
            None => accepting = listener.accept().unwrap(),
            Some(peer) if recv.is_none() => recv = peer.poll().unwrap(),
            Some(_) => {}
        }
    }
    (send.unwrap(), recv.unwrap())
}

/// A connection with memory at both ends. The sender's memory contains `pattern`.
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
        from.write_at(0, &pattern(bytes)).unwrap();
        Pair { send, recv, from, to, device }
    }

    /// Sends the first `len` bytes once the receiver has posted a buffer.
    fn isend(&mut self, len: usize, tag: u32) -> Request {
        until("a slot", || self.send.isend(&self.from, 0..len, tag).unwrap())
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn content(region: &MemoryRegion, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(0, &mut bytes).unwrap();
    bytes
}

fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < TIMEOUT, "{what} took for ever");
    }
}
