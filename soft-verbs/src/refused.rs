//! Verbs that the software NIC does not support. They answer `EOPNOTSUPP`.

use std::ffi::{c_int, c_void};

use crate::errno;

versions! {
    "IBVERBS_1.1":
        ibv_attach_mcast ibv_detach_mcast ibv_dofork_range ibv_dontfork_range ibv_fork_init
        ibv_resolve_eth_l2_from_gid;
    "IBVERBS_1.10":
        ibv_import_device ibv_import_mr ibv_import_pd ibv_query_ece ibv_set_ece ibv_unimport_mr
        ibv_unimport_pd;
    "IBVERBS_1.12":
        ibv_reg_dmabuf_mr;
    "IBVERBS_1.13":
        ibv_import_dm ibv_is_fork_initialized ibv_unimport_dm;
    "IBVERBS_1.14":
        ibv_query_qp_data_in_order;
    "IBVERBS_1.15":
        ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex;
    "IBVERBS_1.16":
        ibv_dm_export_dmabuf_fd ibv_query_port_speed;
}

constant_functions! {
    ibv_alloc_dmah ibv_import_device ibv_import_dm ibv_import_mr ibv_import_pd ibv_reg_dmabuf_mr
    ibv_reg_mr_ex -> *mut c_void: errno::null(libc::EOPNOTSUPP);
    ibv_attach_mcast ibv_dealloc_dmah ibv_detach_mcast ibv_query_ece ibv_query_port_speed
    ibv_resolve_eth_l2_from_gid ibv_set_ece -> c_int: errno::status(Err(libc::EOPNOTSUPP));
    // There is no device memory to export.
    ibv_dm_export_dmabuf_fd -> c_int: errno::minus_one(libc::EOPNOTSUPP);
    // No order of data is promised.
    ibv_query_qp_data_in_order -> c_int: 0;
    // Memory is not pinned, so a fork needs no care.
    ibv_dofork_range ibv_dontfork_range ibv_fork_init -> c_int: 0;
    // `IBV_FORK_UNNEEDED`
    ibv_is_fork_initialized -> c_int: 2;
}

// Nothing was imported.
empty_functions! { ibv_unimport_dm ibv_unimport_mr ibv_unimport_pd }
