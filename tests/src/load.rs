//! Idle connections, and busy processors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use futures::channel::oneshot;
use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use invar::{Listener, MemoryRegion, RecvComm};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::library;

/// The threads that keep the processors busy in benchmarks.
pub const BUSY_THREADS: usize = 4;
/// The number of connections.
pub const CONNECTIONS: usize = 256;

/// Lets this process have as many descriptors as it may. Each connection has several at each end.
///
/// # Panics
/// Panics if the system refuses the limit.
pub fn raise_descriptors() {
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).expect("more files");
}

/// Lets the tasks of [`CONNECTIONS`] connections wait for `time`. This process has both ends of each connection.
/// Returns the processor time that the process took meanwhile.
///
/// # Panics
/// Panics if a connection fails.
pub fn idle_connections(transport: &str, time: Duration) -> Duration {
    let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
    let settings = library::settings(&variables);
    let device = library::first_device(&settings);
    let listener = Listener::bind(&device, &settings).expect("a listener");
    let mut pool = LocalPool::new();
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        let (send, recv) = library::connect(&device, &listener, &settings);
        senders.push(send);
        pool.spawner().spawn_local(wait_idly(recv)).expect("a pool");
    }
    pool.run_until_stalled();
    let before = processor_time();
    let (timer, end) = oneshot::channel::<()>();
    thread::spawn(move || {
        thread::sleep(time);
        drop(timer);
    });
    // The end of the time drops the timer.
    let _ = pool.run_until(end);
    let busy = processor_time() - before;
    drop(senders);
    pool.run();
    busy
}

/// Waits for a message that does not come.
async fn wait_idly(mut comm: RecvComm) {
    let region = MemoryRegion::new(comm.device(), 8).expect("memory");
    // The peer ends the wait.
    let _ = comm.recv_async(&region, 0..8, 0).await;
}

/// The processor time of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Makes a call while `threads` other threads keep processors busy.
pub fn beside_busy_threads<R>(threads: usize, call: impl FnOnce() -> R) -> R {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&done);
        for _ in 0..threads {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        call()
    })
}
