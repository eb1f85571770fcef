use std::time::{Duration, Instant};

use invar_core::nic::{MemoryKeys, SendFlags, Sge};

use super::*;
use crate::fake::{ECE, Fake, LIBRARY, WITH_ECE};
use crate::sys::*;

/// More than any event takes.
const PATIENCE: Duration = Duration::from_secs(20);

const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_inline_data: 64 };

/// Dropped from the top: what calls the fake is gone before another test may have it.
struct Rig {
    qp: Qp,
    cq: Cq,
    pd: Pd,
    nic: VerbsNic,
    fake: Fake,
}

impl Rig {
    fn new() -> Rig {
        Self::on(&LIBRARY)
    }

    fn on(library: &'static Library) -> Rig {
        let fake = Fake::new();
        let nic = VerbsNic::open_with(library, &VerbsConfig::new("fake0")).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(8).unwrap();
        let qp = nic.create_qp(&pd, &cq, &CAP).unwrap();
        Rig { qp, cq, pd, nic, fake }
    }

    /// What the device is said to have reported of a queue pair, once it has.
    fn report(&self, qp: &Qp) -> NicError {
        let start = Instant::now();
        loop {
            if let Err(error) = self.nic.check(qp) {
                return error;
            }
            assert!(start.elapsed() < PATIENCE, "no event in {PATIENCE:?}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_port_is_named_by_its_device_and_number() {
    let port = |name| {
        let VerbsConfig { device, port_num, .. } = VerbsConfig::new(name);
        (device, port_num)
    };
    assert_eq!(port("mlx5_0"), ("mlx5_0".to_owned(), 1));
    assert_eq!(port("mlx5_0:2"), ("mlx5_0".to_owned(), 2));
}

#[test]
fn everything_is_released_once_in_the_order_that_libibverbs_demands() {
    let Rig { qp, cq, pd, nic, fake } = Rig::new();
    let memory = nic.alloc(64).unwrap();
    let mr = nic.reg_mr(&pd, &memory, Access::LOCAL_WRITE).unwrap();
    // The worst of orders.
    drop((nic, pd, cq, mr));
    assert_eq!(fake.released(), ["dereg_mr"]);
    drop(qp);
    let order = ["dereg_mr", "destroy_qp", "destroy_cq", "dealloc_pd", "close_device"];
    assert_eq!(fake.released(), order);
}

#[test]
fn a_list_is_posted_in_order_and_a_refusal_names_its_place() {
    let rig = Rig::new();
    let wrs: Vec<SendWr> = (0..40).map(|wr_id| SendWr { wr_id, ..SendWr::default() }).collect();
    for len in [1, 2, 3, 16, 17, 40] {
        let before = rig.fake.posted().len();
        rig.nic.post_send(&rig.qp, &wrs[..len]).unwrap();
        assert_eq!(rig.fake.posted()[before..], (0..len as u64).collect::<Vec<_>>());
    }
    for at in [0, 1, 15, 16, 35] {
        rig.fake.refuse(at);
        let error = rig.nic.post_send(&rig.qp, &wrs).unwrap_err();
        assert_eq!((u64::from(error.index), error.errno), (at, libc::ENOMEM));
        assert_eq!(error.cause, "the send queue is full");
    }
}

#[test]
fn inline_bytes_outside_of_registered_memory_never_reach_the_driver() {
    let rig = Rig::new();
    let memory = rig.nic.alloc(4096).unwrap();
    let mr = rig.nic.reg_mr(&rig.pd, &memory, Access::LOCAL_WRITE).unwrap();
    let addr = invar_core::nic::Memory::addr(&memory);
    let inline = |addr, length| SendWr {
        flags: SendFlags::INLINE,
        sge: Sge { addr, length, lkey: mr.lkey() },
        ..SendWr::default()
    };
    let good = [inline(addr, 64), inline(addr + 4032, 64), inline(1, 0)];
    rig.nic.post_send(&rig.qp, &good).unwrap();
    for bad in [inline(addr - 1, 8), inline(addr + 4089, 8), inline(u64::MAX, 8)] {
        let error = rig.nic.post_send(&rig.qp, &[good[0], bad]).unwrap_err();
        assert_eq!((error.errno, error.index), (libc::EFAULT, 1));
    }
    drop(mr);
    assert!(rig.nic.post_send(&rig.qp, &good[..1]).is_err());
    assert_eq!(rig.fake.posted().len(), good.len() + 3);
}

#[test]
fn an_event_of_a_queue_pair_is_of_that_one_alone() {
    let rig = Rig::new();
    let other = rig.nic.create_qp(&rig.pd, &rig.cq, &CAP).unwrap();
    rig.fake.raise(ibv_async_element { qp: rig.qp.raw() }, IBV_EVENT_QP_FATAL);
    assert_eq!(rig.report(&rig.qp).cause, "QP fatal");
    assert_eq!(rig.nic.check(&other), Ok(()));
}

#[test]
fn an_event_of_the_completion_queue_or_the_device_is_of_all_on_it() {
    let rig = Rig::new();
    let elsewhere = rig.nic.create_cq(8).unwrap();
    let other = rig.nic.create_qp(&rig.pd, &elsewhere, &CAP).unwrap();
    rig.fake.raise(ibv_async_element { cq: rig.cq.raw.as_ptr() }, IBV_EVENT_CQ_ERR);
    assert_eq!(rig.report(&rig.qp).cause, "CQ error");
    assert_eq!(rig.nic.check(&other), Ok(()));
    rig.fake.raise(ibv_async_element { port_num: 0 }, IBV_EVENT_DEVICE_FATAL);
    assert_eq!(rig.report(&other).cause, "device fatal");
}

#[test]
fn a_soft_peer_that_hardware_cannot_send_to_is_refused_by_its_port() {
    let rig = Rig::new();
    let towards = |udp_port| {
        let ah = invar_core::nic::AddressVector { udp_port, ..Default::default() };
        let rtr = invar_core::nic::RtrAttr { ah, ..Default::default() };
        rig.nic.modify_qp(&rig.qp, &QpTransition::Rtr(rtr)).unwrap_err()
    };
    assert!(towards(40_000).to_string().ends_with("its UDP port 40000"), "{}", towards(40_000));
    // The fake refuses all others, as a kernel would.
    assert_eq!((towards(4791).errno, towards(0).errno), (libc::EINVAL, libc::EINVAL));
}

#[test]
fn what_a_driver_offers_beyond_the_verbs_goes_both_ways() {
    let rig = Rig::on(&WITH_ECE);
    let ece = rig.nic.query_ece(&rig.qp).unwrap();
    assert_eq!((ece.vendor_id, ece.options, ece.comp_mask), (ECE.vendor_id, ECE.options, 0));
    rig.nic.set_ece(&rig.qp, &Ece { options: 4, ..ece }).unwrap();
    assert_eq!(rig.fake.posted(), [4]);
    let error = rig.nic.set_ece(&rig.qp, &Ece { vendor_id: 1, ..ece }).unwrap_err();
    assert_eq!((error.verb, error.errno), (Verb::SetEce, libc::EINVAL));
    assert!(error.to_string().contains("vendor 1"), "{error}");
}

#[test]
fn an_old_library_offers_nothing_beyond_the_verbs() {
    let rig = Rig::new();
    assert_eq!(rig.nic.query_ece(&rig.qp), None);
    let error = rig.nic.set_ece(&rig.qp, &Ece::default()).unwrap_err();
    assert_eq!(error.errno, libc::EOPNOTSUPP);
}
