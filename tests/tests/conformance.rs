//! Runs the conformance kit on every NIC of Invar.

use invar_core::nic::Mtu;
use invar_core::roce::qp::Tuning;
use invar_linux::either::Either;
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::conformance::Testbed;
use invar_testkit::nic_conformance;
use invar_testkit::null::NullNic;
use invar_testkit::sim::World;

#[test]
fn null_nic() {
    nic_conformance(|| Testbed { ports: NullNic::ports(), pass: Box::new(|ns| ns) }, &[]);
}

#[test]
fn software_nic() {
    for ip in ["127.0.0.1", "[::1]"] {
        let open = |name| {
            let address = format!("{ip}:0").parse().expect("an address");
            SoftNic::open(&SoftConfig::new(name, address)).expect("a software NIC")
        };
        nic_conformance(|| Testbed::in_real_time(["soft0", "soft1"].map(open)), &[]);
    }
}

#[test]
fn one_of_two_kinds_of_nics() {
    type Nic = Either<NullNic, SoftNic>;
    let first = || NullNic::ports().map(Nic::First);
    nic_conformance(|| Testbed { ports: first(), pass: Box::new(|ns| ns) }, &[]);
    let open = |name| {
        let address = "127.0.0.1:0".parse().expect("an address");
        SoftNic::open(&SoftConfig::new(name, address)).expect("a software NIC")
    };
    let second = || ["soft0", "soft1"].map(|name| Nic::Second(open(name)));
    nic_conformance(|| Testbed::in_real_time(second()), &[]);
}

#[test]
fn simulated_nic() {
    for ipv6 in [false, true] {
        let make = || {
            let world = World::new(1, ipv6, Tuning::default());
            let ports = [(); 2].map(|()| world.add_host(Mtu::Mtu1024));
            let pass = move |ns| {
                world.advance(ns);
                ns
            };
            Testbed { ports, pass: Box::new(pass) }
        };
        nic_conformance(make, &[]);
    }
}
