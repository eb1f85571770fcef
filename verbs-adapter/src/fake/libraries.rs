//! The fake's libraries. They differ in the functions that they lack.

use std::ffi::c_int;

use super::*;
use crate::library::Library;

/// An old library without any optional function.
pub(crate) static LIBRARY: Library = OLD;

/// An old library that also supports relaxed ordering.
pub(crate) static WITH_IOVA2: Library = Library { reg_mr_iova2: Some(reg_mr_iova2), ..OLD };

/// A library that returns all GIDs of a device at once: an address of the RDMA port 2, and one of port 1.
pub(crate) static WITH_GID_TABLE: Library =
    Library { query_gid_table: Some(query_gid_table), ..OLD };

/// The entry of port 1 in the table of [`WITH_GID_TABLE`].
pub(crate) const GID_ENTRY: ibv_gid_entry = ibv_gid_entry {
    gid: ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1] },
    gid_index: 3,
    port_num: 1,
    gid_type: IBV_GID_TYPE_ROCE_V2,
    ndev_ifindex: 0,
};

unsafe extern "C" fn query_gid_table(
    _: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    len: usize,
    _: u32,
    size: usize,
) -> isize {
    assert_eq!(size, size_of::<ibv_gid_entry>());
    let all = [ibv_gid_entry { port_num: 2, gid_index: 0, ..GID_ENTRY }, GID_ENTRY];
    assert!(all.len() <= len);
    // SAFETY: The caller gives room for `len` entries.
    unsafe { entries.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
    all.len() as isize
}

/// An old library whose queue pairs are always in ERR and say so.
pub(crate) static WITH_STATE: Library = Library { query_qp: Some(query_qp), ..OLD };

unsafe extern "C" fn query_qp(
    _: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: The caller gives room for the attributes.
    unsafe { (*attr).qp_state = IBV_QPS_ERR };
    0
}

/// An old library with completion channels.
pub(crate) static WITH_CHANNELS: Library = Library {
    create_comp_channel: Some(create_comp_channel),
    destroy_comp_channel: Some(destroy_comp_channel),
    get_cq_event: Some(get_cq_event),
    ack_cq_events: Some(ack_cq_events),
    ..OLD
};

/// An old library with address handles.
pub(crate) static WITH_AH: Library =
    Library { create_ah: Some(create_ah), destroy_ah: Some(destroy_ah), ..OLD };

/// A library without any function that transfers do not need.
pub(crate) static BARE: Library = Library {
    get_async_event: None,
    ack_async_event: None,
    event_type_str: None,
    fork_init: None,
    ..OLD
};

/// A library that is not ready for forks yet.
pub(crate) fn just_loaded() -> Library {
    OLD
}

/// An old library with a driver of ECE, which accepts offers of its own vendor.
pub(crate) static WITH_ECE: Library =
    Library { query_ece: Some(query_ece), set_ece: Some(set_ece), ..OLD };

/// An old library with a driver of ECE, whose firmware has none. The driver, mlx5, then offers no options.
pub(crate) static WITHOUT_ECE_IN_FIRMWARE: Library =
    Library { query_ece: Some(query_no_ece), set_ece: Some(set_no_ece), ..OLD };

unsafe extern "C" fn query_no_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: The caller gives room for the result.
    unsafe { ece.write(ibv_ece { options: 0, ..ECE }) };
    0
}

unsafe extern "C" fn set_no_ece(_: *mut ibv_qp, _: *mut ibv_ece) -> c_int {
    libc::EOPNOTSUPP
}

/// The driver's ECE offer.
pub(crate) const ECE: ibv_ece = ibv_ece { vendor_id: 0x15b3, options: 5, comp_mask: 0 };

unsafe extern "C" fn query_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: The caller gives room for the offer.
    unsafe { ece.write(ECE) };
    0
}

unsafe extern "C" fn set_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: The caller passes a valid offer.
    let ece = unsafe { *ece };
    if ece.vendor_id != ECE.vendor_id {
        return libc::EINVAL;
    }
    state().posted.push(ece.options.into());
    0
}

/// The most completions of a queue of the fake's devices.
pub(crate) const MAX_CQE: c_int = 32_767;

const OLD: Library = {
    extern "C" fn ack_async_event(_: *mut ibv_async_event) {}
    extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        // SAFETY: The caller gives room for the attributes.
        unsafe { ((*attr).phys_port_cnt, (*attr).max_cqe) = (state().ports.1, MAX_CQE) };
        0
    }
    extern "C" fn modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
        // SAFETY: The caller passes valid attributes.
        state().moves.push((unsafe { *attr }, mask));
        state().move_rc
    }
    extern "C" fn fork_init() -> c_int {
        state().calls.push("fork_init");
        0
    }
    Library {
        get_device_list,
        free_device_list,
        get_device_name: name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        destroy_qp,
        get_async_event: Some(get_async_event),
        ack_async_event: Some(ack_async_event),
        event_type_str: Some(event_text),
        fork_init: Some(fork_init),
        create_comp_channel: None,
        destroy_comp_channel: None,
        get_cq_event: None,
        ack_cq_events: None,
        query_qp: None,
        create_ah: None,
        destroy_ah: None,
        reg_mr_iova2: None,
        query_ece: None,
        set_ece: None,
        query_gid_ex: None,
        query_gid_table: None,
        reg_dmabuf_mr: None,
        query_port_speed: None,
    }
};
