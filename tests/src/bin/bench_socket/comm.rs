//! The link over the socket transport.

use std::path::Path;
use std::sync::OnceLock;

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::conn::Handle;
use invar_core::device::NameFilter;
use invar_core::nic::Memory;
use invar_core::param::{AddressFamily, PortRange};
use invar_core::socket::Layout;
use invar_linux::clock::now_ns;
use invar_linux::interface::Rules;
use invar_linux::memory::HostMemory;
use invar_linux::socket::{
    Connecting, Listener, RecvComm, SendComm, SocketDevice, SocketSettings, devices,
};
use invar_linux::tcp::{Congestion, SILENCE_MAX};

use crate::{Link, Meeting, Shape, until};

static LAYOUT: OnceLock<Layout> = OnceLock::new();

pub(crate) struct Listening {
    device: SocketDevice,
    settings: SocketSettings,
    listener: Listener,
}

struct Comms {
    // The comms come first, so that they are dropped before the memory that they use.
    send: SendComm,
    recv: RecvComm,
    shape: Shape,
    memory: [HostMemory; 2],
}

/// Parses the number of threads and the number of sockets for each thread, such as `4x4`.
pub(crate) fn choose_layout(text: &str) {
    let (threads, sockets) = text.split_once('x').expect("THREADSxSOCKETS");
    let number = |text: &str| Some(text.parse().expect("a number"));
    LAYOUT.get_or_init(|| device().layout(number(threads), number(sockets), Path::new("/sys")));
}

fn device() -> SocketDevice {
    let names = NameFilter::parse("=lo").expect("a list");
    let rules = Rules { names, family: AddressFamily::Inet, comm_id: None };
    devices(&rules).expect("interfaces").expect("loopback").remove(0)
}

impl Meeting for Listening {
    fn listen() -> (Self, String) {
        let device = device();
        let layout = LAYOUT.get().copied().unwrap_or_default();
        let settings = SocketSettings {
            layout,
            timeout_ns: 10_000_000_000,
            silence: SILENCE_MAX,
            resumes: true,
            congestion: Congestion::default(),
            key: None,
            truncate: false,
        };
        let listener = Listener::bind(&device, PortRange::ANY, &settings).expect("a listener");
        let handle = listener.handle();
        let here = handle.hex().to_string();
        (Listening { device, settings, listener }, here)
    }

    fn join(mut self, peer: &str, _: bool, shape: Shape) -> Box<dyn Link> {
        let handle = Handle::from_hex(peer).expect("a handle");
        let mut connecting = Connecting::start(&self.device, &handle, &self.settings, now_ns())
            .expect("a way to the other process");
        let (mut send, mut recv) = (None, None);
        let (send, recv) = until(|| {
            if send.is_none() {
                send = connecting.poll(now_ns()).expect("a connection");
            }
            if recv.is_none() {
                recv = self.listener.poll(now_ns()).expect("a connection");
            }
            if send.is_some() && recv.is_some() { send.take().zip(recv.take()) } else { None }
        });
        let memory = [(); 2].map(|()| {
            let memory = HostMemory::alloc(shape.size * shape.window).expect("memory");
            // Fill the memory, so that its pages exist before the clock starts.
            memory.write_at(0, &vec![0x5a; memory.len()]).expect("in range");
            memory
        });
        Box::new(Comms { send, recv, shape, memory })
    }
}

impl Comms {
    fn isend(&mut self, i: usize) -> Option<Request> {
        let Shape { size, window } = self.shape;
        let addr = self.memory[0].addr() + ((i % window) * size) as u64;
        // SAFETY: the memory lives longer than the comm, and nobody writes to it.
        unsafe { self.send.isend(&SendBuf { addr, len: size as u32, lkey: 0 }, 0) }.expect("a send")
    }

    fn irecv(&mut self, i: usize) -> Option<Request> {
        let Shape { size, window } = self.shape;
        let addr = self.memory[1].addr() + ((i % window) * size) as u64;
        let buf = RecvBuf { addr, len: size as u32, tag: 0, rkey: 0 };
        // SAFETY: the memory lives longer than the comm, and nobody else accesses it.
        unsafe { self.recv.irecv(&[buf]) }.expect("a receive")
    }

    fn is_received(&mut self, request: &Request) -> Option<()> {
        let sizes = self.recv.test(request).expect("a receive")?;
        assert_eq!(sizes, [self.shape.size as u32]);
        Some(())
    }
}

impl Link for Comms {
    fn send(&mut self, count: usize) {
        windowed(count, self, Self::isend, |comms, request| {
            comms.send.test(request).expect("a send").map(drop)
        });
    }

    fn recv(&mut self, count: usize) {
        windowed(count, self, Self::irecv, Self::is_received);
    }

    fn exchange(&mut self, echo: bool) {
        let received = until(|| self.irecv(0));
        if echo {
            until(|| self.is_received(&received));
        }
        let sent = until(|| self.isend(0));
        until(|| self.send.test(&sent).expect("a send"));
        if !echo {
            until(|| self.is_received(&received));
        }
    }
}

/// Keeps a window of requests in flight as NCCL does: it starts requests while there is room, and tests
/// the oldest one.
fn windowed(
    count: usize,
    comms: &mut Comms,
    mut start: impl FnMut(&mut Comms, usize) -> Option<Request>,
    mut test: impl FnMut(&mut Comms, &Request) -> Option<()>,
) {
    let mut under_way = std::collections::VecDeque::new();
    let mut started = 0;
    let window = comms.shape.window;
    while started < count || !under_way.is_empty() {
        until(|| {
            let mut moved = None;
            while started < count && under_way.len() < window {
                let Some(request) = start(comms, started) else { break };
                under_way.push_back(request);
                started += 1;
            }
            if let Some(oldest) = under_way.front()
                && test(comms, oldest).is_some()
            {
                under_way.pop_front();
                moved = Some(());
            }
            moved
        });
    }
}
