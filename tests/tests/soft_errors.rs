//! Tests what the software NIC refuses, and the outcome of failed work, beyond what the conformance kit checks.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use invar_core::nic::{
    Access, AddressVector, MemoryKeys, Nic, PollError, QpCap, QpState, QpTransition, RecvWr,
    RtrAttr, RtsAttr, SendOpcode, SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::namespaces::{Hosts, IPV6};
use invar_testkit::wait::until;

const LEN: usize = 8192;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EOVERFLOW: u16 = 75;

fn open() -> SoftNic {
    SoftNic::open(&SoftConfig::new("soft", "[::1]:0".parse().unwrap())).unwrap()
}

fn pair_with(link: &Link) -> [End<SoftNic>; 2] {
    End::pair([&open(), &open()], LEN, link)
}

fn pair() -> [End<SoftNic>; 2] {
    pair_with(&Link::default())
}

#[test]
fn all_bytes_of_a_peers_region_and_its_last_byte_alone_can_be_written() {
    let [a, b] = pair();
    a.post(&a.work(SendOpcode::RdmaWrite, LEN, &b));
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    let wr = a.work(SendOpcode::RdmaWrite, 1, &b);
    a.post(&SendWr { remote_addr: b.buffer.addr(LEN - 1), ..wr });
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
}

#[test]
fn our_own_memory_that_is_not_registered_for_it() {
    for case in 0..3 {
        let [a, b] = pair();
        let (mr, ..) = a.register(&a.buffer.memory, Access::REMOTE_READ);
        let [write, read] =
            [SendOpcode::RdmaWrite, SendOpcode::RdmaRead].map(|opcode| a.work(opcode, 8, &b));
        let (wr, sge) = match case {
            0 => (write, Sge { lkey: 5, ..write.sge }),
            1 => (write, Sge { addr: write.sge.addr + LEN as u64 - 7, ..write.sge }),
            _ => (read, Sge { lkey: mr.lkey(), ..read.sge }),
        };
        a.post(&SendWr { sge, ..wr });
        let outcome = (a.wait().status, a.qp.state());
        assert_eq!(outcome, (WcStatus::LOC_PROT_ERR, QpState::Err), "case {case}");
    }
}

#[test]
fn a_send_longer_than_the_receive() {
    let [a, b] = pair();
    b.post_recv(1, 8);
    a.post(&a.work(SendOpcode::Send, 9, &b));
    // Linux rxe reports these statuses too.
    assert_eq!(a.wait().status, WcStatus::REM_OP_ERR);
    assert_eq!(b.wait().status, WcStatus::LOC_QP_OP_ERR);
}

#[test]
fn a_receive_that_never_comes() {
    let rts = RtsAttr { rnr_retry: 2, ..Link::default().rts };
    let [a, b] = pair_with(&Link { rts, ..Link::default() });
    a.post(&a.work(SendOpcode::Send, 8, &b));
    assert_eq!(a.wait().status, WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(a.nic.counters().device.qps.rnr_naks_received, 3);
}

#[test]
fn a_message_that_has_completed_is_acknowledged_before_its_queue_pair_ends() {
    for transition in [QpTransition::Err, QpTransition::Reset] {
        let [a, b] = pair();
        b.post_recv(1, 8);
        a.post(&a.work(SendOpcode::Send, 8, &b));
        assert_eq!(b.wait().status, WcStatus::SUCCESS);
        b.nic.modify_qp(&b.qp, &transition).unwrap();
        assert_eq!(a.wait().status, WcStatus::SUCCESS, "{transition:?}");
    }
}

#[test]
fn a_peer_that_is_gone() {
    // The verbs' timeout of 8 µs is too short for software, so the NIC waits for its least timeout, twice.
    let rts = RtsAttr { timeout: 1, retry_cnt: 1, ..Link::default().rts };
    let [a, b] = pair_with(&Link { rts, ..Link::default() });
    let wr = a.work(SendOpcode::RdmaWrite, 8, &b);
    drop(b);
    let posted = Instant::now();
    a.post(&wr);
    a.post(&wr);
    assert_eq!(a.wait().status, WcStatus::RETRY_EXC_ERR);
    let waited = posted.elapsed();
    assert!(waited >= Duration::from_millis(67), "{waited:?}");
    assert_eq!(a.wait().status, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn a_queue_that_is_full_takes_work_again_once_some_completed() {
    let nics = [open(), open()];
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 2, max_inline_data: 0 };
    let ends = [0, 1].map(|i| End::with(&nics[i], nics[i].alloc_pd().unwrap(), &cap, 16, LEN));
    // Nobody answers yet, since the other end is not ready to receive.
    ends[0].connect(&ends[1], &Link::default());
    let [a, b] = &ends;
    let wr = a.work(SendOpcode::RdmaWrite, 8, b);
    (0..4).for_each(|_| a.post(&wr));
    let error = a.nic.post_send(&a.qp, &[wr]).unwrap_err();
    assert_eq!((error.errno, error.cause), (ENOMEM, "send queue full"));
    let recv = RecvWr { wr_id: 0, sge: a.sge(0, 8), ..RecvWr::default() };
    a.nic.post_recv(&a.qp, &recv).unwrap();
    a.nic.post_recv(&a.qp, &recv).unwrap();
    let error = a.nic.post_recv(&a.qp, &recv).unwrap_err();
    assert_eq!((error.errno, error.cause), (ENOMEM, "receive queue full"));
    b.connect(a, &Link::default());
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    a.post(&wr);
}

#[test]
fn a_completion_queue_that_runs_over_says_so_and_ends_its_queue_pair() {
    let nics = [open(), open()];
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_inline_data: 0 };
    let a = End::with(&nics[0], nics[0].alloc_pd().unwrap(), &cap, 2, LEN);
    let b = End::new(&nics[1], LEN);
    a.connect(&b, &Link::default());
    b.connect(&a, &Link::default());
    let wr = a.work(SendOpcode::RdmaWrite, 8, &b);
    (0..3).for_each(|_| a.post(&wr));
    // The thread receives the acknowledges, so all requests complete without a poll.
    until("overrun", || a.qp.state() == QpState::Err);
    let mut wcs = [Wc::default(); 4];
    assert_eq!(a.nic.poll(&a.cq, &mut wcs), Ok(2));
    for wc in &wcs[..2] {
        assert_eq!((wc.status, wc.opcode), (WcStatus::SUCCESS, WcOpcode::RDMA_WRITE));
    }
    for _ in 0..2 {
        assert_eq!(a.nic.poll(&a.cq, &mut wcs), Err(PollError { errno: EOVERFLOW }));
    }
}

#[test]
fn calls_with_arguments_that_cannot_be() {
    let nic = open();
    let end = End::new(&nic, 64);
    let refused = |result: Result<(), invar_core::nic::NicError>, cause: &str| {
        let error = result.unwrap_err();
        assert_eq!((error.errno, error.cause), (EINVAL, cause));
    };
    let stranger = open();
    let pd = stranger.alloc_pd().unwrap();
    let memory = &end.buffer.memory;
    let another = "an object of another device";
    refused(nic.reg_mr(&pd, memory, Access::LOCAL_WRITE).map(drop), another);
    refused(nic.create_qp(&pd, &end.cq, &QpCap::default()).map(drop), another);
    let cq = stranger.create_cq(1).unwrap();
    refused(nic.create_qp(&end.pd, &cq, &QpCap::default()).map(drop), another);
    refused(stranger.modify_qp(&end.qp, &QpTransition::Err), another);
    let access = nic.reg_mr(&end.pd, memory, Access::REMOTE_WRITE).map(drop);
    refused(access, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
    refused(nic.create_cq(0).map(drop), "the depth is not from 1 to 2^22");
    let cap = QpCap { max_send_wr: 2049, ..QpCap::default() };
    refused(nic.create_qp(&end.pd, &end.cq, &cap).map(drop), "max_send_wr exceeds the send queue");
    let cap = QpCap { max_inline_data: 1025, ..QpCap::default() };
    let cause = "max_inline_data exceeds 1024 bytes";
    refused(nic.create_qp(&end.pd, &end.cq, &cap).map(drop), cause);

    // The largest capacities that the NIC accepts.
    let cap = QpCap { max_send_wr: 2048, max_recv_wr: 2048, max_inline_data: 1024 };
    nic.create_qp(&end.pd, &end.cq, &cap).unwrap();

    let mut rtr = RtrAttr::default();
    rtr.ah.dgid = IpAddr::from([127, 0, 0, 1]).into();
    let cause = "the peer's GID is of the other IP version";
    refused(nic.modify_qp(&end.qp, &QpTransition::Rtr(rtr)), cause);
    rtr.ah.dgid = Default::default();
    let cause = "the peer's GID is no address of a host";
    refused(nic.modify_qp(&end.qp, &QpTransition::Rtr(rtr)), cause);

    end.connect(&end, &Link::default());
    let wr = end.work(SendOpcode::RdmaWrite, 8, &end);
    let wr = SendWr {
        sge: Sge { lkey: 1, ..wr.sge },
        flags: wr.flags | invar_core::nic::SendFlags::INLINE,
        ..wr
    };
    refused(nic.post_send(&end.qp, &[wr]), "inline bytes outside of registered memory");
}

#[test]
fn an_address_that_is_not_ours() {
    let config = SoftConfig::new("soft9", "[2001:db8::77]:0".parse().unwrap());
    let error = SoftNic::open(&config).map(drop).unwrap_err();
    let text = "soft9: no interface of this host has the address 2001:db8::77";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_peer_on_another_host_that_names_an_address_of_this_host_is_refused() {
    let nic = open();
    let end = End::new(&nic, 64);
    let (ours, other) = ("::1".parse().unwrap(), "2001:db8::9".parse().unwrap());
    let port = nic.query_port().unwrap();
    let connect = |ip: IpAddr, udp_port, peer_host| {
        nic.modify_qp(&end.qp, &QpTransition::Reset).unwrap();
        let access = Access::REMOTE_WRITE;
        let init = QpTransition::Init { pkey_index: 0, port_num: 1, access };
        nic.modify_qp(&end.qp, &init).unwrap();
        let ah = AddressVector { dgid: ip.into(), udp_port, ..AddressVector::default() };
        let rtr = RtrAttr { ah, peer_host, ..RtrAttr::default() };
        nic.modify_qp(&end.qp, &QpTransition::Rtr(rtr)).map_err(|error| error.cause)
    };
    let service = port.udp_port ^ 1;
    let cause = "the peer's GID is of this host, and its TCP connection comes from another host";
    assert_eq!(connect(ours, service, Some(other)), Err(cause));
    for (ip, udp_port, peer_host) in [
        (ours, service, Some(ours)),
        (ours, service, None),
        (other, service, Some(other)),
        // A queue pair that is connected to itself.
        (ours, port.udp_port, Some(other)),
    ] {
        assert_eq!(connect(ip, udp_port, peer_host), Ok(()), "{ip} {udp_port} {peer_host:?}");
    }
}

#[test]
fn a_port_that_is_taken() {
    let taken = std::net::UdpSocket::bind("[::1]:0").unwrap();
    let config = SoftConfig::new("soft", taken.local_addr().unwrap());
    let error = SoftNic::open(&config).map(drop).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn packets_that_the_interface_has_become_too_small_for_are_told_of() {
    let Some(hosts) = Hosts::or_skip(9000) else { return };
    let nics = [0, 1].map(|host| {
        let address = (IPV6[host].parse::<Ipv6Addr>().unwrap(), 0).into();
        hosts.call(host, || SoftNic::open(&SoftConfig::new("soft", address)).unwrap())
    });
    let rts = RtsAttr { timeout: 10, retry_cnt: 1, ..Link::default().rts };
    let [a, b] = End::pair(nics.each_ref(), LEN, &Link { rts, ..Link::default() });
    a.post(&a.work(SendOpcode::RdmaWrite, LEN, &b));
    assert_eq!(a.wait().status, WcStatus::SUCCESS);
    assert_eq!(a.nic.notices().could_not_send, None);
    hosts.ip(0, "link set v0 mtu 1500").unwrap();
    a.post(&a.work(SendOpcode::RdmaWrite, LEN, &b));
    assert_eq!(a.wait().status, WcStatus::RETRY_EXC_ERR);
    let text = a.nic.notices().to_string();
    let why = "s before (the MTU of the interface, or of the path, is smaller)";
    assert!(text.starts_with("could not send ") && text.ends_with(why), "{text}");
}
