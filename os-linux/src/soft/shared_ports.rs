//! UDP ports of software NICs whose peers know only a GID and a queue pair number.
//!
//! The verbs have no place for a UDP port, and many processes share the address of a host. So the upper
//! bits of a queue pair number tell the port: number 0 of the 1024 ports is [`FIRST_PORT`]. A process
//! takes the first free port, and needs no broker. The ports lie above those that Linux gives to sockets
//! without a port of their own, and above the source ports of software NICs.

use invar_core::param::PortRange;

use super::device::QpnRange;
use crate::udp::SOURCE_PORTS;

/// The lowest port.
pub const FIRST_PORT: u16 = 61_000;
/// Number of ports, and so of processes that share an address.
const PORTS: u16 = 1 << PORT_BITS;
const PORT_BITS: u32 = 10;
const QPN_BITS: u32 = 24 - PORT_BITS;
const _: () = assert!(FIRST_PORT > *SOURCE_PORTS.end());

/// All UDP ports that a queue pair number can tell.
pub fn ports() -> PortRange {
    PortRange::parse(&format!("{FIRST_PORT}-{}", FIRST_PORT + PORTS - 1)).expect("a range")
}

/// The port of a queue pair.
pub fn port(qpn: u32) -> u16 {
    FIRST_PORT + (qpn >> QPN_BITS & u32::from(PORTS - 1)) as u16
}

/// Returns the queue pair numbers that tell `port`, or `None` if no number tells this port.
pub fn qpns(port: u16) -> Option<QpnRange> {
    let number = port.checked_sub(FIRST_PORT).filter(|number| *number < PORTS)?;
    Some(QpnRange { first: u32::from(number) << QPN_BITS, bits: QPN_BITS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::TxSocket;

    #[test]
    fn a_queue_pair_number_tells_the_port() {
        for at in ports().ports() {
            let QpnRange { first, bits } = qpns(at).unwrap();
            let last = first + (1 << bits) - 1;
            assert_eq!([port(first), port(last)], [at, at]);
            assert!(last < 1 << 24);
        }
        assert_eq!(ports().ports().count(), usize::from(PORTS));
        assert_eq!([qpns(FIRST_PORT - 1), qpns(FIRST_PORT + PORTS)], [None, None]);
    }

    #[test]
    fn sockets_that_send_leave_the_shared_ports_free() {
        // Each takes a random port: of so many, some would surely take shared ones.
        let sockets: Vec<TxSocket> =
            (0..200).map(|_| TxSocket::bind("127.0.0.77:0".parse().unwrap()).unwrap()).collect();
        for socket in &sockets {
            let port = socket.local_addr().unwrap().port();
            assert_eq!(qpns(port), None, "{port}");
        }
    }
}
