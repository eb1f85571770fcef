//! Tests strangers that call a listening comm of the plugin.

use std::process::Command;

use invar::{Handle, UniqueId, Wire};
use invar_core::auth::Service;
use invar_testkit::child;
use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::strangers::{Door, besiege};
use nccl_net_invar::tables::ncclCollNetPlugin_v9 as collnet;

use super::rig::*;

/// The listening comm's process must not take on memory, so each test has a process of its own.
fn over(transport: &str) -> impl FnOnce(&mut Command) {
    move |command| {
        command.env("INVAR_TRANSPORT", transport);
    }
}

#[test]
fn a_listening_comm_on_the_software_nic_keeps_strangers_off() {
    child::run(over("soft"), || besieged("the plugin, on the software NIC", Service::Rdma));
}

#[test]
fn a_listening_comm_over_tcp_keeps_strangers_off() {
    child::run(over("socket"), || besieged("the plugin, over TCP", Service::Tcp));
}

#[test]
fn a_listening_comm_on_an_rdma_device_keeps_strangers_off() {
    let fake = FakeCuda::new().with_null_verbs();
    fake.run(|| besieged("the plugin, on an RDMA device", Service::Rdma));
}

#[test]
fn a_listening_comm_of_collnet_keeps_strangers_off() {
    child::run(over("socket"), || {
        besiege("collNet", || {
            init();
            let (mut handle, mut listening) = ([0; HANDLE_BYTES], ptr::null_mut());
            // SAFETY: The call gives room for a handle and a comm.
            let code = unsafe { (collnet.listen)(0, handle.as_mut_ptr().cast(), &mut listening) };
            assert_eq!(code, Code::SUCCESS);
            let id = UniqueId::from_bytes(handle).unwrap();
            let (addr, secret, process) = (id.addr(), id.secret(), std::process::id());
            let door = Door { addr, secret, service: Service::Rendezvous, process };
            // The ranks meet, and the strangers have called before.
            let visit = move || {
                let (mut handle, mut comm) = (handle, ptr::null_mut());
                let mut handles = [handle.as_mut_ptr().cast()];
                // SAFETY: There is a handle for the one rank, and the call gives room for a comm.
                unsafe {
                    let handles = handles.as_mut_ptr();
                    let code = (collnet.connect)(handles, 1, 0, listening, &mut comm);
                    assert_eq!((code, comm.is_null()), (Code::SUCCESS, false));
                    assert_eq!((collnet.close_listen)(listening), Code::SUCCESS);
                    assert_eq!((collnet.close_coll)(comm), Code::SUCCESS);
                }
            };
            (door, visit)
        });
    });
}

fn besieged(what: &str, service: Service) {
    besiege(what, || {
        let listening = Listening::new();
        let handle = Handle::from_bytes(listening.handle).unwrap();
        let addr = handle.addr(Wire::Invar).unwrap();
        let door = Door {
            addr,
            secret: handle.secret(None).unwrap(),
            service,
            process: std::process::id(),
        };
        let visit = move || {
            let mut handle = listening.handle;
            let (send, recv) = listening.pair(&mut handle, connect);
            let (from, to) = (vec![7; 64], vec![0xa5; 64]);
            let pair =
                Pair { send, recv, from_mr: reg(send, &from), to_mr: reg(recv, &to), from, to };
            let receive = pair.post(&[(0, 32, 1)]);
            let sent = pair.send(0, 32, 1);
            wait(&[receive, sent]);
            assert!(pair.to[..32] == [7; 32] && pair.to[32..] == [0xa5; 32]);
        };
        (door, visit)
    });
}
