//! Tests messages from and to GPU memory over the software NIC, which cannot access that memory.

use std::ops::Range;
use std::time::Duration;

use invar::cuda::{Driver, Gpu, GpuMemory};
use invar::{
    Device, Error, ErrorKind, Flush, Listener, MemoryRegion, RecvComm, SendComm, Settings,
};
use invar_core::staging::Trailer;
use invar_testkit::fake_cuda::{FakeCuda, calls};
use invar_testkit::library::{connect, content, settings};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::until;

const TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const CHUNK: usize = 4096;

/// Both ends of a connection of a device with itself. The device is on loopback with small chunks, or
/// another one.
pub(crate) struct Rig {
    pub(crate) send: SendComm,
    pub(crate) recv: RecvComm,
    pub(crate) device: Device,
    pub(crate) settings: Settings,
    pub(crate) driver: Driver,
}

pub(crate) fn fake() -> FakeCuda {
    FakeCuda::new().set("INVAR_STAGING_CHUNK_BYTES", "4096").set("INVAR_STAGING_SLOTS", "3")
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::on(Device::open_at("[::1]:0".parse().unwrap()).unwrap())
    }

    pub(crate) fn on(device: Device) -> Self {
        Self::between(device, Settings::from_env().unwrap())
    }

    /// Connects a device with itself. The receiver has settings of its own.
    fn between(device: Device, of_receiver: Settings) -> Self {
        let settings = Settings::from_env().unwrap();
        let listener = Listener::bind(&device, &of_receiver).unwrap();
        let (send, recv) = connect(&device, &listener, &settings);
        Rig { send, recv, device, settings, driver: Driver::open().unwrap() }
    }

    /// Starts a flush and waits for it. Returns whether a flush was needed.
    pub(crate) fn flush(&mut self, bufs: &[(&MemoryRegion, Range<usize>)]) -> bool {
        match self.recv.iflush(bufs).unwrap() {
            Flush::Started(request) => {
                until("a flush", || self.recv.test(&request).unwrap().is_some());
                true
            }
            Flush::NotNeeded => false,
            Flush::Busy => panic!("one flush"),
        }
    }

    pub(crate) fn gpu_region(&self, gpu: u32, len: usize) -> MemoryRegion {
        let gpu = Gpu::open(self.driver, gpu).unwrap();
        let memory = GpuMemory::alloc(&gpu, len).unwrap();
        MemoryRegion::on_gpu(&self.device, &memory, &self.settings).unwrap()
    }

    pub(crate) fn host_region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::new(&self.device, len).unwrap()
    }

    /// Sends all of one region into another, which may be longer, and checks the received bytes.
    pub(crate) fn check(&mut self, from: &MemoryRegion, to: &MemoryRegion) {
        from.write_at(0, &pattern(0, from.len())).unwrap();
        to.write_at(0, &vec![0x55; to.len()]).unwrap();
        let receive = self.recv.irecv(&[(to, 0..to.len(), 7)]).unwrap().expect("room");
        let mut send = None;
        let (mut sent, mut received) = (None, None);
        until("transfer", || {
            if send.is_none() {
                send = self.send.isend(from, 0..from.len(), 7).unwrap();
            }
            if let (Some(request), None) = (&send, sent) {
                sent = self.send.test(request).unwrap();
            }
            if received.is_none() {
                received = self.recv.test(&receive).unwrap();
            }
            sent.is_some() && received.is_some()
        });
        assert_eq!(sent, Some(from.len()));
        assert_eq!(received.expect("received").sizes(), [from.len()]);
        let content = content(to, to.len());
        let (came, rest) = content.split_at(from.len());
        assert_eq!(came, pattern(0, from.len()));
        assert!(rest.iter().all(|byte| *byte == 0x55), "nothing beyond what was sent");
    }
}

#[test]
fn a_region_of_a_gpu_says_how_it_is_reached() {
    fake().run(|| {
        let rig = Rig::new();
        let region = rig.gpu_region(0, 100);
        let path = region.gpu_path().unwrap().to_string();
        let text = "staging: the NIC is software and reaches host memory only; no flush: ";
        assert!(path.starts_with(text), "{path}");
        assert!(rig.host_region(100).gpu_path().is_none());
        let error = region.write_at(99, &[0, 0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
    });
}

#[test]
fn messages_go_between_gpus_and_between_gpu_and_host() {
    fake().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0").run(|| {
        let mut rig = Rig::new();
        for len in [1, 100, CHUNK - 1, CHUNK] {
            let (host, other_host) = (rig.host_region(len), rig.host_region(len));
            let (gpu, other_gpu) = (rig.gpu_region(0, len), rig.gpu_region(1, len));
            rig.check(&host, &other_gpu);
            rig.check(&gpu, &other_host);
            rig.check(&gpu, &other_gpu);
            rig.check(&host, &other_host);
        }
    });
}

#[test]
fn messages_between_gpus_go_over_tcp_too() {
    fake().set("NCCL_SOCKET_IFNAME", "=lo").set("INVAR_TRANSPORT", "socket").run(|| {
        let mut rig = Rig::on(Device::open("lo").unwrap());
        for len in [1, CHUNK, 1_000_003] {
            let (host, other_host) = (rig.host_region(len), rig.host_region(len));
            let (gpu, other_gpu) = (rig.gpu_region(0, len), rig.gpu_region(0, len));
            rig.check(&gpu, &other_gpu);
            if len <= CHUNK {
                rig.check(&host, &other_gpu);
                rig.check(&gpu, &other_host);
            }
        }
    });
}

#[test]
fn long_messages_pass_through_a_few_pieces_of_host_memory() {
    fake().run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 1_000_003), rig.gpu_region(0, 1_000_003));
        rig.check(&from, &to);
        rig.check(&to, &from);
        // Each end pins three slots once.
        assert_eq!((calls("cuMemHostAlloc"), calls("cuMemAlloc_v2")), (2, 2));
        assert_eq!(calls("cuMemcpyDtoHAsync_v2"), 2 * 1_000_003_usize.div_ceil(CHUNK));
    });
}

/// Messages may be shorter than their receives by any number of chunks.
fn messages_may_be_shorter_than_their_receives(mut rig: Rig) {
    for len in [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 9 * CHUNK + 5] {
        for room in [len, len + 1, len + CHUNK, len + 2 * CHUNK - 1, 40 * CHUNK] {
            let (from, to) = (rig.gpu_region(0, len), rig.gpu_region(0, room));
            rig.check(&from, &to);
            rig.check(&from, &to);
        }
    }
}

#[test]
fn a_message_may_be_shorter_than_its_receive_by_any_number_of_pieces() {
    fake().run(|| messages_may_be_shorter_than_their_receives(Rig::new()));
}

#[test]
fn over_tcp_it_may_be_shorter_too() {
    fake().set("NCCL_SOCKET_IFNAME", "=lo").set("INVAR_TRANSPORT", "socket").run(|| {
        messages_may_be_shorter_than_their_receives(Rig::on(Device::open("lo").unwrap()));
    });
}

#[test]
fn a_message_without_bytes_meets_a_long_receive() {
    fake().run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 1), rig.gpu_region(0, 5 * CHUNK));
        let receive = rig.recv.irecv(&[(&to, 0..5 * CHUNK, 1)]).unwrap().expect("room");
        let send = rig.send.isend(&from, 0..0, 1).unwrap().expect("begun");
        let (mut sent, mut received) = (None, None);
        until("transfer", || {
            sent = sent.or_else(|| rig.send.test(&send).unwrap());
            received = received.or_else(|| rig.recv.test(&receive).unwrap());
            sent.is_some() && received.is_some()
        });
        assert_eq!(sent, Some(0));
        assert_eq!(received.unwrap().sizes(), [0]);
    });
}

#[test]
fn many_messages_are_under_way_at_once_and_end_in_any_order() {
    fake().set("FAKE_CUDA_QUERIES", "2").run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 20 * CHUNK), rig.gpu_region(0, 40 * CHUNK));
        from.write_at(0, &pattern(0, 20 * CHUNK)).unwrap();
        let sent = |i: usize| i * 2 * CHUNK..(i * 2 + 1 + i % 2) * CHUNK - i / 4;
        let room = |i: usize| i * 4 * CHUNK..(i * 4 + 1 + i % 4) * CHUNK;
        let tag = |i: usize| i as u32 / 2;
        let mut receives: Vec<_> = (0..10)
            .map(|i| (i, rig.recv.irecv(&[(&to, room(i), tag(i))]).unwrap().expect("room")))
            .collect();
        let mut sends: Vec<_> = (0..10)
            .map(|i| rig.send.isend(&from, sent(i), tag(i)).unwrap().expect("room"))
            .collect();
        until("transfers", || {
            // Test the last request first.
            sends = std::mem::take(&mut sends)
                .into_iter()
                .rev()
                .filter(|request| rig.send.test(request).unwrap().is_none())
                .collect();
            receives.retain(|(i, request)| {
                let received = rig.recv.test(request).unwrap();
                assert!(received.is_none_or(|got| got.sizes() == [sent(*i).len()]));
                received.is_none()
            });
            sends.is_empty() && receives.is_empty()
        });
        let (from, to) = (content(&from, 20 * CHUNK), content(&to, 40 * CHUNK));
        for i in 0..10 {
            let start = room(i).start;
            assert_eq!(from[sent(i)], to[start..start + sent(i).len()], "message {i}");
        }
    });
}

#[test]
fn a_receive_behind_a_long_one_waits_until_that_is_posted_as_a_whole() {
    fake().run(|| {
        let mut rig = Rig::new();
        let long = 10 * CHUNK;
        let (from, to) = (rig.gpu_region(0, long), rig.gpu_region(0, long));
        let (host, other_host) = (rig.host_region(8), rig.host_region(8));
        host.write_at(0, b"short").unwrap();
        let first = rig.recv.irecv(&[(&to, 0..long, 1)]).unwrap().expect("room");
        let send = rig.send.isend(&from, 0..long, 1).unwrap().expect("begun");
        let (mut second, mut has_sent, mut got) = (None, false, [false; 2]);
        until("both messages", || {
            if second.is_none() {
                second = rig.recv.irecv(&[(&other_host, 0..8, 2)]).unwrap();
            }
            got[0] |= rig.recv.test(&first).is_ok_and(|received| received.is_some());
            if let Some(second) = &second {
                got[1] |= rig.recv.test(second).is_ok_and(|received| received.is_some());
            }
            // The sender sends the second message after the first.
            if !has_sent && rig.send.test(&send).unwrap().is_some() {
                has_sent = true;
                rig.send.send(&host, 0..5, 2, TIMEOUT).unwrap();
            }
            got == [true; 2]
        });
        assert_eq!(content(&other_host, 5), b"short");
    });
}

#[test]
fn no_message_overtakes_one_with_its_tag() {
    fake().run(|| {
        let mut rig = Rig::new();
        let (gpu, host) = (rig.gpu_region(0, 100), rig.host_region(100));
        gpu.write_at(0, b"first").unwrap();
        host.write_at(0, b"later").unwrap();
        let first = rig.send.isend(&gpu, 0..5, 1).unwrap().expect("begun");
        assert!(rig.send.isend(&host, 0..5, 1).unwrap().is_none(), "it waits for the first");
        let to = rig.host_region(100);
        let receive = rig.recv.irecv(&[(&to, 0..5, 1)]).unwrap().expect("room");
        rig.send.wait(&first, TIMEOUT).unwrap();
        rig.recv.wait(&receive, TIMEOUT).unwrap();
        assert_eq!(content(&to, 5), b"first");
        let receive = rig.recv.irecv(&[(&to, 0..5, 1)]).unwrap().expect("room");
        rig.send.send(&host, 0..5, 1, TIMEOUT).unwrap();
        rig.recv.wait(&receive, TIMEOUT).unwrap();
        assert_eq!(content(&to, 5), b"later");
    });
}

#[test]
fn staged_memory_needs_no_flush() {
    fake().set("NCCL_NET_FORCE_FLUSH", "1").run(|| {
        let mut rig = Rig::new();
        let region = rig.gpu_region(0, 100);
        assert!(matches!(rig.recv.iflush(&[(&region, 0..100)]).unwrap(), Flush::NotNeeded));
        assert_eq!(calls("cuFlushGPUDirectRDMAWrites"), 0);
    });
}

#[test]
fn misuse_is_refused_and_the_connection_goes_on() {
    fake().set("FAKE_CUDA_GPUS", "0000:3d:00.0,0000:86:00.0").run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 100), rig.gpu_region(0, 100));
        rig.check(&from, &to);
        let refused = |error: Error, text: &str| {
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(text), "{error}");
        };
        let group = rig.recv.irecv(&[(&to, 0..1, 1), (&to, 1..2, 2)]);
        refused(group.unwrap_err(), "takes a receive of its own");
        let other = rig.gpu_region(1, 100);
        refused(rig.send.isend(&other, 0..1, 1).unwrap_err(), "memory of GPU 1 on a connection");
        let too_long = "bytes 0..101 are not within the region, which has 100 bytes";
        refused(rig.send.isend(&from, 0..101, 1).unwrap_err(), too_long);
        rig.check(&from, &to);
        let memory = GpuMemory::alloc(&Gpu::open(rig.driver, 0).unwrap(), 1).unwrap();
        // SAFETY: the range has no bytes, so nobody accesses any.
        let empty = unsafe { GpuMemory::from_raw(memory.gpu(), memory.addr(), 0, ()) };
        let region = MemoryRegion::on_gpu(&rig.device, &empty, &rig.settings);
        refused(region.err().expect("no bytes"), "at least one byte");
    });
}

#[test]
fn a_request_that_is_over_is_named() {
    fake().run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 100), rig.host_region(100));
        let receive = rig.recv.irecv(&[(&to, 0..100, 1)]).unwrap().expect("room");
        let send = rig.send.isend(&from, 0..100, 1).unwrap().expect("begun");
        rig.send.wait(&send, TIMEOUT).unwrap();
        rig.recv.wait(&receive, TIMEOUT).unwrap();
        let error = rig.send.test(&send).unwrap_err().to_string();
        assert_eq!(error, "a request that is over");
    });
}

#[test]
fn a_copy_that_fails_ends_the_messages_and_says_so_each_time() {
    fake().set("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync_v2=700").run(|| {
        let mut rig = Rig::new();
        let from = rig.gpu_region(0, 100);
        let error = rig.send.isend(&from, 0..100, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Local);
        assert!(error.to_string().starts_with("cuMemcpyDtoHAsync_v2 failed"), "{error}");
        let again = rig.send.isend(&from, 0..100, 2).unwrap_err();
        assert_eq!((again.to_string(), again.kind()), (error.to_string(), ErrorKind::Local));
    });
}

/// The error of the end that first reports one, for a message that the two ends handle differently.
fn mismatch(rig: &mut Rig, from: &MemoryRegion, to: &MemoryRegion) -> Error {
    let receive = rig.recv.irecv(&[(to, 0..to.len(), 1)]).unwrap().expect("room");
    let (mut send, mut found) = (None, None);
    until("an error", || {
        if send.is_none() {
            match rig.send.isend(from, 0..from.len(), 1) {
                Ok(begun) => send = begun,
                Err(error) => found = Some(error),
            }
        }
        if let Some(Err(error)) = send.as_ref().map(|send| rig.send.test(send)) {
            found = Some(error);
        }
        match rig.recv.test(&receive) {
            Ok(received) => assert_eq!(received, None, "cut"),
            Err(error) => found = Some(error),
        }
        found.is_some()
    });
    found.expect("an error")
}

/// A message of more than a chunk that one end alone stages is an error.
fn what_is_staged_at_one_end_only_is_an_error_that_says_so(mut rig: Rig) {
    let (gpu, host) = (rig.gpu_region(0, 2 * CHUNK), rig.host_region(2 * CHUNK));
    let error = mismatch(&mut rig, &gpu, &host);
    assert_eq!(error.kind(), ErrorKind::Usage);
    let text = "a staged send of 8192 bytes in chunks of 4096 meets a receive of 8192 bytes \
                (tag 0x1): the receive is too short, the peer does not stage it, ";
    assert!(error.to_string().contains(text), "{error}");
    let mut rig = Rig::on(rig.device.clone());
    let (gpu, host) = (rig.gpu_region(0, 2 * CHUNK), rig.host_region(2 * CHUNK));
    let error = mismatch(&mut rig, &host, &gpu);
    let text = "a send of 8192 bytes meets a receive of 4113 bytes (tag 0x1)";
    assert!(error.to_string().contains(text), "{error}");
    let text = "so the peer probably stages this message: both ends must stage a message that is longer than a chunk";
    assert!(error.to_string().ends_with(text), "{error}");
    // Here the message fits into a chunk.
    let mut rig = Rig::on(rig.device.clone());
    let (gpu, host) = (rig.gpu_region(0, 2 * CHUNK), rig.host_region(CHUNK));
    let error = mismatch(&mut rig, &host, &gpu);
    assert_eq!(error.kind(), ErrorKind::Peer);
    let text = "4096 bytes came at byte 0 of a staged receive of 8192 bytes in chunks of 4096, \
                without a trailer: the peer does not stage it, or ";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn a_receive_that_is_not_staged_but_looks_so_is_refused_when_something_staged_has_come() {
    fake().run(|| {
        let room = Trailer::room(CHUNK as u32) as usize;
        for len in [100, CHUNK, 3 * CHUNK] {
            let mut rig = Rig::new();
            let (gpu, host) = (rig.gpu_region(0, len), rig.host_region(room));
            let other_host = rig.host_region(room);
            rig.check(&other_host, &host);
            let error = mismatch(&mut rig, &gpu, &host).to_string();
            assert!(error.contains(&format!("staged send of {len} bytes: the buffer")), "{error}");
            let again = rig.recv.irecv(&[(&host, 0..1, 1)]).unwrap_err();
            assert_eq!((again.to_string(), again.kind()), (error, ErrorKind::Usage));
        }
    });
}

#[test]
fn a_message_longer_than_its_receive_is_refused_by_name() {
    fake().run(|| {
        for (len, room) in [(100, 99), (2 * CHUNK, CHUNK), (4 * CHUNK, 4 * CHUNK - 1)] {
            let mut rig = Rig::new();
            let (from, to) = (rig.gpu_region(0, len), rig.gpu_region(0, room));
            let error = mismatch(&mut rig, &from, &to).to_string();
            assert!(error.contains(&format!("staged send of {len} bytes")), "{error}");
            assert!(error.contains(" meets a "), "{error}");
        }
    });
}

#[test]
fn a_long_message_that_is_staged_at_one_end_only_is_refused_by_name() {
    fake().run(|| what_is_staged_at_one_end_only_is_an_error_that_says_so(Rig::new()));
}

#[test]
fn over_tcp_it_is_too() {
    fake().set("NCCL_SOCKET_IFNAME", "=lo").set("INVAR_TRANSPORT", "socket").run(|| {
        let rig = Rig::on(Device::open("lo").unwrap());
        what_is_staged_at_one_end_only_is_an_error_that_says_so(rig);
    });
}

#[test]
fn chunks_of_another_size_are_refused_by_name() {
    fake().run(|| {
        let device = Device::open_at("[::1]:0".parse().unwrap()).unwrap();
        let mut rig = Rig::between(device, settings(&[("INVAR_STAGING_CHUNK_BYTES", "8192")]));
        let (from, to) = (rig.gpu_region(0, 5 * CHUNK), rig.gpu_region(0, 5 * CHUNK));
        let error = mismatch(&mut rig, &from, &to);
        let text = "in chunks of 4096 meets a receive of 8209 bytes";
        assert!(error.to_string().contains(text), "{error}");
    });
}

#[test]
fn a_comm_that_goes_amid_messages_gives_all_back() {
    fake().set("FAKE_CUDA_QUERIES", "100").run(|| {
        let mut rig = Rig::new();
        let (from, to) = (rig.gpu_region(0, 9 * CHUNK), rig.gpu_region(0, 9 * CHUNK));
        let receive = rig.recv.irecv(&[(&to, 0..9 * CHUNK, 1)]).unwrap().expect("room");
        let send = rig.send.isend(&from, 0..9 * CHUNK, 1).unwrap().expect("begun");
        for _ in 0..50 {
            assert!(rig.send.test(&send).unwrap().is_none());
            assert!(rig.recv.test(&receive).unwrap().is_none());
        }
        drop((rig, from, to));
        for (made, ended) in [
            ("cuMemAlloc_v2", "cuMemFree_v2"),
            ("cuMemHostAlloc", "cuMemFreeHost"),
            ("cuEventCreate", "cuEventDestroy_v2"),
            ("cuStreamCreate", "cuStreamDestroy_v2"),
            ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ] {
            assert!(calls(made) > 0, "{made}");
            assert_eq!(calls(made), calls(ended), "{made} {ended}");
        }
    });
}
