//! Connections whose tasks wait, and operations for which nobody waits, cost next to nothing. One test runs
//! at a time, because the tests measure the process.

#![allow(clippy::print_stdout, reason = "the test shows what it measured")]

use std::fs;
use std::net::Ipv4Addr;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use invar::communicator::{Mover, Operation, RawOperation};
use invar::{
    Communicator, DataType, Device, Hub, Listener, MemoryRegion, PortRange, RecvComm, RedOp,
};
use invar_testkit::library;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

const CONNECTIONS: usize = 256;
const WAIT: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// A sleep is 10 ms at most. Over the network the worker also wakes when the connection keeps itself alive.
const WAKE_UPS_EACH_S: u64 = 500;
/// The test that runs.
static ALONE: Mutex<()> = Mutex::new(());

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
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Each connection has several descriptors at each end.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    for transport in ["socket", "soft"] {
        let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
        let settings = library::settings(&variables);
        let devices = Device::survey(&settings).unwrap().devices;
        let info = devices.iter().find(|info| settings.takes(info.kind)).unwrap();
        let device = Device::open_for(info, &settings).unwrap();
        let listener = Listener::bind(&device, &settings).unwrap();
        let mut pool = LocalPool::new();
        let mut senders = Vec::new();
        for _ in 0..CONNECTIONS {
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
        println!("{transport}: {CONNECTIONS} connections took {busy:?} in {WAIT:?}");
        // Two ends of each connection, without optimization: 0.2 ‰ of a processor an end.
        assert!(busy < WAIT / 10, "{transport}: {busy:?} of {WAIT:?}");
        drop(senders);
        pool.run();
    }
}

/// How often the threads that move collectives have gone to sleep so far.
fn sleeps_of_workers() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let count = |path: std::path::PathBuf| {
        // A thread may end meanwhile.
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        (field("Name:") == Some("invar-coll"))
            .then(|| field("voluntary_ctxt_switches:").unwrap().parse::<u64>().unwrap())
    };
    tasks.filter_map(|task| count(task.unwrap().path())).sum()
}

/// Starts an all-reduce as rank 0 and does nothing, until rank 1 comes.
fn start_and_stay_away(communicator: &Communicator, data: &mut [u32], late: &Barrier) {
    let memory = data.as_mut_ptr();
    let sum = RawOperation {
        operation: Operation::AllReduce,
        count: data.len(),
        data_type: DataType::U32,
        redop: Some(RedOp::Sum),
        input: memory.cast(),
        output: memory.cast(),
    };
    // SAFETY: the caller keeps the memory until the operation is done.
    let posted = unsafe { communicator.post(&[sum], Mover::Caller) }.unwrap();
    let before = sleeps_of_workers();
    thread::sleep(WAIT);
    let sleeps = sleeps_of_workers() - before;
    println!("{}: {sleeps} wake-ups in {WAIT:?}", communicator.transport());
    late.wait();
    posted.wait_within(PATIENCE).expect("both ranks are there").unwrap();
    assert!(sleeps < WAKE_UPS_EACH_S * WAIT.as_secs(), "{sleeps} wake-ups in {WAIT:?}");
}

#[test]
fn an_operation_for_which_nobody_waits_seldom_wakes_a_thread() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for transport in [None, Some("socket"), Some("soft")] {
        let variables =
            transport.map(|name| [("INVAR_TRANSPORT", name), ("NCCL_SHM_DISABLE", "1")]);
        let settings = library::settings(variables.as_ref().map_or(&[], |variables| variables));
        let at = (Ipv4Addr::LOCALHOST, 0).into();
        let hub = Hub::listen(at, PortRange::ANY, 2, None, PATIENCE).unwrap();
        let (hub, settings, late) = (&hub, &settings, &Barrier::new(2));
        thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    let communicator = Communicator::join(&hub.id(), rank, 2, settings).unwrap();
                    let mut data = [rank + 1; 1000];
                    // The ranks connect in their first operation.
                    communicator.all_reduce_in_place(&mut data, RedOp::Max).unwrap();
                    if rank == 0 {
                        start_and_stay_away(&communicator, &mut data, late);
                    } else {
                        late.wait();
                        communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
                    }
                    assert_eq!(data, [4; 1000]);
                });
            }
        });
    }
}
