//! A software NIC leaves nothing behind. The test runs alone in its process, since it counts the
//! process's open files and threads.

use invar_core::nic::{Nic, SendOpcode};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::wait::until;

fn count(dir: &str) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Checks the descriptors and threads of the process. A joined thread may be listed for a moment
/// longer.
fn settles_to(fds: usize, threads: usize) {
    assert_eq!(count("/proc/self/fd"), fds);
    until("end of threads", || count("/proc/self/task") == threads);
}

#[test]
fn no_thread_and_no_descriptor_whatever_the_order_of_dropping() {
    let (fds, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    let config = SoftConfig::new("soft", "[::1]:0".parse().unwrap());
    let open = || SoftNic::open(&config).unwrap();

    drop(open());
    settles_to(fds, threads);

    // Drop in the middle of work, the NIC's own handle first and its objects last.
    let nics = [open(), open()];
    let ends = End::pair([&nics[0], &nics[1]], 1 << 20, &Link::default());
    assert!(count("/proc/self/fd") > fds);
    assert_eq!(count("/proc/self/task"), threads + 2);
    let [a, b] = &ends;
    a.post(&a.work(SendOpcode::RdmaWrite, 1 << 20, b));
    drop(nics);
    let [a, End { qp, cq, buffer, pd, nic }] = ends;
    drop((nic, cq, pd));
    drop(a);
    drop(qp);
    assert!(count("/proc/self/fd") > fds, "a registration keeps its NIC");
    drop(buffer);
    settles_to(fds, threads);

    // Drop one NIC whose thread stands by, and one whose thread sleeps.
    let nic = open();
    let cq = nic.create_cq(1).unwrap();
    assert_eq!(nic.poll(&cq, &mut []), Ok(0));
    let quiet = open();
    drop((nic, quiet, cq));
    settles_to(fds, threads);
}
