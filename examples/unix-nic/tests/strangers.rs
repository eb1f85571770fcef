//! Sends datagrams of strangers to the sockets of queue pairs, whose names any process can see.

use std::fs;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use invar_core::nic::{Nic, SendOpcode, WcStatus};
use invar_core::roce::{Bth, HEADERS_BYTES_MAX, Headers, Opcode, Psn, Reth};
use invar_testkit::end::{Address, End, Link};
use unix_nic::UnixNic;

/// The sockets of a NIC's queue pairs.
fn sockets(nic: &UnixNic) -> Vec<SocketAddr> {
    let prefix = format!("@invar/{}/", nic.query_port().unwrap().gid);
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    let names = list.split_whitespace().filter(|name| name.starts_with(&prefix));
    names.map(|name| SocketAddr::from_abstract_name(&name[1..]).unwrap()).collect()
}

/// A packet that writes eight bytes to the memory of an end, and that its peer could have sent.
fn write(to: &Address, link: &Link) -> Vec<u8> {
    let bth = Bth {
        opcode: Opcode::WRITE_ONLY,
        dest_qp: to.qp_num,
        psn: Psn::new(link.psn),
        ..Bth::default()
    };
    let reth = Some(Reth { va: to.addr, rkey: to.rkey, dma_len: 8 });
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len = Headers { bth, reth, ..Headers::default() }.encode(&mut headers);
    [&headers[..len], &[0xee; 8]].concat()
}

#[test]
fn strangers_reach_no_queue_pair() {
    let nics = [UnixNic::open().unwrap(), UnixNic::open().unwrap()];
    let ends = [0, 1].map(|i| End::new(&nics[i], 64));
    let link = Link::default();
    let forged = write(&ends[1].address(), &link);
    let stranger = UnixDatagram::unbound().unwrap();

    // Before an end knows its peer anybody can send, but nothing of it counts.
    let early = sockets(&nics[1]);
    assert_eq!(early.len(), 2);
    for socket in &early {
        stranger.send_to_addr(&forged, socket).unwrap();
    }
    ends[0].connect(&ends[1], &link);
    ends[1].connect(&ends[0], &link);
    for socket in nics.iter().flat_map(sockets) {
        let error = stranger.send_to_addr(&forged, &socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
    nics[1].progress();
    assert_eq!(ends[1].buffer.read(0, 64), [0; 64]);

    // The peer itself gets through.
    let wr = ends[0].work(SendOpcode::RdmaWrite, 64, &ends[1]);
    ends[0].buffer.write(0, &[7; 64]);
    ends[0].post(&wr);
    nics[1].progress();
    assert_eq!(ends[0].wait().status, WcStatus::SUCCESS);
    assert_eq!(ends[1].buffer.read(0, 64), [7; 64]);
}
