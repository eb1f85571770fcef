//! Strangers at the server of `invar perf`.

use std::net::TcpStream;

use invar_core::auth::{Secret, Service};
use invar_testkit::insider;
use invar_testkit::strangers::{Door, besiege};

use crate::*;

#[test]
fn a_server_of_perf_keeps_strangers_off() {
    besiege("the server of perf", || {
        let (server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
        let (at, process) = (addr.parse().unwrap(), server.0.id());
        let door = Door { addr: at, secret: Secret::PUBLIC, service: Service::Perf, process };
        let visit = move || {
            let mut client = TcpStream::connect(&addr).unwrap();
            insider::prove(&mut client, Secret::PUBLIC, Service::Perf);
            (client, server)
        };
        (door, visit)
    });
}
