//! Tests strangers that call a listening comm of the plugin.

use std::process::Command;

use invar::{Handle, Wire};
use invar_core::auth::Service;
use invar_testkit::child;
use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::strangers::{Door, besiege};

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
