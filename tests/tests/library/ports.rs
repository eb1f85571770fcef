//! Tests ports that settings fix.

use invar::PortRange;
use invar_core::conn::Wire;

use crate::*;

/// A range of so many ports that some are free, whatever else runs. It is below the ports that the
/// kernel picks.
const PORTS: &str = "21000-21999";

#[test]
fn nics_and_listeners_take_ports_of_their_ranges_and_each_end_knows_the_others() {
    let settings = settings(&[("INVAR_SOFT_PORT", PORTS), ("INVAR_PORT_RANGE", PORTS)]);
    let range = PortRange::parse(PORTS).unwrap().ports();
    let open = || Device::open_at_for("::1".parse().unwrap(), &settings).unwrap();
    let devices = [open(), open()];
    let ports = devices.each_ref().map(|device| device.info().udp_port.unwrap());
    assert!(ports.iter().all(|port| range.contains(port)) && ports[0] != ports[1], "{ports:?}");

    let listener = Listener::bind(&devices[0], &settings).unwrap();
    let port = listener.handle().addr(Wire::Invar).unwrap().port();
    assert!(range.contains(&port), "{port}");
    let connecting = SendComm::connect(&devices[1], &listener.handle(), &settings).unwrap();
    let sender = std::thread::spawn(|| connecting.wait().unwrap());
    let recv = listener.accept_within(LIMIT).unwrap();
    let send = sender.join().unwrap();
    let of = |ends: invar::Ends| [ends.peer_udp_port, ends.udp_port];
    assert_eq!([of(send.ends()), of(recv.ends())], [ports, [ports[1], ports[0]]]);
}

#[test]
fn on_the_wire_of_nccl_2_14_the_port_is_that_of_roce_unless_another_is_set() {
    let ports = |pairs: &[_]| settings(pairs).udp_ports().ports();
    assert_eq!(ports(&[]), 0..=0);
    assert_eq!(ports(&[("INVAR_WIRE", "nccl-2.14")]), 4791..=4791);
    assert_eq!(ports(&[("INVAR_WIRE", "nccl-2.14"), ("INVAR_SOFT_PORT", "7")]), 7..=7);
}

#[test]
fn a_port_that_is_taken_is_named_with_the_variable() {
    let device = loopback();
    let taken = device.info().udp_port.unwrap();
    let settings = Settings::default().soft_ports(PortRange::only(taken));
    let error = Device::open_at_for("::1".parse().unwrap(), &settings).unwrap_err().to_string();
    let says = format!("INVAR_SOFT_PORT={taken}: port {taken} is taken at ::1; a range");
    assert!(error.contains(&says), "{error}");

    let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
    let taken = listener.local_addr().unwrap().port();
    let settings = Settings::default().listen_ports(PortRange::only(taken));
    let error = Listener::bind(&device, &settings).err().unwrap().to_string();
    let says = format!("listening at ::1: INVAR_PORT_RANGE={taken}: port {taken} is taken at ::1");
    assert!(error.starts_with(&says), "{error}");
}
