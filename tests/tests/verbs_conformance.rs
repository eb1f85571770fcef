//! Runs the conformance kit on an RDMA device of this host.

use invar_testkit::conformance::Testbed;
use invar_testkit::{nic_conformance, sim};
use invar_verbs::{VerbsConfig, VerbsNic};

/// This variable has the names of two devices that reach each other, or one name twice.
const DEVICES: &str = "INVAR_TEST_RDMA";

/// The checks where Linux's software RoCE (rxe, 6.1) departs from the rules. Invar's connections rely
/// on neither of these rules.
const RXE_EXCEPTIONS: [&str; 2] = [
    // A receive that is posted in ERR stays until another event wakes the responder.
    "a queue pair in ERR flushes what is posted",
    // No event wakes the requester.
    "a drained send queue goes on when it is resumed",
];

#[test]
fn rdma_device() {
    let Ok(names) = std::env::var(DEVICES) else {
        eprintln!("skipped: {DEVICES}=NAME,NAME says which RDMA devices to test");
        return;
    };
    // The kit's frames are large, because tests are not optimized.
    let conform = move || conform(&names);
    sim::roomy_thread().spawn(conform).expect("a thread").join().expect("the device conforms");
}

fn conform(names: &str) {
    let names: Vec<&str> = names.split(',').collect();
    let [a, b] = names[..] else { panic!("{DEVICES}={names:?}: must be two names") };
    let open = |name| VerbsNic::open(&VerbsConfig::new(name)).expect("an RDMA device");
    let is_rxe = |name: &str| name.starts_with("rxe");
    let except: &[&str] = if is_rxe(a) || is_rxe(b) { &RXE_EXCEPTIONS } else { &[] };
    nic_conformance(|| Testbed::in_real_time([a, b].map(open)), except);
}
