//! Symbols that drivers of rdma-core and librdmacm import. A program that is linked to a driver's library,
//! as perftest is to libmlx5, needs them to start. There is no kernel device that a driver could serve.

use std::ffi::{c_char, c_int, c_void};

use crate::errno;

versions! {
    "IBVERBS_1.0":
        ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern;
    "IBVERBS_1.1":
        ibv_copy_ah_attr_from_kern ibv_register_driver;
}

private_versions! {
    __verbs_log _verbs_init_and_alloc_context ibv_wr_opcode_str verbs_allow_disassociate_destroy
    verbs_init_cq verbs_open_device verbs_register_driver_34 verbs_register_driver_57
    verbs_register_driver_59 verbs_set_ops verbs_uninit_context
}

/// Commands to the kernel, with the private versions.
macro_rules! commands {
    ($($name:ident)*) => {
        private_versions! { $($name)* }
        constant_functions! { $($name)* -> c_int: libc::EOPNOTSUPP; }
    };
}

commands! {
    __ioctl_final_num_attrs execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah
    ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_free_dmah ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
    ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
    ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any
    ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr ibv_cmd_resize_cq
}

empty_functions! {
    __verbs_log ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern ibv_register_driver verbs_init_cq verbs_register_driver_34
    verbs_register_driver_57 verbs_register_driver_59 verbs_set_ops verbs_uninit_context
}

constant_functions! {
    _verbs_init_and_alloc_context verbs_open_device -> *mut c_void: errno::null(libc::EOPNOTSUPP);
    // Drivers name an opcode only to report an error.
    ibv_wr_opcode_str -> *const c_char: c"unknown".as_ptr();
}

/// A setting of rdma-core that drivers read: a `bool`.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: u8 = 0;
