//! Ranks that ask the service to set up connections.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use invar_core::proxy::{ConnectionId, ConnectionSpec, Init, Kind, Setup};
use invar_core::topology::Direction;
use invar_linux::abort::Abort;
use invar_linux::proxy::{
    ClientErrorKind, ProgressConnections, ProxyClient, RankOps, Service, ServiceSettings,
    SharedOps, WaitError,
};
use invar_testkit::wait::{LIMIT, watch};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::host::{Gate, op, progress, spec};

/// Opens a connection in the progress thread once the connection is connected.
pub(crate) struct Host {
    connections: ProgressConnections,
    specs: HashMap<ConnectionId, ConnectionSpec>,
    /// The service never finishes a request that begins with this byte.
    stuck: u8,
}

impl Host {
    pub(crate) fn new(connections: ProgressConnections) -> Self {
        Host { connections, specs: HashMap::new(), stuck: 0xff }
    }
}

impl Setup for Host {
    type Error = std::io::Error;
    type Fd = OwnedFd;

    fn open(&mut self, id: ConnectionId, init: Init) -> Result<Option<OwnedFd>, Self::Error> {
        let spec = ConnectionSpec { direction: init.direction, ..spec(init.local_rank) };
        self.specs.insert(id, spec);
        self.connections.to_fd().map(Some)
    }

    fn setup(&mut self, _: ConnectionId, q: &[u8], a: &mut [u8]) -> Result<bool, Self::Error> {
        a.fill(7);
        Ok(q.first() != Some(&self.stuck))
    }

    fn connect(&mut self, id: ConnectionId, _: &[u8], _: &mut [u8]) -> Result<bool, Self::Error> {
        self.connections.open(id, self.specs[&id]);
        Ok(true)
    }

    fn convert_fd(&mut self, _: ConnectionId, handle: u32) -> Result<OwnedFd, Self::Error> {
        let mut file = File::from(memfd_create("handle", MemfdFlags::CLOEXEC)?);
        write!(file, "memory {handle}")?;
        Ok(file.into())
    }

    fn close(&mut self, id: ConnectionId) {
        self.connections.close(id);
    }

    fn left(&mut self, local_rank: u32) {
        self.connections.reclaim(local_rank);
    }
}

pub(crate) fn connect(
    service: &str,
    rank: u32,
    abort: &Abort,
) -> (ProxyClient, ConnectionId, RankOps) {
    let mut client = ProxyClient::connect(service, abort.clone(), LIMIT).unwrap();
    let init = Init { transport: 0, direction: Direction::Send, local_rank: rank };
    let (id, fd) = client.open(init).unwrap();
    let mut response = [0; 3];
    client.call_blocking(Kind::Setup, id, b"abc", &mut response).unwrap();
    assert_eq!(response, [7; 3]);
    client.call_blocking(Kind::Connect, id, b"", &mut []).unwrap();
    let shared = SharedOps::from_fd(fd.unwrap()).unwrap();
    (client, id, RankOps::new(shared, rank, abort.clone(), LIMIT))
}

#[test]
fn ranks_connect_post_and_leave_and_the_service_ends_when_told_to() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(3).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let host = Host::new(progress.connections());
    let service = Service::spawn(ServiceSettings::default(), abort.clone(), host).unwrap();
    let mut clients: Vec<_> = (0..3).map(|rank| connect(service.address(), rank, &abort)).collect();
    for (_, id, ops) in &mut clients {
        ops.append(&op(1, id.0, 5)).unwrap();
        ops.post().unwrap();
    }
    watch("slices", || gate.completed() == 15);

    let (client, id, _) = &mut clients[1];
    let fd = client.call_blocking(Kind::ConvertFd, *id, &42u32.to_le_bytes(), &mut []).unwrap();
    let (mut file, mut text) = (File::from(fd.unwrap()), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "memory 42");

    let (client, ..) = clients.remove(0);
    client.stop().unwrap();
    drop(clients);
    service.join().unwrap();
    progress.stop().unwrap();
}

#[test]
fn responses_come_while_another_request_is_stuck_and_abort_ends_that_one() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let host = Host::new(progress.connections());
    let service = Service::spawn(ServiceSettings::default(), Abort::default(), host).unwrap();
    let (mut client, ..) = connect(service.address(), 0, &abort);
    let init = Init { transport: 0, direction: Direction::Send, local_rank: 0 };
    let (stuck, _) = client.open(init).unwrap();
    let call = client.call(Kind::Setup, stuck, &[0xff], 0).unwrap();
    let (other, _) = client.open(init).unwrap();
    client.call_blocking(Kind::Setup, other, b"", &mut []).unwrap();
    assert!(client.poll(call, &mut []).unwrap().is_none());

    let (stuck, _) = client.open(init).unwrap();
    let (begin, begun) = std::sync::mpsc::channel();
    let rank = std::thread::spawn(move || {
        begin.send(()).unwrap();
        client.call_blocking(Kind::Setup, stuck, &[0xff], &mut []).unwrap_err()
    });
    begun.recv().unwrap();
    abort.set();
    let error = rank.join().unwrap();
    assert!(matches!(error.error, ClientErrorKind::Wait(WaitError::Aborted)), "{error}");
    drop(service);
}

#[test]
fn a_peer_that_sends_no_requests_is_sent_away_and_others_go_on() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let host = Host::new(progress.connections());
    let service = Service::spawn(ServiceSettings::default(), abort.clone(), host).unwrap();
    let address = SocketAddr::from_abstract_name(service.address()).unwrap();
    for garbage in [&[0xff; 4096][..], b"GET / HTTP/1.1\r\n\r\n..........", &[]] {
        let mut stranger = UnixStream::connect_addr(&address).unwrap();
        // The service may hang up before the stranger has sent everything.
        let _ = stranger.write_all(garbage);
        let _ = stranger.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    let (_client, id, mut ops) = connect(service.address(), 0, &abort);
    ops.append(&op(1, id.0, 1)).unwrap();
    ops.post().unwrap();
    progress.stop().unwrap();
    assert_eq!(gate.completed(), 1);
}

#[test]
fn a_proxy_that_is_not_there_is_an_error_that_names_it() {
    let error = ProxyClient::connect("invar-no-such-proxy", Abort::default(), LIMIT).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("proxy invar-no-such-proxy: "), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn memory_that_is_no_pool_is_refused() {
    let memory = |len: u64, seals: SealFlags| {
        let file = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        File::from(file.try_clone().unwrap()).set_len(len).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        SharedOps::from_fd(file).map(drop).unwrap_err().to_string()
    };
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert!(memory(1 << 20, SealFlags::empty()).ends_with("its size is not sealed"));
    assert!(memory(7, sealed).ends_with("too small"));
    assert!(memory(1 << 20, sealed).ends_with("its header or its size is another"));
    for nranks in [0, 65] {
        assert!(SharedOps::create(nranks).is_err(), "{nranks}");
    }
}
