//! Ports that an operator fixes.

use std::net::TcpListener;

use invar_core::param::PortRange;
use invar_testkit::unused;

use super::capture::{Captured, datagrams};
use crate::*;

/// So many that some are free, whatever else runs; below those that the kernel picks.
const PORTS: &str = "22000-22999";

fn is_one_of_them(port: u16) -> bool {
    PortRange::parse(PORTS).unwrap().ports().contains(&port)
}

#[test]
fn both_processes_receive_at_udp_ports_of_the_range() {
    let file = Captured::new(&["--soft-port", PORTS]);
    let bytes = file.bytes();
    let mut ports: Vec<u16> = datagrams(&bytes).iter().map(|one| one.dst.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert!(ports.len() == 2 && ports.iter().all(|port| is_one_of_them(*port)), "{ports:?}");
}

#[test]
fn servers_without_a_port_take_others_of_the_range() {
    let start = || {
        let args = ["perf", "--server", "127.0.0.1:0", "--port-range", PORTS];
        let (run, addr) = server(&mut invar(&args));
        let addr: std::net::SocketAddr = addr.parse().unwrap();
        (run, addr.port())
    };
    let ((_one, first), (_other, second)) = (start(), start());
    assert!(is_one_of_them(first) && is_one_of_them(second) && first != second);
}

#[test]
fn ranks_listen_in_the_range() {
    for transport in ["soft", "socket"] {
        let env = [("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", transport)];
        let args = ["coll", "all_reduce", "-e", "64", "-n", "2", "--port-range", PORTS];
        run_in(&env, &args).ok();
    }
}

#[test]
fn ranks_say_where_the_range_has_no_port_left() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let range = taken.local_addr().unwrap().port().to_string();
    // A rendezvous of its own may be at ::1, too, where a host has no other loopback.
    let _taken_too = TcpListener::bind(format!("[::1]:{range}"));
    let args = ["coll", "all_reduce", "-e", "8", "-n", "2", "--port-range", &range];
    let outcome = run(&args);
    let says = format!("INVAR_PORT_RANGE={range}: port {range} is taken at 127.0.0.1");
    assert!(outcome.line().contains(&says), "{}", outcome.line());

    // Where the rendezvous has another port, the links have none.
    let root = unused::address().to_string();
    let ranks = ["0", "1"].map(|rank| {
        let mut command = invar(&args);
        command.args(["--rank", rank, "--root", &root]).env("INVAR_COLL_SECRET", "a word");
        Run::start(command.env("NCCL_SHM_DISABLE", "1").env("INVAR_TRANSPORT", "soft"))
    });
    for outcome in ranks.map(Run::wait) {
        assert_eq!(outcome.status, Some(3), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(&says), "{}", outcome.stderr);
    }
}
