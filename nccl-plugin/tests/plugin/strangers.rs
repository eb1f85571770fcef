//! Tests strangers that call a listening comm of the plugin.

use invar::{Handle, Wire};
use invar_core::auth::Service;
use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::strangers::{Door, besiege};

use super::rig::*;

#[test]
fn a_listening_comm_keeps_strangers_off() {
    match crate::TRANSPORT {
        "ib" => FakeCuda::new().with_null_verbs().run(|| besieged(Service::Rdma)),
        "socket" => besieged(Service::Tcp),
        _ => besieged(Service::Rdma),
    }
}

fn besieged(service: Service) {
    besiege(&format!("the plugin, {}", crate::TRANSPORT), || {
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
