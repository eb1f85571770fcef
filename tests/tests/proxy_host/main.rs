//! Tests the proxy's threads, with ranks in this process and in others.

mod host;
mod processes;
mod service;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use host::{Gate, op, progress, spec};
use invar_core::proxy::{
    AppendError, ConnectionId, OpStage, Probe, ProxyEvent, ProxySlice, TakeError, Transport,
};
use invar_core::topology::Direction;
use invar_linux::abort::Abort;
use invar_linux::proxy::{
    ChromeTrace, DumpOnSignal, Progress, ProgressFailure, ProgressSettings, RankOps, RankOpsError,
    Service, ServiceSettings, SharedOps, WaitError,
};
use invar_testkit::wait::{LIMIT, watch};
use service::Host;

#[test]
fn all_that_ranks_post_is_moved_though_they_post_more_than_there_is_room_for() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(2).unwrap();
    let progress = progress(&shared, &gate, &abort);
    for rank in 0..2 {
        progress.connections().open(ConnectionId(rank), spec(rank));
    }
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let mut ops = RankOps::new(shared.clone(), rank, abort.clone(), LIMIT);
            scope.spawn(move || {
                for op_count in 0..10_000 {
                    ops.append(&op(op_count, rank, 1)).unwrap();
                    if op_count % 7 == u64::from(rank) {
                        ops.post().unwrap();
                    }
                }
                ops.post().unwrap();
            });
        }
    });
    progress.stop().unwrap();
    assert_eq!(gate.completed(), 20_000);
}

#[test]
fn stop_waits_for_what_is_active_and_takes_nothing_new() {
    let (gate, abort) = (Gate::closed(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let progress = progress(&shared, &gate, &abort);
    progress.connections().open(ConnectionId(0), spec(0));
    let mut ops = RankOps::new(shared.clone(), 0, abort, LIMIT);
    ops.append(&op(1, 0, 20)).unwrap();
    ops.post().unwrap();
    let stopping = std::thread::spawn(move || progress.stop());
    watch("the end of the pool", || shared.pool().posted().is_closed());
    ops.append(&op(2, 0, 1)).unwrap();
    let error = ops.post().unwrap_err();
    assert_eq!(error.to_string(), "local rank 0: the proxy has been told to stop");
    assert!(!stopping.is_finished());
    gate.set(true);
    stopping.join().unwrap().unwrap();
    assert_eq!(gate.completed(), 20);
}

/// Records whether the thread has gone to sleep.
#[derive(Clone, Default)]
struct Asleep(Arc<AtomicBool>);

impl Probe for Asleep {
    fn record(&mut self, event: ProxyEvent) {
        if event == ProxyEvent::Sleep {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn abort_ends_a_busy_thread_and_a_sleeping_one_and_a_rank_that_waits() {
    for busy in [false, true] {
        let (gate, abort, asleep) = (Gate::closed(), Abort::default(), Asleep::default());
        let shared = SharedOps::create(1).unwrap();
        let settings = ProgressSettings::default();
        let progress =
            Progress::spawn(shared.clone(), settings, abort.clone(), gate.clone(), asleep.clone())
                .unwrap();
        watch("the engine's sleep", || asleep.0.load(Ordering::Relaxed));
        if busy {
            progress.connections().open(ConnectionId(0), spec(0));
            let mut ops = RankOps::new(shared, 0, abort.clone(), LIMIT);
            ops.append(&op(1, 0, 1)).unwrap();
            ops.post().unwrap();
            watch("the first question", || gate.asked());
        }
        abort.set();
        watch("the end of the engine", || progress.has_ended());
        let failure = progress.stop().unwrap_err();
        assert!(matches!(*failure, ProgressFailure::Aborted), "{failure}");
    }
    // Nobody takes the operations that this rank posts.
    let shared = SharedOps::create(1).unwrap();
    let abort = Abort::default();
    let mut ops = RankOps::new(shared, 0, abort.clone(), LIMIT);
    let rank = std::thread::spawn(move || {
        (0..).find_map(|op_count| ops.append(&op(op_count, 0, 1)).err())
    });
    abort.set();
    let error = rank.join().unwrap().unwrap();
    assert_eq!(error, RankOpsError::Wait { rank: 0, error: WaitError::Aborted });
}

#[test]
fn a_rank_that_waits_for_a_proxy_that_is_gone_gives_up() {
    let shared = SharedOps::create(1).unwrap();
    let limit = std::time::Duration::from_millis(1);
    let mut ops = RankOps::new(shared, 0, Abort::default(), limit);
    let error = (0..).find_map(|op_count| ops.append(&op(op_count, 0, 1)).err()).unwrap();
    assert_eq!(error, RankOpsError::Wait { rank: 0, error: WaitError::TimedOut(limit) });
}

#[test]
fn a_failure_ends_the_thread_and_says_why() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let mut ops = RankOps::new(shared, 0, abort, LIMIT);
    ops.append(&op(3, 5, 1)).unwrap();
    ops.post().unwrap();
    watch("the end of the engine", || progress.has_ended());
    let error = progress.stop().unwrap_err();
    let connection = ConnectionId(5);
    let expected = AppendError::NotOpen { op_count: 3, connection };
    assert!(
        matches!(&*error, ProgressFailure::Take(TakeError::Append { rank: 0, error })
            if *error == expected),
        "{error}"
    );
}

/// A transport with a defect.
struct Panics;

impl Transport for Panics {
    type Error = Infallible;

    fn advance(&mut self, _: OpStage, _: &[ProxySlice]) -> Result<bool, Infallible> {
        panic!("a defect of the transport");
    }
}

#[test]
fn ranks_do_not_wait_for_a_thread_that_has_panicked() {
    let shared = SharedOps::create(1).unwrap();
    let (settings, abort) = (ProgressSettings::default(), Abort::default());
    let progress = Progress::spawn(shared.clone(), settings, abort.clone(), Panics, ()).unwrap();
    progress.connections().open(ConnectionId(0), spec(0));
    let mut ops = RankOps::new(shared.clone(), 0, abort, LIMIT);
    ops.append(&op(1, 0, 1)).unwrap();
    ops.post().unwrap();
    watch("the end of the pool", || shared.pool().posted().is_closed());
    ops.append(&op(2, 0, 1)).unwrap();
    assert!(ops.post().is_err());
}

#[test]
fn a_connection_is_closed_when_its_operations_are_done() {
    let (gate, abort) = (Gate::closed(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let progress = progress(&shared, &gate, &abort);
    let connections = progress.connections();
    connections.open(ConnectionId(0), spec(0));
    let mut ops = RankOps::new(shared.clone(), 0, abort, LIMIT);
    ops.append(&op(1, 0, 3)).unwrap();
    ops.post().unwrap();
    connections.close(ConnectionId(0));
    watch("the first question", || gate.asked());
    gate.set(true);
    watch("slices", || gate.completed() == 3);
    // Operations that come too late find the memory closed, sooner or later.
    for op_count in 2.. {
        if ops.append(&op(op_count, 0, 1)).and_then(|()| ops.post()).is_err() {
            break;
        }
    }
    let error = progress.stop().unwrap_err().to_string();
    assert!(error.ends_with("connection 0-0 is not open"), "{error}");
}

/// A writer whose text the test can read.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_signal_has_the_active_operations_written_busy_or_asleep() {
    let (gate, abort) = (Gate::closed(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let written = Written::default();
    let signal = rustix::process::Signal::USR2;
    let progress = progress(&shared, &gate, &abort);
    let driver = progress.driver();
    let number = signal.as_raw() as u8;
    let dump = DumpOnSignal::spawn(number, move || driver.dump(), written.clone()).unwrap();
    let kill = || rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
    kill();
    watch("an empty list", || written.text() == "ACTIVE OPS\n[X]\n");
    progress.connections().open(ConnectionId(0), spec(0));
    let mut ops = RankOps::new(shared, 0, abort, LIMIT);
    ops.append(&op(9, 0, 1)).unwrap();
    ops.post().unwrap();
    watch("the first question", || gate.asked());
    kill();
    watch("a list of operations", || {
        written.text().ends_with("ACTIVE OPS\n[0-0|9| Send 100I/0]\n|\nv\n[X]\n")
    });
    gate.set(true);
    progress.stop().unwrap();
    drop(dump);
    // Without the dump's thread the signal would end the process.
    kill();
}

/// The processors on which a thread of this process may run, by the thread's name.
fn runs_on(name: &str) -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.flatten().find_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let of = |key| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        (of("Name")? == name).then(|| of("Cpus_allowed_list").unwrap_or_default().to_owned())
    })
}

#[test]
fn both_threads_have_the_number_of_their_gpu_and_run_where_they_may() {
    let (gate, abort, shared) = (Gate::open(), Abort::default(), SharedOps::create(1).unwrap());
    let cpus = invar_linux::processors::allowed().first().copied();
    let settings = ProgressSettings { device: 7, cpus, ..ProgressSettings::default() };
    let progress = Progress::spawn(shared, settings, abort.clone(), gate, ()).unwrap();
    let host = Host::new(progress.connections());
    let _service = Service::spawn(ServiceSettings { device: 7, cpus }, abort, host).unwrap();
    for name in ["InvarProgress 7", "InvarService 7"] {
        watch("a pinned thread", || {
            runs_on(name).is_some_and(|cpus| cpus.parse::<usize>().is_ok())
        });
    }
    progress.stop().unwrap();
}

#[test]
fn a_signal_that_can_not_be_had_is_an_error() {
    // Signal 9 is SIGKILL. The C library keeps signal 32 for itself.
    for signal in [9, 32] {
        let error = DumpOnSignal::spawn(signal, String::new, std::io::sink()).unwrap_err();
        let named = format!("NCCL_PROXY_DUMP_SIGNAL={signal}: ");
        assert!(error.to_string().starts_with(&named), "{error}");
    }
}

#[test]
fn the_trace_is_json_in_which_everything_that_begins_ends() {
    let (gate, abort) = (Gate::open(), Abort::default());
    let shared = SharedOps::create(1).unwrap();
    let written = Written::default();
    let trace = ChromeTrace::new(written.clone(), 3);
    let settings = ProgressSettings::default();
    let progress =
        Progress::spawn(shared.clone(), settings, abort.clone(), gate.clone(), trace).unwrap();
    let recv = invar_core::proxy::ConnectionSpec { direction: Direction::Recv, ..spec(0) };
    progress.connections().open(ConnectionId(0), spec(0));
    progress.connections().open(ConnectionId(1), recv);
    let mut ops = RankOps::new(shared, 0, abort, LIMIT);
    for id in [0, 1] {
        let pattern = invar_core::proxy::Pattern::Ring;
        ops.append(&invar_core::proxy::Op { pattern, ..op(1, id, 2) }).unwrap();
    }
    ops.post().unwrap();
    watch("slices", || gate.completed() == 4);
    progress.stop().unwrap();

    let entries: Vec<serde_json::Value> = serde_json::from_str(&written.text()).unwrap();
    let text = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap_or("").to_owned();
    let mut open: Vec<(String, String)> = Vec::new();
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for entry in &entries {
        assert_eq!(entry["tid"], 3);
        let what = (text(entry, "name"), text(entry, "id"));
        match text(entry, "ph").as_str() {
            "B" | "b" => {
                *seen.entry(what.0.clone()).or_default() += 1;
                open.push(what);
            }
            _ => {
                let at = open.iter().rposition(|open| *open == what).expect("has begun");
                open.remove(at);
            }
        }
    }
    // The thread was told to stop while it was idle.
    open.retain(|(name, _)| name != "Idle");
    assert!(open.is_empty(), "{open:?}");
    for (name, times) in [
        ("SendGPUWait", 2),
        ("SendWait", 2),
        ("RecvWait", 2),
        ("RecvFlushWait", 2),
        ("RecvGPUWait", 4),
    ] {
        assert_eq!(seen[name], times, "{name}");
    }
    assert!(seen.contains_key("Append") && seen.contains_key("Idle"), "{seen:?}");
}
