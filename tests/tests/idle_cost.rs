//! Connections whose tasks wait cost next to nothing. The test is alone in its process, because it measures
//! the process.

#![allow(clippy::print_stdout, reason = "the test shows what it measured")]

use std::time::Duration;

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use invar::{Device, Listener, MemoryRegion, RecvComm};
use invar_testkit::library;
use rustix::time::{ClockId, clock_gettime};

const CONNECTIONS: usize = 256;
const WAIT: Duration = Duration::from_secs(3);

/// The processor time of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Waits for a message that does not come.
async fn wait_idly(mut comm: RecvComm) {
    let region = MemoryRegion::new(comm.device(), 8).unwrap();
    // The peer ends the wait.
    let _ = comm.recv_async(&region, 0..8, 0).await;
}

#[test]
fn idle_connections_take_little_processor_time() {
    for transport in ["socket", "soft"] {
        let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
        let settings = library::settings(&variables);
        let devices = Device::survey(&settings).unwrap().devices;
        let info = devices.iter().find(|info| settings.takes(info.kind)).unwrap();
        let device = Device::open_for(info, &settings).unwrap();
        let listener = Listener::bind(&device, &settings).unwrap();
        let mut pool = LocalPool::new();
        let mut senders = Vec::new();
        for _ in 0..CONNECTIONS / 2 {
            let (send, recv) = library::connect(&device, &listener, &settings);
            senders.push(send);
            pool.spawner().spawn_local(wait_idly(recv)).unwrap();
        }
        pool.run_until_stalled();
        let before = processor_time();
        let timer = std::thread::spawn(|| std::thread::sleep(WAIT));
        while !timer.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
            pool.run_until_stalled();
        }
        let busy = processor_time() - before;
        println!("{transport}: {CONNECTIONS} ends took {busy:?} in {WAIT:?}");
        assert!(busy < WAIT / 20, "{transport}: {busy:?} of {WAIT:?}");
        drop(senders);
        pool.run();
    }
}
