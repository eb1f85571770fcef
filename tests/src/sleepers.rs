//! Ends of connections whose waits sleep at once.

use std::thread;
use std::time::{Duration, Instant};

use invar::{Device, Listener, MemoryRegion, RecvComm, SendComm, Settings};
use rustix::time::{ClockId, clock_gettime};

use crate::library;
use crate::wait::LIMIT;

const TAG: u32 = 1;

/// Settings on loopback whose waits sleep at once.
pub fn settings(transport: &str) -> Settings {
    let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
    library::settings(&variables).spin_for(Duration::ZERO)
}

/// The processor time of this thread so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Both ends that a thread has: one connection each way.
pub struct Ends {
    /// Sends to the other thread.
    pub send: SendComm,
    /// Receives from the other thread.
    pub recv: RecvComm,
    /// The memory of both.
    pub region: MemoryRegion,
}

/// Connects two threads' ends, which have `bytes` of memory each. Each thread has its device opened for itself, as two
/// programs have.
///
/// # Panics
/// Panics if the settings leave no device, or if an end fails.
pub fn pair(settings: &Settings, bytes: usize) -> [Ends; 2] {
    let connect = |from: &Device, to: &Device| {
        let listener = Listener::bind(to, settings).expect("a listener");
        library::connect(from, &listener, settings)
    };
    let (here, there) = (library::first_device(settings), library::first_device(settings));
    let (to, from) = connect(&here, &there);
    let (back, answers) = connect(&there, &here);
    let ends = |device, send, recv| {
        let region = MemoryRegion::new(device, bytes).expect("memory");
        Ends { send, recv, region }
    };
    [ends(&here, to, answers), ends(&there, back, from)]
}

impl Ends {
    fn bytes(&self) -> std::ops::Range<usize> {
        0..self.region.len()
    }

    fn send(&mut self) {
        let bytes = self.bytes();
        self.send.send(&self.region, bytes, TAG, LIMIT).expect("a message leaves");
    }

    fn recv(&mut self) {
        let bytes = self.bytes();
        self.recv.recv(&self.region, bytes, TAG, LIMIT).expect("a message comes");
    }

    /// Waits for a message that does not come. Returns the processor time of the wait.
    ///
    /// # Panics
    /// Panics if a message comes, or the connection fails.
    pub fn wait_in_vain(&mut self, within: Duration) -> Duration {
        let (before, bytes) = (processor_time(), self.bytes());
        let error = self.recv.recv(&self.region, bytes, TAG, within).expect_err("nobody sends");
        let busy = processor_time() - before;
        assert!(error.is_timeout(), "{error}");
        busy
    }
}

/// Sends a message to the other thread and back again, `count` times. Returns how long this took.
///
/// # Panics
/// Panics if an end fails.
pub fn round_trips([mut ours, mut theirs]: [Ends; 2], count: usize) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..count {
                theirs.recv();
                theirs.send();
            }
        });
        for _ in 0..count {
            ours.send();
            ours.recv();
        }
    });
    start.elapsed()
}
