//! Listening, connecting and accepting.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use invar::{Handle, Wire};
use invar_core::auth::Service;
use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::insider;

use super::rig::*;

/// A comm's handle that NCCL passes from thread to thread.
#[derive(Clone, Copy)]
struct Sendable(*mut c_void);

// SAFETY: The value is a number and no address.
unsafe impl Send for Sendable {}

fn close(send: *mut c_void, recv: *mut c_void) {
    // SAFETY: Nobody uses the comms any more.
    unsafe {
        assert_eq!((net.close_send)(send), Code::SUCCESS);
        assert_eq!((net.close_recv)(recv), Code::SUCCESS);
    }
}

#[test]
fn several_peers_are_accepted_by_one_listener_in_any_order_and_from_several_threads() {
    const PEERS: usize = 8;
    let listening = Listening::new();
    let listener = Sendable(listening.comm);
    let accepting: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(move || {
                let Sendable(comm) = { listener };
                let listening =
                    std::mem::ManuallyDrop::new(Listening { comm, handle: [0; HANDLE_BYTES] });
                let accept = || until("accept", || listening.accept());
                (0..PEERS / 2).map(|_| Sendable(accept())).collect::<Vec<_>>()
            })
        })
        .collect();
    let connecting: Vec<_> = (0..PEERS)
        .map(|_| {
            let mut handle = listening.handle;
            thread::spawn(move || Sendable(until("connect", || connect(&mut handle))))
        })
        .collect();
    let sends: Vec<Sendable> = connecting.into_iter().map(|t| t.join().unwrap()).collect();
    let recvs: Vec<Sendable> = accepting.into_iter().flat_map(|t| t.join().unwrap()).collect();
    let mut names: Vec<_> = sends.iter().chain(&recvs).map(|comm| comm.0).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2 * PEERS, "each comm is one of its own");
    sends.iter().zip(&recvs).for_each(|(send, recv)| close(send.0, recv.0));
}

#[test]
fn a_handle_may_be_used_again_when_its_connection_is_there() {
    let listening = Listening::new();
    let mut handle = listening.handle;
    for _ in 0..3 {
        let (send, recv) = listening.pair(&mut handle, connect);
        assert_eq!(handle, listening.handle, "nothing is left in the handle");
        close(send, recv);
    }
}

#[test]
fn a_handle_of_nobody_is_an_error() {
    FakeCuda::new().set("INVAR_CONNECT_TIMEOUT_MS", "500").run(|| {
        let mut handle = Listening::new().handle;
        // The listener of this handle is already closed.
        let code = until("an error", || {
            let mut comm = ptr::dangling_mut();
            let handle = handle.as_mut_ptr().cast();
            // SAFETY: The handle is valid, and `comm` has room for a comm.
            let code = unsafe { (net.connect)(0, handle, &mut comm, ptr::null_mut()) };
            assert!(comm.is_null());
            (code != Code::SUCCESS).then_some(code)
        });
        assert_eq!(code, Code::REMOTE_ERROR);
    });
}

/// NCCL does not connect again after an error, so nobody else would come.
#[test]
fn a_peer_that_ends_before_its_connection_is_complete_fails_accept() {
    let listening = Listening::new();
    let handle = Handle::from_bytes(listening.handle).unwrap();
    let service = if crate::TRANSPORT == "socket" { Service::Tcp } else { Service::Rdma };
    let peer = thread::spawn(move || {
        let mut stream = TcpStream::connect(handle.addr(Wire::Invar).unwrap()).unwrap();
        insider::call(&mut stream, &handle, service);
    });
    let code = until("an error", || {
        let mut comm = ptr::dangling_mut();
        // SAFETY: `comm` has room for a comm.
        let code = unsafe { (net.accept)(listening.comm, &mut comm, ptr::null_mut()) };
        assert!(comm.is_null());
        (code != Code::SUCCESS).then_some(code)
    });
    assert_eq!(code, Code::REMOTE_ERROR);
    peer.join().unwrap();
}

#[test]
fn an_attempt_that_nobody_continues_is_given_up() {
    FakeCuda::new().set("INVAR_CONNECT_TIMEOUT_MS", "200").run(|| {
        // Nobody accepts.
        let listening = Listening::new();
        let attempt = || assert!(connect(&mut listening.handle.clone()).is_none());
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        attempt();
        let before = open();
        for _ in 0..8 {
            thread::sleep(Duration::from_millis(500));
            attempt();
            assert!(open() <= before, "{} descriptors, and {before} before", open());
        }
    });
}
