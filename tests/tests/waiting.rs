//! Calls that wait sleep, and are woken in time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use invar::{Communicator, Device, Hub, Listener, MemoryRegion, PortRange, Settings};
use invar_testkit::library;
use rustix::time::{ClockId, clock_gettime};

const BYTES: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which a test waits.
const WAIT: Duration = Duration::from_secs(1);
/// The most processor time that such a wait may take: a tenth.
const BUSY_MAX: Duration = Duration::from_millis(100);
/// The round trips of a test, and the most time that they may take together. If nobody woke the sleepers, each
/// round trip would take 10 ms or more.
const ROUND_TRIPS: usize = 2000;
const ROUND_TRIPS_WITHIN: Duration = Duration::from_secs(18);

/// Settings on loopback whose waits sleep at once.
fn settings(transport: &str) -> Settings {
    let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
    library::settings(&variables).spin_for(Duration::ZERO)
}

/// The processor time of this thread so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Both ends that a thread has: one connection each way.
struct Ends {
    send: invar::SendComm,
    recv: invar::RecvComm,
    region: MemoryRegion,
    device: Device,
}

/// Two threads' ends.
fn pair(settings: &Settings) -> [Ends; 2] {
    let devices = Device::survey(settings).unwrap().devices;
    let info = devices.iter().find(|info| settings.takes(info.kind)).unwrap();
    let device = Device::open_for(info, settings).unwrap();
    let listener = Listener::bind(&device, settings).unwrap();
    let (to, from) = library::connect(&device, &listener, settings);
    let (back, answers) = library::connect(&device, &listener, settings);
    let ends = |send, recv| {
        let region = MemoryRegion::new(&device, BYTES).unwrap();
        Ends { send, recv, region, device: device.clone() }
    };
    [ends(to, answers), ends(back, from)]
}

impl Ends {
    fn send(&mut self) {
        self.send.send(&self.region, 0..BYTES, 1, TIMEOUT).unwrap();
    }

    fn recv(&mut self) {
        self.recv.recv(&self.region, 0..BYTES, 1, TIMEOUT).unwrap();
    }
}

#[test]
fn a_receive_that_waits_takes_little_processor_time() {
    for transport in ["socket", "soft"] {
        let [mut ours, _theirs] = pair(&settings(transport));
        let before = processor_time();
        let error = ours.recv.recv(&ours.region, 0..BYTES, 1, WAIT).unwrap_err();
        let busy = processor_time() - before;
        assert!(error.is_timeout(), "{error}");
        assert!(busy < BUSY_MAX, "{transport}: {busy:?} of {WAIT:?}");
    }
}

#[test]
fn sleeping_ends_are_woken_by_each_message_and_each_posted_receive() {
    for transport in ["socket", "soft"] {
        let [mut ours, mut theirs] = pair(&settings(transport));
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUND_TRIPS {
                    theirs.recv();
                    theirs.send();
                }
            });
            for _ in 0..ROUND_TRIPS {
                ours.send();
                ours.recv();
            }
        });
        let took = start.elapsed();
        assert!(took < ROUND_TRIPS_WITHIN, "{transport}: {took:?}");
    }
}

#[test]
fn a_long_message_behind_many_short_ones_wakes_both_ends() {
    // So many bytes went ahead of their buffers that the long message may not.
    const SHORT: usize = 32 << 10;
    const LONG: usize = 15 << 18;
    for transport in ["socket", "soft"] {
        let [mut ours, mut theirs] = pair(&settings(transport));
        for ends in [&mut ours, &mut theirs] {
            ends.region = MemoryRegion::new(&ends.device, LONG).unwrap();
        }
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..15 {
                    theirs.recv.recv(&theirs.region, 0..16, 1, TIMEOUT).unwrap();
                    theirs.recv.recv(&theirs.region, 0..SHORT, 1, TIMEOUT).unwrap();
                }
                theirs.recv.recv(&theirs.region, 0..16, 1, TIMEOUT).unwrap();
                theirs.recv.recv(&theirs.region, 0..LONG, 1, TIMEOUT).unwrap();
            });
            for _ in 0..15 {
                ours.send.send(&ours.region, 0..16, 1, TIMEOUT).unwrap();
                ours.send.send(&ours.region, 0..SHORT, 1, TIMEOUT).unwrap();
            }
            ours.send.send(&ours.region, 0..16, 1, TIMEOUT).unwrap();
            ours.send.send(&ours.region, 0..LONG, 1, TIMEOUT).unwrap();
        });
        let took = start.elapsed();
        assert!(took < ROUND_TRIPS_WITHIN, "{transport}: {took:?}");
    }
}

/// Runs `run` as two ranks.
fn ranks<R: Send>(settings: &Settings, run: impl Fn(&Communicator) -> R + Sync) -> [R; 2] {
    let hub = Hub::listen(([127, 0, 0, 1], 0).into(), PortRange::ANY, 2, None, TIMEOUT).unwrap();
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let (hub, run) = (&hub, &run);
            scope.spawn(move || run(&Communicator::join(&hub.id(), rank, 2, settings).unwrap()))
        });
        ranks.map(|rank| rank.join().unwrap())
    })
}

/// Settings for ranks that share memory, or that go over a network.
fn every_way() -> [Settings; 3] {
    let network = |transport| settings(transport).shared_memory(false);
    [settings("auto"), network("socket"), network("soft")]
}

#[test]
fn a_rank_that_waits_takes_little_processor_time() {
    for settings in every_way() {
        let (went, comes): (Sender<()>, Receiver<()>) = channel();
        let comes = std::sync::Mutex::new(comes);
        let [_, busy] = ranks(&settings, |communicator| {
            communicator.barrier().unwrap();
            if communicator.rank() == 0 {
                // The other rank has begun to wait.
                comes.lock().unwrap().recv().unwrap();
                thread::sleep(WAIT);
                communicator.barrier().unwrap();
                return Duration::ZERO;
            }
            went.send(()).unwrap();
            let before = processor_time();
            communicator.barrier().unwrap();
            processor_time() - before
        });
        assert!(busy < BUSY_MAX, "{busy:?} of {WAIT:?}");
    }
}

#[test]
fn sleeping_ranks_are_woken_by_each_message() {
    for settings in every_way() {
        let start = Instant::now();
        ranks(&settings, |communicator| {
            for _ in 0..ROUND_TRIPS {
                communicator.barrier().unwrap();
            }
        });
        let took = start.elapsed();
        assert!(took < ROUND_TRIPS_WITHIN, "{}: {took:?}", settings.transport().as_str());
    }
}
