//! Queue pairs are created and connected with NCCL's attributes, and with the smaller MTU of both ends.

use std::rc::Rc;

use invar_core::auth::Session;
use invar_core::conn::wire::{MESSAGE_BYTES_MAX, PREFACE_BYTES, TIME_BYTES};
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream, Wire};
use invar_core::nic::{
    Access, AddressVector, Gid, LinkLayer, Mtu, Nic, PortAttr, QpCap, QpOptions, QpTransition,
    RtrAttr, RtsAttr,
};
use invar_testkit::duo;
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;

use crate::meddler::{Meddler, Plan};
use crate::rig::Gated;

/// Two NICs whose port attributes `change` has altered.
pub(crate) fn nics(change: impl Fn(usize, &mut PortAttr)) -> [Meddler; 2] {
    let nics: [NullNic; 2] = NullNic::ports();
    let mut i = 0;
    nics.map(|nic| {
        let mut port = nic.query_port().expect("a port");
        change(i, &mut port);
        i += 1;
        let nic = Meddler::new(nic);
        nic.plan.port.set(Some(port));
        nic
    })
}

/// The attributes with which queue pairs moved to RTR.
fn rtr(plan: &Plan) -> Vec<RtrAttr> {
    let of = |to: &QpTransition| match to {
        QpTransition::Rtr(attr) => Some(*attr),
        _ => None,
    };
    plan.moves.borrow().iter().filter_map(of).collect()
}

#[test]
fn attributes_are_those_of_nccl() {
    let settings = CommSettings {
        qps: 2,
        fifo_depth: 32,
        pkey_index: 3,
        sl: 5,
        traffic_class: 106,
        timeout: 18,
        retry_cnt: 6,
        use_inline: true,
        ..crate::rig::fragile()
    };
    let nics = nics(|i, port| {
        (port.gid_index, port.max_message_bytes) = [(3, 0), (4, 1 << 30)][i];
    });
    let [a, b] = &nics;
    let duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
    for (nic, (gid_index, max_send_wr)) in nics.iter().zip([(3, 96), (4, 160)]) {
        let caps = nic.plan.caps.take();
        let cap = QpCap { max_send_wr, max_recv_wr: 32, max_inline_data: 32 };
        assert_eq!(caps, [cap; 2], "three sends for each row, five where a message has two pieces");

        let moves = nic.plan.moves.take();
        let init = QpTransition::Init { pkey_index: 3, port_num: 1, access: Access::REMOTE_WRITE };
        assert_eq!(moves[..2], [init; 2]);
        let rts = QpTransition::Rts(RtsAttr {
            timeout: 18,
            retry_cnt: 6,
            rnr_retry: 7,
            sq_psn: 0,
            max_rd_atomic: 1,
        });
        assert_eq!([moves[3], moves[5]], [rts; 2]);
        let QpTransition::Rtr(attr) = moves[2] else { panic!("{moves:?}") };
        let ah = AddressVector {
            is_global: true,
            dgid: attr.ah.dgid,
            sgid_index: gid_index,
            hop_limit: 255,
            traffic_class: 106,
            dlid: 0,
            sl: 5,
            port_num: 1,
            udp_port: 0,
            udp_source_port: 0,
        };
        let rtr = RtrAttr {
            path_mtu: Mtu::Mtu4096,
            long_mtu_bytes: 0,
            dest_qp_num: attr.dest_qp_num,
            rq_psn: 0,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah,
            options: QpOptions::empty(),
            packet_keys: None,
            peer_host: None,
        };
        assert_eq!(attr, rtr);
    }
    let ends = duo.send.ends();
    assert_eq!(ends.peer_gid, b.query_port().expect("a port").gid);
}

#[test]
fn a_nic_is_told_from_which_host_the_peer_calls() {
    let nics = nics(|_, _| {});
    let plans = nics.each_ref().map(|nic| Rc::clone(&nic.plan));
    let [a, b] = nics;
    let (here, there) = Pipe::pair();
    let [(here, _), (there, _)] = [here, there].map(Gated::new);
    let settings = CommSettings::default();
    let mut connector = Connector::new(a, 1, here, None, settings, 0);
    let mut acceptor = Acceptor::new(b, 2, there, Session::UNKNOWN_PEER, settings, 0);
    assert!(connector.poll(0).expect("no error").is_none());
    assert!(acceptor.poll(0).expect("no error").is_none());
    assert!(connector.poll(0).expect("no error").is_some());
    let host: std::net::IpAddr = "192.0.2.7".parse().expect("an address");
    for plan in plans {
        assert_eq!(rtr(&plan).iter().map(|attr| attr.peer_host).collect::<Vec<_>>(), [Some(host)]);
    }
}

#[test]
fn a_completion_queue_has_the_room_that_the_device_allows_and_none_is_made_with_too_little() {
    let settings = CommSettings { qps: 64, ..CommSettings::default() };
    // Each of 256 rows, and a fence, has two completions on each queue pair.
    const NEEDED: usize = 2 * (256 + 1) * 64 + 1;
    let nics = nics(|_, _| {});
    let [a, b] = &nics;
    nics.iter().for_each(|nic| nic.plan.cq_depth_max.set(Some(NEEDED)));
    let connect = || duo::connect([a, b], [settings; 2], || {});
    assert!(connect().is_ok());
    b.plan.cq_depth_max.set(Some(NEEDED - 1));
    let error = connect().err().expect("the device has too little room").to_string();
    let numbers = format!("needed {NEEDED}, allowed (max_cqe) {}", NEEDED - 1);
    for part in ["NCCL_IB_QPS_PER_CONNECTION", "INVAR_FIFO_DEPTH", &numbers] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}

#[test]
fn an_infiniband_port_names_its_peer_by_lid() {
    let nics = nics(|i, port| (port.link_layer, port.lid) = (LinkLayer::Infiniband, i as u16 + 70));
    let [a, b] = &nics;
    let _duo = duo::connect([a, b], [CommSettings::default(); 2], || {}).expect("a connection");
    for (nic, dlid) in nics.iter().zip([71, 70]) {
        let [attr] = rtr(&nic.plan)[..] else { panic!("one queue pair") };
        assert_eq!((attr.ah.is_global, attr.ah.dlid), (false, dlid));
    }
}

#[test]
fn packets_have_a_global_route_where_either_port_requires_it_or_the_peer_is_in_another_subnet() {
    // A GID with its FLID and its subnet. The end's LID is 70.
    let gid =
        |(flid, subnet), i| Gid([0xfe, 0x80, 0, 0, 0, flid, 0, subnet, 0, 0, 0, 0, 0, 0, 0, i]);
    let (near, far, nameless) = ((7, 1), (8, 2), (0, 2));
    let (neither, first, second, both) =
        ([false, false], [true, false], [false, true], [true, true]);
    for (wire, needs_grh, ends, is_global, dlids) in [
        (Wire::Invar, neither, [near, near], neither, [70, 70]),
        (Wire::Invar, first, [near, near], both, [70, 70]),
        (Wire::Invar, second, [near, near], both, [70, 70]),
        (Wire::Invar, both, [near, near], both, [70, 70]),
        (Wire::Invar, neither, [near, far], both, [8, 7]),
        (Wire::Invar, both, [near, far], both, [8, 7]),
        (Wire::Invar, neither, [near, nameless], both, [70, 7]),
        (Wire::Nccl214, neither, [near, far], neither, [70, 70]),
        // NCCL's wire has no word for it.
        (Wire::Nccl214, first, [near, far], first, [70, 70]),
        (Wire::Nccl214, both, [near, far], both, [70, 70]),
    ] {
        let nics = nics(|i, port| {
            (port.link_layer, port.lid) = (LinkLayer::Infiniband, 70);
            (port.needs_grh, port.gid) = (needs_grh[i], gid(ends[i], i as u8));
        });
        let [a, b] = &nics;
        let settings = CommSettings { wire, ..CommSettings::default() };
        let mut duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
        assert_eq!(duo.send.isend(&Default::default(), 0), Ok(None));
        for (i, nic) in nics.iter().enumerate() {
            let [attr] = rtr(&nic.plan)[..] else { panic!("one queue pair") };
            assert_eq!((attr.ah.is_global, attr.ah.dlid), (is_global[i], dlids[i]));
            assert_eq!(attr.ah.dgid, gid(ends[1 - i], 1 - i as u8));
        }
    }
}

/// Connects two NICs while a man in the middle changes the connector's message and the acceptor's answer.
fn connect_changed(
    nics: [Meddler; 2],
    change_message: impl FnOnce(&mut [u8]),
    change_answer: impl FnOnce(&mut [u8]),
) -> [Rc<Plan>; 2] {
    let plans = nics.each_ref().map(|nic| Rc::clone(&nic.plan));
    let [a, b] = nics;
    let [(here, mut here_far), (there, mut there_far)] = [Pipe::pair(), Pipe::pair()];
    let settings = CommSettings::default();
    let mut connector = Connector::new(a, 1, here, None, settings, 0);
    let mut acceptor = Acceptor::new(b, 2, there, Session::UNKNOWN_PEER, settings, 0);
    const ANSWER_BYTES: usize = MESSAGE_BYTES_MAX + TIME_BYTES;
    let mut message = [0; ANSWER_BYTES];
    assert!(connector.poll(0).expect("no error").is_none());
    assert_eq!(here_far.recv(&mut message), Ok(MESSAGE_BYTES_MAX));
    change_message(&mut message);
    assert_eq!(there_far.send(&message[..MESSAGE_BYTES_MAX]), Ok(MESSAGE_BYTES_MAX));
    assert!(acceptor.poll(0).expect("no error").is_none());
    assert_eq!(there_far.recv(&mut message), Ok(ANSWER_BYTES));
    change_answer(&mut message);
    assert_eq!(here_far.send(&message), Ok(ANSWER_BYTES));
    assert!(connector.poll(0).expect("no error").is_some());
    plans
}

/// Offset of the features in a message, and their bit for a global route.
const FEATURES: usize = 16;
const GRH: u8 = 1 << 7;

#[test]
fn an_end_connects_to_a_version_that_does_not_know_the_need_for_a_global_route() {
    let nics = nics(|i, port| {
        (port.link_layer, port.lid) = (LinkLayer::Infiniband, 70);
        port.needs_grh = i == 0;
    });
    let [a, b] = connect_changed(
        nics,
        // An older version sends no such bit.
        |message| {
            assert_eq!(message[FEATURES] & GRH, GRH);
            message[FEATURES] &= !GRH;
        },
        // A newer version may send bits that this version does not know.
        |answer| {
            assert_eq!(answer[FEATURES + 1], 0);
            answer[FEATURES + 1] = 0xff;
        },
    );
    let is_global =
        |plan: &Plan| rtr(plan).iter().map(|attr| attr.ah.is_global).collect::<Vec<_>>();
    assert_eq!([is_global(&a), is_global(&b)], [[true], [false]]);
}

#[test]
fn the_smaller_mtu_of_both_ends_is_used() {
    for wire in [Wire::Invar, Wire::Nccl214] {
        for mtus in [[Mtu::Mtu4096, Mtu::Mtu1024], [Mtu::Mtu512, Mtu::Mtu2048]] {
            let nics = nics(|i, port| port.active_mtu = mtus[i]);
            let [a, b] = &nics;
            let settings = CommSettings { wire, ..CommSettings::default() };
            let mut duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
            assert_eq!(duo.send.isend(&Default::default(), 0), Ok(None));
            for nic in &nics {
                let [attr] = rtr(&nic.plan)[..] else { panic!("one queue pair") };
                assert_eq!(attr.path_mtu, mtus[0].min(mtus[1]));
            }
        }
    }
}

#[test]
fn an_acceptor_that_answers_with_a_larger_mtu_is_not_followed() {
    let nics = nics(|_, port| port.active_mtu = Mtu::Mtu1024);
    let larger = |answer: &mut [u8]| answer[PREFACE_BYTES + 536] = Mtu::Mtu4096 as u8;
    let [a, _] = connect_changed(nics, |_| {}, larger);
    assert_eq!(rtr(&a).iter().map(|attr| attr.path_mtu).collect::<Vec<_>>(), [Mtu::Mtu1024]);
}

/// The payload bytes of packets that two ends agree on. `long_mtus` are the abilities of their ports,
/// and `allowed` says whether their settings permit long packets.
fn mtus_agreed(long_mtus: [u32; 2], allowed: [bool; 2]) -> [u32; 2] {
    let nics = nics(|i, port| {
        (port.active_mtu, port.long_mtu_bytes) = (Mtu::Mtu1024, long_mtus[i]);
    });
    let settings = allowed.map(|long_mtu| CommSettings { long_mtu, ..CommSettings::default() });
    let _duo = duo::connect([&nics[0], &nics[1]], settings, || {}).expect("a connection");
    nics.each_ref().map(|nic| {
        let [attr] = rtr(&nic.plan)[..] else { panic!("one queue pair") };
        attr.mtu_bytes()
    })
}

#[test]
fn packets_are_longer_than_the_path_mtu_where_both_ends_can_do_so_and_may() {
    for (long_mtus, allowed, agreed) in [
        ([16_320, 8128], [true, true], 8128),
        ([1408, 16_320], [true, true], 1408),
        ([16_320, 0], [true, true], 1024),
        ([16_320, 1024], [true, true], 1024),
        ([16_320, 1411], [true, true], 1408),
        ([16_320, 16_320], [true, false], 1024),
        ([16_320, 16_320], [false, true], 1024),
    ] {
        assert_eq!(mtus_agreed(long_mtus, allowed), [agreed; 2], "{long_mtus:?} {allowed:?}");
    }
}

#[test]
fn what_one_end_alone_can_do_is_not_used() {
    let both = QpOptions::all();
    for (ours, theirs) in [(both, QpOptions::empty()), (QpOptions::ADAPTIVE_ROUTING, both)] {
        let nics = nics(|i, port| port.options = [ours, theirs][i]);
        let [a, b] = &nics;
        let settings = CommSettings { options: both, ..CommSettings::default() };
        let _duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
        for nic in &nics {
            let [attr] = rtr(&nic.plan)[..] else { panic!("one queue pair") };
            assert_eq!(attr.options, ours & theirs);
        }
    }
}
