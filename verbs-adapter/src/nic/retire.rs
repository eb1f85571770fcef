//! Ends queue pairs without waiting for them.
//!
//! rdma_rxe destroys a queue pair only once the packets that it has sent are gone. After a link went down they wait
//! until the kernel gives up the peer's MAC address, which takes seconds.

use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

use super::handles::Qp;

/// Drops a queue pair in a thread of its own.
pub(super) fn retire(qp: Qp) {
    static RETIRED: OnceLock<Option<Sender<Qp>>> = OnceLock::new();
    let retired = RETIRED.get_or_init(|| {
        let (sender, retired) = mpsc::channel::<Qp>();
        let work = move || retired.into_iter().for_each(drop);
        thread::Builder::new().name("invar-retire".into()).spawn(work).ok().map(|_| sender)
    });
    if let Some(retired) = retired {
        // An error has the queue pair, and drops it.
        let _ = retired.send(qp);
    }
}
