//! Both ends of a connection in one thread, with their memory.

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::device::NameFilter;
use invar_core::error::Error;
use invar_core::param::{AddressFamily, PortRange};
use invar_core::socket::Layout;
use invar_linux::clock::now_ns;
use invar_linux::interface::Rules;
use invar_linux::socket::{
    Connecting, Listener, RecvComm, SendComm, SocketDevice, SocketSettings, devices,
};
use invar_linux::tcp::{Congestion, SILENCE_MAX};
use invar_testkit::pattern::{pattern, pattern_byte};
use invar_testkit::wait::until;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// The content of a buffer before a message arrives.
pub(crate) const UNTOUCHED: u8 = 0xee;

pub(crate) struct Pair {
    // The comms come first, so that they are dropped before the memory that they use.
    pub(crate) send: SendComm,
    pub(crate) recv: RecvComm,
    sent: Vec<Box<[u8]>>,
    received: Vec<Box<[u8]>>,
}

/// A receive in flight, and the index of its first buffer among all buffers.
pub(crate) struct Receive {
    pub(crate) request: Request,
    first: usize,
    count: usize,
}

pub(crate) fn loopback(family: AddressFamily) -> SocketDevice {
    device_on("=lo", family)
}

/// The device on the interface `name` in the calling thread's network namespace.
pub(crate) fn device_on(name: &str, family: AddressFamily) -> SocketDevice {
    let names = NameFilter::parse(name).unwrap();
    devices(&Rules { names, family, comm_id: None }).unwrap().unwrap().remove(0)
}

pub(crate) fn settings(lanes: u16, threads: u16) -> SocketSettings {
    SocketSettings {
        layout: Layout { lanes, threads },
        timeout_ns: 20 * SECOND_NS,
        silence: SILENCE_MAX,
        resumes: true,
        congestion: Congestion::default(),
        key: None,
        truncate: false,
    }
}

/// Finishes a connection that has been started. Returns both ends.
pub(crate) fn finish_connecting(mut connecting: Connecting, listener: &mut Listener) -> Pair {
    let (mut send, mut recv) = (None, None);
    until("connecting", || {
        send = send.take().or_else(|| connecting.poll(now_ns()).unwrap());
        recv = recv.take().or_else(|| listener.poll(now_ns()).unwrap());
        (send.is_some() && recv.is_some()).then_some(())
    });
    Pair::over(send.unwrap(), recv.unwrap())
}

impl Pair {
    pub(crate) fn new(lanes: u16, threads: u16) -> Pair {
        Pair::of(AddressFamily::Inet, lanes, threads)
    }

    pub(crate) fn of(family: AddressFamily, lanes: u16, threads: u16) -> Pair {
        let (device, settings) = (loopback(family), settings(lanes, threads));
        let mut listener = Listener::bind(&device, PortRange::ANY, &settings).unwrap();
        Pair::connect(&mut listener, &device, &settings)
    }

    pub(crate) fn connect(
        listener: &mut Listener,
        device: &SocketDevice,
        settings: &SocketSettings,
    ) -> Pair {
        let handle = listener.handle();
        finish_connecting(Connecting::start(device, &handle, settings, now_ns()).unwrap(), listener)
    }

    pub(crate) fn over(send: SendComm, recv: RecvComm) -> Pair {
        Pair { send, recv, sent: Vec::new(), received: Vec::new() }
    }

    /// Starts to send a message whose bytes `seed` decides.
    pub(crate) fn isend(
        &mut self,
        seed: usize,
        len: usize,
        tag: u32,
    ) -> Result<Option<Request>, Error> {
        let bytes = pattern(seed, len).into_boxed_slice();
        let buf =
            SendBuf { addr: bytes.as_ptr().expose_provenance() as u64, len: len as u32, lkey: 0 };
        self.sent.push(bytes);
        // SAFETY: the bytes stay until both ends are gone, and nobody writes to them.
        unsafe { self.send.isend(&buf, tag) }
    }

    /// Posts a receive of buffers, each with a length and a tag.
    pub(crate) fn irecv(&mut self, bufs: &[(usize, u32)]) -> Result<Option<Receive>, Error> {
        let first = self.received.len();
        let mut post = |&(len, tag): &(usize, u32)| {
            let mut bytes = vec![UNTOUCHED; len].into_boxed_slice();
            let addr = bytes.as_mut_ptr().expose_provenance() as u64;
            self.received.push(bytes);
            RecvBuf { addr, len: len as u32, tag, rkey: 0 }
        };
        let bufs: Vec<RecvBuf> = bufs.iter().map(&mut post).collect();
        // SAFETY: the bytes stay until both ends are gone, and nobody reads them before they have
        // arrived.
        let request = unsafe { self.recv.irecv(&bufs) }?;
        Ok(request.map(|request| Receive { request, first, count: bufs.len() }))
    }

    pub(crate) fn send(&mut self, seed: usize, len: usize, tag: u32) -> Request {
        self.isend(seed, len, tag).unwrap().expect("room for one more")
    }

    pub(crate) fn recv(&mut self, bufs: &[(usize, u32)]) -> Receive {
        self.irecv(bufs).unwrap().expect("room for one more")
    }

    /// Waits for all requests. Each round tests them in the given order.
    pub(crate) fn finish(&mut self, sends: Vec<Request>, receives: &[Receive]) -> Vec<Vec<u32>> {
        let mut sends: Vec<_> = sends.into_iter().map(Some).collect();
        let mut sizes: Vec<Option<Vec<u32>>> = vec![None; receives.len()];
        until("the messages", || {
            for send in &mut sends {
                if let Some(request) = send
                    && self.send.test(request).unwrap().is_some()
                {
                    *send = None;
                }
            }
            for (sizes, receive) in sizes.iter_mut().zip(receives).filter(|(s, _)| s.is_none()) {
                *sizes = self.recv.test(&receive.request).unwrap().map(<[u32]>::to_vec);
            }
            (sends.iter().all(Option::is_none) && sizes.iter().all(Option::is_some)).then_some(())
        });
        sizes.into_iter().flatten().collect()
    }

    /// Waits for the sends, and for message `seed` in the one buffer of a receive. Checks the message.
    #[track_caller]
    pub(crate) fn arrives(
        &mut self,
        sends: Vec<Request>,
        receive: Receive,
        seed: usize,
        len: usize,
    ) {
        let receives = [receive];
        assert_eq!(self.finish(sends, &receives), [[len as u32]]);
        self.check(&receives[0], 0, seed, len);
    }

    /// Checks that a buffer of a receive holds `len` bytes of message `seed`, and no other bytes.
    pub(crate) fn check(&self, receive: &Receive, member: usize, seed: usize, len: usize) {
        assert!(member < receive.count);
        let bytes = &self.received[receive.first + member];
        let wrong = (0..len).find(|&at| bytes[at] != pattern_byte(seed, at));
        assert_eq!(wrong, None, "first wrong byte of message {seed}, {len} bytes");
        assert!(bytes[len..].iter().all(|&byte| byte == UNTOUCHED), "beyond message {seed}");
    }
}
