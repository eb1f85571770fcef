//! Tests which congestion control connections use.

use std::net::TcpListener;

use invar_core::param::{AddressFamily, PortRange};
use invar_linux::socket::{Listener, SocketSettings};
use invar_linux::tcp::Congestion;
use rustix::net::sockopt::tcp_congestion;

use crate::rig::{Pair, loopback, settings};

/// The congestion control at both ends of a connection within this host.
fn of_both_ends(family: AddressFamily, congestion: Congestion) -> [String; 2] {
    let device = loopback(family);
    let settings = SocketSettings { congestion, ..settings(1, 0) };
    let mut listener = Listener::bind(&device, PortRange::ANY, &settings).unwrap();
    let Pair { send, recv, .. } = &Pair::connect(&mut listener, &device, &settings);
    [send.main_socket(), recv.main_socket()].map(|socket| tcp_congestion(socket).unwrap())
}

#[test]
fn within_a_host_it_is_one_that_does_not_pace() {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        assert_eq!(of_both_ends(family, Congestion::default()), ["reno", "reno"]);
    }
}

#[test]
fn one_that_is_named_holds_within_a_host_too() {
    let systems = tcp_congestion(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let named = Congestion::named(&systems).unwrap();
    assert_eq!(of_both_ends(AddressFamily::Inet, named), [systems.clone(), systems]);
}
