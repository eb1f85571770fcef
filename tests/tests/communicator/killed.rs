//! A rank in a process of its own is killed. All others end soon and name it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use invar::{Communicator, Error, Hub, PortRange, RedOp, UniqueId};
use invar_testkit::child;
use invar_testkit::wait::watch;

use crate::rig::{TIMEOUT, every_way};

/// This variable tells the child process the address of the hub, the kind of links and the task.
const ORDERS: &str = "INVAR_TEST_RANK";
const SECRET: &str = "a word";
/// The number of ranks. [`VICTIM`] is the rank that is killed.
const NRANKS: u32 = 3;
const VICTIM: u32 = 1;
/// The elements of a large operation.
const COUNT: usize = (6 << 20) + 1;
/// The time limit for the other ranks. The communicator promises a second, but the machine may be busy.
/// The ranks' own time limit is far longer.
const BOUND: Duration = Duration::from_secs(20);

/// Joins with a link to each other rank, unless the task is that the victim has none.
fn join(id: &UniqueId, rank: u32, way: usize, task: &str) -> Communicator {
    let communicator = Communicator::join(id, rank, NRANKS, &every_way()[way]).unwrap();
    if task != "link" {
        communicator.barrier().unwrap();
    }
    communicator
}

/// The operation that all ranks repeat until the victim is gone.
fn operate(communicator: &Communicator, data: &mut [f32], task: &str) -> Result<(), Error> {
    if task != "link" {
        return communicator.all_reduce_in_place(data, RedOp::Max);
    }
    let (rank, sent) = (communicator.rank(), [1.0_f32]);
    let mut group = communicator.group();
    for (peer, got) in (0..NRANKS).zip(data).filter(|(peer, _)| *peer != rank) {
        group.send(&sent, peer)?.recv(std::slice::from_mut(got), peer)?;
    }
    group.run()
}

#[test]
#[ignore = "is a rank's process of other tests"]
fn a_rank_that_works_or_idles_until_it_is_killed() {
    let orders = std::env::var(ORDERS).expect("started by another test");
    let [addr, way, task] = orders.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{ORDERS}={orders}")
    };
    let id = UniqueId::new(addr.parse().unwrap(), &invar::secret_of(SECRET));
    let communicator = join(&id, VICTIM, way.parse().unwrap(), task);
    // The test harness writes on the current line, so begin a new one.
    writeln!(io::stdout(), "\njoined").unwrap();
    if task != "work" {
        // Wait until the other process ends.
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }
    let mut data = vec![1.0_f32; COUNT];
    while operate(&communicator, &mut data, task).is_ok() {}
}

fn start_victim(addr: &str, way: usize, task: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = child::command("killed::a_rank_that_works_or_idles_until_it_is_killed")
        .env(ORDERS, format!("{addr} {way} {task}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

/// Kills the victim when all others have begun `begun` operations. With the task "work" the victim is in the middle
/// of one of them. With "idle" all others wait for it, and with "link" their groups wait for links with it.
fn check(way: usize, task: &str, begun: u32) {
    let at = ([127, 0, 0, 1], 0).into();
    let secret = Some(invar::secret_of(SECRET));
    let hub = Hub::listen(at, PortRange::ANY, NRANKS, secret, TIMEOUT).unwrap();
    let id = hub.id();
    let counts = [const { AtomicU32::new(0) }; NRANKS as usize];
    let survive = |rank: u32| {
        let communicator = join(&id, rank, way, task);
        let mut data = vec![1.0_f32; COUNT];
        loop {
            counts[rank as usize].fetch_add(1, Ordering::Relaxed);
            if let Err(error) = operate(&communicator, &mut data, task) {
                return error.to_string();
            }
        }
    };
    let (mut child, stdout) = start_victim(&id.addr().to_string(), way, task);
    let survivors = (0..NRANKS).filter(|rank| *rank != VICTIM);
    thread::scope(|scope| {
        let survive = &survive;
        let threads: Vec<_> =
            survivors.clone().map(|rank| scope.spawn(move || survive(rank))).collect();
        let joined = stdout.lines().map(Result::unwrap).any(|line| line == "joined");
        assert!(joined, "it has not joined");
        let has_begun = |rank: u32| counts[rank as usize].load(Ordering::Relaxed) >= begun;
        watch("the survivors' operations", || survivors.clone().all(has_begun));
        child.kill().unwrap();
        let killed = Instant::now();
        for thread in threads {
            let error = thread.join().unwrap();
            assert!(error.starts_with(&format!("rank {VICTIM}: ")), "{task}: {error}");
            assert!(!error.contains("did not do its part"), "{task}: {error}");
        }
        assert!(killed.elapsed() < BOUND, "{task}: after {:?}", killed.elapsed());
    });
    child.wait().unwrap();
}

#[test]
fn a_rank_that_is_killed_ends_the_others_amid_work_by_shared_memory() {
    check(0, "work", 4);
}

#[test]
fn a_rank_that_is_killed_ends_the_others_amid_work_over_the_software_nic() {
    check(1, "work", 4);
}

#[test]
fn a_rank_that_is_killed_ends_the_others_amid_work_over_tcp() {
    check(2, "work", 4);
}

#[test]
fn a_rank_that_is_killed_ends_those_who_wait_for_it() {
    (0..3).for_each(|way| check(way, "idle", 1));
}

#[test]
fn a_rank_that_is_killed_ends_those_whose_groups_wait_for_a_link_with_it() {
    (0..3).for_each(|way| check(way, "link", 1));
}
