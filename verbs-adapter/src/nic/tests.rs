use std::sync::OnceLock;

use invar_core::nic::{
    AddressVector, MemoryKeys, Mtu, Refusal, Refused, RtrAttr, RtsAttr, SendFlags, SendList, Sge,
};
use invar_test_wait::until;

use super::*;
use crate::fake::{
    BARE, ECE, Fake, GID_ENTRY, LIBRARY, MAX_CQE, VECTORS, WITH_AH, WITH_CHANNELS, WITH_ECE,
    WITH_GID_TABLE, WITH_IOVA2, WITH_STATE, WITHOUT_ECE_IN_FIRMWARE, just_loaded,
};
use crate::sys::*;

mod channel;

const CAP: QpCap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_inline_data: 64 };

/// Fields drop from the top: the objects that call the fake are gone before another test can take it.
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
        Self::with(library, &VerbsConfig::new("fake0"))
    }

    fn with(library: &'static Library, config: &VerbsConfig) -> Rig {
        let fake = Fake::new();
        let nic = VerbsNic::open_with(library, config).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(8).unwrap();
        let qp = nic.create_qp(&pd, &cq, &CAP).unwrap();
        Rig { qp, cq, pd, nic, fake }
    }

    /// Waits for the end of a search for the way to a peer, and returns its answer.
    fn resolved(&self, gid: &Gid) -> Resolution {
        let answer =
            || Some(self.nic.resolve(0, gid)).filter(|found| *found != Resolution::Pending);
        until("the end of the search", answer)
    }

    /// Waits for the device's reported event of a queue pair, and returns it.
    fn report(&self, qp: &Qp) -> NicError {
        until("an event of the device", || self.nic.check(qp).err())
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
fn the_device_tells_how_many_completions_a_queue_may_have() {
    assert_eq!(Rig::new().nic.cq_depth_max(), MAX_CQE as usize);
}

#[test]
fn everything_is_released_once_in_the_order_that_libibverbs_demands() {
    let Rig { qp, cq, pd, nic, fake } = Rig::new();
    let memory = nic.alloc(64).unwrap();
    let mr = nic.reg_mr(&pd, &memory, Access::LOCAL_WRITE).unwrap();
    // Drops the objects in the worst order.
    drop((nic, pd, cq, mr));
    assert_eq!(fake.calls(), ["reg_mr", "dereg_mr"]);
    drop(qp);
    let order = ["reg_mr", "dereg_mr", "destroy_qp", "destroy_cq", "dealloc_pd", "close_device"];
    assert_eq!(fake.calls(), order);
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
        rig.fake.refuse(at, libc::ENOMEM);
        let error = rig.nic.post_send(&rig.qp, &wrs).unwrap_err();
        assert_eq!((u64::from(error.index), error.errno), (at, libc::ENOMEM));
        let text = "ibv_post_send failed: the send queue is full (errno 12); number of the work \
                    request in its list ";
        assert_eq!(error.to_string(), format!("{text}{at}"));
    }
}

#[test]
fn a_refused_post_of_the_data_path_is_explained_by_place_and_verb() {
    let rig = Rig::new();
    let mut list = SendList::new([0, 1, 2].map(|wr_id| SendWr { wr_id, ..SendWr::default() }));
    let mut refusal = Refusal::default();
    for (from, at) in [(0, 0), (0, 2), (1, 0), (1, 1)] {
        rig.fake.refuse(from as u64 + at, libc::ENOMEM);
        let refused = rig.nic.post_list(&rig.qp, &mut list, from, &mut refusal).unwrap_err();
        let error = rig.nic.explain(&rig.qp, list.wrs_from(from), refused);
        let seen = (error.verb, u64::from(error.index), error.errno);
        assert_eq!(seen, (Verb::PostSend, at, libc::ENOMEM));
        assert!(error.cause.contains("send queue is full"), "{error}");
    }
    let refused = Refused { errno: libc::ENOMEM };
    let error = rig.nic.explain(&rig.qp, &[], refused);
    assert_eq!((error.verb, error.errno), (Verb::PostRecv, libc::ENOMEM));
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
    let other_key = SendWr { sge: Sge { lkey: !mr.lkey(), ..good[0].sge }, ..good[0] };
    for bad in [inline(addr - 1, 8), inline(addr + 4089, 8), inline(u64::MAX, 8), other_key] {
        let error = rig.nic.post_send(&rig.qp, &[good[0], bad]).unwrap_err();
        assert_eq!((error.errno, error.index), (libc::EFAULT, 1));
    }
    drop(mr);
    assert!(rig.nic.post_send(&rig.qp, &good[..1]).is_err());
    assert_eq!(rig.fake.posted().len(), good.len() + 4);
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
    rig.fake.refuse_moves(libc::EINVAL);
    let towards = |udp_port| {
        let ah = invar_core::nic::AddressVector { udp_port, ..Default::default() };
        let rtr = invar_core::nic::RtrAttr { ah, ..Default::default() };
        rig.nic.modify_qp(&rig.qp, &QpTransition::Rtr(rtr)).unwrap_err()
    };
    let text = towards(40_000).to_string();
    assert!(text.ends_with("set INVAR_SOFT_PORT=4791 there; the peer's UDP port 40000"), "{text}");
    // The fake refuses all other moves, as a kernel would.
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
    rig.nic.set_ece(&rig.qp, &Ece::default()).expect("a queue pair without ECE");
}

#[test]
fn a_driver_whose_firmware_has_no_ece_offers_none_and_goes_on_without() {
    let rig = Rig::on(&WITHOUT_ECE_IN_FIRMWARE);
    assert_eq!(rig.nic.query_ece(&rig.qp), None);
    let offer = Ece { vendor_id: ECE.vendor_id, options: ECE.options, comp_mask: 0 };
    rig.nic.set_ece(&rig.qp, &offer).expect("a queue pair without ECE");
}

/// The library's `ibv_query_gid` knows only one other GID, with index 0.
#[test]
fn the_gids_of_a_port_are_read_by_one_call_where_the_library_can() {
    let read = |library| {
        let port = Rig::on(library).nic.query_port().unwrap();
        (port.gid, port.gid_index)
    };
    assert_eq!(read(&WITH_GID_TABLE), (Gid(GID_ENTRY.gid.raw), 3));
    assert_eq!(read(&LIBRARY).1, 0);
}

#[test]
fn a_refusal_for_the_state_names_the_state() {
    let rig = Rig::on(&WITH_STATE);
    rig.fake.refuse(0, libc::EINVAL);
    let error = rig.nic.post_send(&rig.qp, &[SendWr::default()]).unwrap_err();
    assert!(error.to_string().ends_with("in ERR, QP 17"), "{error}");
    rig.fake.refuse_moves(libc::EINVAL);
    let error = rig.nic.modify_qp(&rig.qp, &QpTransition::Sqd).unwrap_err();
    assert!(error.to_string().contains("in ERR, QP 17"), "{error}");
    rig.fake.refuse(0, libc::ENOMEM);
    let error = rig.nic.post_send(&rig.qp, &[SendWr::default()]).unwrap_err();
    assert!(!error.to_string().contains("in ERR"), "a full queue is of no state: {error}");
}

#[test]
fn what_befalls_the_port_ends_nothing_and_is_told() {
    let rig = Rig::new();
    assert!(rig.nic.notices().is_empty());
    let port = |port_num| ibv_async_element { port_num };
    // Port 2 is not the rig's port.
    rig.fake.raise(port(2), IBV_EVENT_PORT_ERR);
    rig.fake.raise(port(1), IBV_EVENT_SM_CHANGE);
    rig.fake.raise(port(1), IBV_EVENT_PORT_ACTIVE);
    let told = |is_it: fn(&PortNotices) -> bool| {
        until("an event of the port", || Some(rig.nic.notices()).filter(is_it))
    };
    let notices = told(|notices| notices.came_up.is_some());
    assert_eq!((notices.went_down, notices.changed_gids), (None, None));
    rig.fake.raise(port(1), IBV_EVENT_PORT_ERR);
    let notices = told(|notices| notices.went_down.is_some());
    assert!(notices.went_down <= notices.came_up, "{notices:?}");
    rig.fake.raise(port(1), IBV_EVENT_GID_CHANGE);
    told(|notices| notices.changed_gids.is_some());
    assert_eq!(rig.nic.check(&rig.qp), Ok(()));
}

#[test]
fn relaxed_ordering_is_asked_for_where_it_is_wanted_and_can_be_had() {
    const BASE: u32 = 1 | 2 | 4;
    const RELAXED: u32 = BASE | 1 << 20;
    for (library, setting, call, flags) in [
        (&WITH_IOVA2, 0, "ibv_reg_mr", BASE),
        (&WITH_IOVA2, 1, "ibv_reg_mr_iova2", RELAXED),
        (&WITH_IOVA2, 2, "ibv_reg_mr_iova2", RELAXED),
        (&LIBRARY, 0, "ibv_reg_mr", BASE),
        (&LIBRARY, 1, "ibv_reg_mr", BASE),
        (&LIBRARY, 2, "ibv_reg_mr", BASE),
    ] {
        let rig = Rig::on(library);
        let memory = rig.nic.alloc(64).unwrap();
        let access = invar_core::device::data_access(setting, library.reg_mr_iova2.is_some());
        rig.nic.reg_mr(&rig.pd, &memory, access).unwrap();
        assert_eq!(rig.fake.registered(), [(call, flags)], "setting {setting}");
    }
    // Without `ibv_reg_mr_iova2` the adapter leaves out a flag that it could not pass on.
    let rig = Rig::new();
    let memory = rig.nic.alloc(64).unwrap();
    let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
    rig.nic.reg_mr(&rig.pd, &memory, access).unwrap();
    assert_eq!(rig.fake.registered(), [("ibv_reg_mr", 1)]);
}

#[test]
fn moves_carry_what_the_user_sets() {
    let rig = Rig::new();
    let moved = |transition| {
        rig.nic.modify_qp(&rig.qp, &transition).unwrap();
        rig.fake.last_move()
    };
    let (attr, mask) =
        moved(QpTransition::Init { pkey_index: 3, port_num: 2, access: Access::REMOTE_WRITE });
    assert_eq!((attr.qp_state, attr.pkey_index, attr.port_num), (IBV_QPS_INIT, 3, 2));
    assert_eq!(attr.qp_access_flags, 2);
    assert_eq!(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    let ah = AddressVector {
        is_global: true,
        dgid: Gid([9; 16]),
        sgid_index: 5,
        hop_limit: 255,
        traffic_class: 106,
        dlid: 7,
        sl: 4,
        port_num: 2,
        udp_port: 0,
        udp_source_port: 0,
    };
    let (path_mtu, dest_qp_num) = (Mtu::Mtu2048, 0x22);
    let rtr = RtrAttr { path_mtu, dest_qp_num, min_rnr_timer: 12, ah, ..RtrAttr::default() };
    let (attr, mask) = moved(QpTransition::Rtr(rtr));
    let ibv_ah_attr { grh, dlid, sl, is_global, port_num, .. } = attr.ah_attr;
    assert_eq!((sl, grh.traffic_class, grh.sgid_index, grh.hop_limit), (4, 106, 5, 255));
    assert_eq!((grh.dgid.raw, dlid, is_global, port_num), ([9; 16], 7, 1, 2));
    assert_eq!((attr.path_mtu, attr.dest_qp_num, attr.min_rnr_timer), (4, 0x22, 12));
    for bit in [IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_MIN_RNR_TIMER] {
        assert_ne!(mask & bit, 0);
    }

    let rts = RtsAttr { timeout: 20, retry_cnt: 6, rnr_retry: 7, sq_psn: 0, max_rd_atomic: 1 };
    let (attr, mask) = moved(QpTransition::Rts(rts));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (20, 6, 7));
    assert_eq!((attr.qp_state, attr.max_rd_atomic), (IBV_QPS_RTS, 1));
    for bit in [IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY] {
        assert_ne!(mask & bit, 0);
    }
}

#[test]
fn forks_are_made_safe_before_anything_is_registered() {
    static SAFE: OnceLock<Library> = OnceLock::new();
    let fake = Fake::new();
    let library = SAFE.get_or_init(|| just_loaded().ready_for_forks());
    let nic = VerbsNic::open_with(library, &VerbsConfig::new("fake0")).unwrap();
    let (pd, memory) = (nic.alloc_pd().unwrap(), nic.alloc(64).unwrap());
    let mr = nic.reg_mr(&pd, &memory, Access::LOCAL_WRITE).unwrap();
    drop((mr, pd, nic));
    let order = ["fork_init", "reg_mr", "dereg_mr", "dealloc_pd", "close_device"];
    assert_eq!(fake.calls(), order);
}

#[test]
fn a_library_without_what_transfers_do_not_need_is_of_use() {
    let rig = Rig::on(&BARE);
    assert_eq!(rig.nic.check(&rig.qp), Ok(()));
    assert!(rig.nic.notices().is_empty());
    assert_eq!(events::text(&BARE, IBV_EVENT_PORT_ERR), "port error");
}

#[test]
fn a_dma_buf_that_cannot_be_registered_names_its_own_verb() {
    let rig = Rig::new();
    let file = std::fs::File::open("/dev/null").unwrap();
    let fd = std::os::fd::AsFd::as_fd(&file);
    let error = rig.nic.reg_dmabuf_mr(&rig.pd, fd, 0, 64, 0, Access::LOCAL_WRITE).err().unwrap();
    assert!(error.to_string().starts_with("ibv_reg_dmabuf_mr failed"), "{error}");
    assert_eq!(error.errno, libc::EOPNOTSUPP);
}

#[test]
fn nobody_waits_while_the_kernel_looks_for_the_way_to_a_peer() {
    let rig = Rig::on(&WITH_AH);
    let gid = Gid::from(IpAddr::from([192, 0, 2, 1]));
    for (answers, found) in [(true, Resolution::Done), (false, Resolution::Failed)] {
        assert_eq!(rig.nic.resolve(0, &gid), Resolution::Pending);
        assert_eq!(rig.nic.resolve(0, &gid), Resolution::Pending);
        rig.fake.answer(answers);
        assert_eq!(rig.resolved(&gid), found);
    }
    assert_eq!(rig.fake.calls(), ["destroy_ah", "dealloc_pd", "dealloc_pd"]);
}

#[test]
fn a_library_without_address_handles_looks_for_no_way() {
    let gid = Gid::from(IpAddr::from([192, 0, 2, 1]));
    assert_eq!(Rig::new().resolved(&gid), Resolution::Done);
}
