//! Tests large amounts of data to send while other queue pairs wait.

use super::*;

#[test]
fn a_read_that_asks_for_very_much_is_answered_in_parts() {
    const LEN: usize = 16 << 20;
    let [mut a, mut b] = pair("127.0.0.1", LEN, QpOptions::empty());
    let qpn = a.qpn;
    a.post(qpn, SendOpcode::RdmaRead, 8, target(&b));
    a.transmit(0);
    let mut request = a.wire.packets().remove(0);
    // Change the length in the RETH. Over IPv4 the ICRC of a foreign peer is not verified.
    request[24..28].copy_from_slice(&(LEN as u32).to_be_bytes());
    b.device.handle_datagram(
        0,
        SocketAddr::new(a.address().ip(), SOURCE_PORTS.port(a.qpn)),
        &request,
    );
    let (mut sent, mut parts) = (0, 0);
    while b.device.is_ready() {
        b.transmit(0);
        sent += b.wire.trains.drain(..).map(|train| train.datagrams.len()).sum::<usize>();
        parts += 1;
        assert!(sent <= 4096 * parts, "{sent} packets in {parts} calls");
    }
    assert_eq!(sent, LEN / 1024);
}

#[test]
fn a_flood_on_one_queue_pair_does_not_keep_others_waiting() {
    let [mut a, mut b] = pair("::1", 1 << 20, QpOptions::empty());
    let other = a.create_qp();
    a.start(other, b.address(), b.qpn ^ 1, QpOptions::empty());
    let flood = a.qpn;
    // This message opens the window of the first queue pair.
    a.write(flood, 1 << 20, target(&b));
    a.transmit(0);
    while !a.wire.trains.is_empty() {
        carry(&mut a, &mut b, 0, |_| false);
        carry(&mut b, &mut a, 0, |_| false);
    }
    a.write(flood, 1 << 20, target(&b));
    a.write(other, 8, target(&b));
    a.transmit(0);
    let of_other = |bytes: &Vec<u8>| Packet::decode(bytes).unwrap().headers.bth.dest_qp != b.qpn;
    let packets = a.wire.packets();
    let turn = packets.iter().position(of_other).unwrap();
    assert!(turn < packets.len() / 2, "{turn} of {}", packets.len());
}
