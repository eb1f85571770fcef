//! Connections whose tasks wait, and operations for which nobody waits, cost next to nothing. One test runs
//! at a time, because the tests measure the process.

#![allow(clippy::print_stdout, reason = "the test shows what it measured")]

use std::fs;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use invar::communicator::{Mover, Operation, RawOperation};
use invar::{Communicator, DataType, Listener, RedOp, SendComm};
use invar_testkit::{library, load};

const WAIT: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// A sleep is 10 ms at most. Over the network the worker also wakes when the connection keeps itself alive.
const WAKE_UPS_EACH_S: u64 = 500;
/// An accept and a connect. Each wakes every half second, as a task twice: the reactor's thread and its own.
const SETUP_WAKE_UPS_EACH_S: u64 = 30;
/// Time in which a wait grows calm.
const SETTLE: Duration = Duration::from_millis(500);
/// The test that runs.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn idle_connections_take_little_processor_time() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    load::raise_descriptors();
    for transport in ["socket", "soft"] {
        let busy = load::idle_connections(transport, WAIT);
        println!("{transport}: {} connections took {busy:?} in {WAIT:?}", load::CONNECTIONS);
        // Two ends of each connection, without optimization: 0.2 ‰ of a processor an end.
        assert!(busy < WAIT / 10, "{transport}: {busy:?} of {WAIT:?}");
    }
}

/// How often the threads of these names have gone to sleep so far.
fn sleeps_of(names: &[&str]) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let count = |path: std::path::PathBuf| {
        // A thread may end meanwhile.
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        field("Name:")
            .is_some_and(|name| names.contains(&name))
            .then(|| field("voluntary_ctxt_switches:").unwrap().parse::<u64>().unwrap())
    };
    tasks.filter_map(|task| count(task.unwrap().path())).sum()
}

/// Waits for a caller that does not come, and for a listener that does not answer. Returns how often the waiters have
/// woken.
fn sleeps_of_setup(by_tasks: bool) -> u64 {
    const WAITERS: [&str; 3] = ["accepts", "connects", "invar-reactor"];
    let variables = [("INVAR_TRANSPORT", "socket"), ("NCCL_SOCKET_IFNAME", "lo")];
    let settings = library::settings(&variables);
    let device = library::first_device(&settings);
    let listen = || Listener::bind(&device, &settings).unwrap();
    let (lonely, silent) = (listen(), listen());
    let connecting = |to: &Listener| SendComm::connect(&device, &to.handle(), &settings).unwrap();
    let accept = || match by_tasks {
        true => futures::executor::block_on(lonely.accept_async()).unwrap(),
        false => lonely.accept_within(PATIENCE).unwrap(),
    };
    let connect = || match by_tasks {
        true => futures::executor::block_on(connecting(&silent)).unwrap(),
        false => connecting(&silent).wait().unwrap(),
    };
    thread::scope(|scope| {
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let accepts = named("accepts").spawn_scoped(scope, accept).unwrap();
        let connects = named("connects").spawn_scoped(scope, connect).unwrap();
        thread::sleep(SETTLE);
        let before = sleeps_of(&WAITERS);
        thread::sleep(WAIT);
        let sleeps = sleeps_of(&WAITERS) - before;
        let calls = scope.spawn(|| connecting(&lonely).wait().unwrap());
        let answers = scope.spawn(|| silent.accept_within(PATIENCE).unwrap());
        for receives in [accepts, answers] {
            receives.join().unwrap();
        }
        for sends in [connects, calls] {
            sends.join().unwrap();
        }
        sleeps
    })
}

#[test]
fn a_connection_that_nobody_makes_seldom_wakes_a_thread() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for by_tasks in [false, true] {
        let sleeps = sleeps_of_setup(by_tasks);
        println!("tasks: {by_tasks}: {sleeps} wake-ups in {WAIT:?}");
        assert!(sleeps < SETUP_WAKE_UPS_EACH_S * WAIT.as_secs(), "{sleeps} in {WAIT:?}");
    }
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
    let before = sleeps_of(&["invar-coll"]);
    thread::sleep(WAIT);
    let sleeps = sleeps_of(&["invar-coll"]) - before;
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
        let late = Barrier::new(2);
        library::two_ranks(&settings, |communicator| {
            let mut data = [communicator.rank() + 1; 1000];
            // The ranks connect in their first operation.
            communicator.all_reduce_in_place(&mut data, RedOp::Max).unwrap();
            if communicator.rank() == 0 {
                start_and_stay_away(&communicator, &mut data, &late);
            } else {
                late.wait();
                communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
            }
            assert_eq!(data, [4; 1000]);
        });
    }
}
