//! Compares the binding with the system's header, with the help of the C compiler.

use std::fs;
use std::mem::offset_of;
use std::process::Command;

use super::*;

/// A C expression with a numeric value, and our value of it.
type Row = (String, usize);

macro_rules! offsets {
    ($rows:ident; $($ty:ident { $($field:ident $(= $c:literal)?),* $(,)? })*) => { $($(
        let of = [$($c,)? stringify!($field)][0];
        let text = format!("offsetof(struct {}, {of})", stringify!($ty));
        $rows.push((text, offset_of!($ty, $field)));
    )*)* };
}

macro_rules! sizes {
    ($rows:ident; $($ty:ident $(= $c:literal)?),*) => { $(
        let of = [$($c,)? concat!("struct ", stringify!($ty))][0];
        $rows.push((format!("sizeof({of})"), size_of::<$ty>()));
    )* };
}

macro_rules! constants {
    ($rows:ident; $($name:ident),* $(,)?) => { $(
        $rows.push((stringify!($name).to_owned(), $name as usize));
    )* };
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    // Structures that libibverbs allocates, and port attributes, may be shorter here than in the header.
    sizes!(rows; ibv_device_attr, ibv_gid = "union ibv_gid", ibv_gid_entry, ibv_qp_cap,
        ibv_qp_init_attr, ibv_global_route, ibv_ah_attr, ibv_qp_attr, ibv_sge, ibv_send_wr,
        ibv_recv_wr, ibv_wc, ibv_async_event, ibv_context_ops, ibv_context, ibv_mr, ibv_ece);
    for (field, ours) in
        [("sz", offset_of!(verbs_context, sz)), ("context", offset_of!(verbs_context, context))]
    {
        let of = |field| format!("offsetof(struct verbs_context, {field})");
        rows.push((format!("{} - {}", of(field), of("query_port")), ours));
    }
    offsets! { rows;
        ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_pd { context }
        ibv_mr { lkey, rkey }
        ibv_cq { context, cq_context }
        ibv_qp { context, qp_context, qp_num }
        ibv_device_attr { sys_image_guid, max_qp, max_cqe, max_pkeys, phys_port_cnt }
        ibv_port_attr { state, active_mtu, gid_tbl_len, lid, active_width, active_speed,
            link_layer, flags, port_cap_flags2 }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr { qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, rate_limit }
        ibv_ece { vendor_id, options, comp_mask }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data,
            remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey" }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num,
            flags = "wc_flags", sl, dlid_path_bits }
        ibv_async_event { element, event_type }
    }
    {
        use provider::{
            ibv_ah, ibv_comp_channel, ibv_cq, ibv_device, ibv_device_attr, ibv_device_attr_ex,
            ibv_grh, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp, ibv_qp_init_attr_ex,
            ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
        };
        sizes!(rows; ibv_ah, ibv_grh, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_comp_channel, ibv_cq, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_pd,
            ibv_qp, ibv_srq, ibv_srq_attr, ibv_srq_init_attr);
        offsets! { rows;
            ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
            ibv_comp_channel { context, fd, refcnt }
            ibv_ah { context, pd, handle }
            ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
            ibv_pd { handle }
            ibv_mw { context, pd, rkey, handle, kind = "type" }
            ibv_mw_bind { wr_id, send_flags, bind_info }
            ibv_mw_bind_info { mr, addr, length, mw_access_flags }
            ibv_cq { channel, cq_context, handle, cqe, mutex, cond, comp_events_completed }
            ibv_qp { pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
                events_completed }
            ibv_srq { srq_context, pd, handle, mutex, cond, events_completed }
            ibv_srq_attr { max_wr, max_sge, srq_limit }
            ibv_srq_init_attr { srq_context, attr }
            ibv_device_attr { max_qp, max_qp_wr, device_cap_flags, max_sge, max_cqe, max_mr,
                max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_mw, max_ah,
                max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
            ibv_device_attr_ex { orig_attr, comp_mask, phys_port_cnt_ex }
            ibv_qp_init_attr_ex { qp_context, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
                max_tso_header, rwq_ind_tbl, source_qpn, send_ops_flags }
        }
        for (field, ours) in [
            ("query_device_ex", offset_of!(verbs_context, query_device_ex)),
            ("create_qp_ex", offset_of!(verbs_context, create_qp_ex)),
            ("create_cq_ex", offset_of!(verbs_context, create_cq_ex)),
        ] {
            let of = |field| format!("offsetof(struct verbs_context, {field})");
            rows.push((format!("{} - {}", of(field), of("query_port")), ours));
        }
        for (field, ours) in [
            ("remote_addr", offset_of!(provider::ibv_wr_atomic, remote_addr)),
            ("compare_add", offset_of!(provider::ibv_wr_atomic, compare_add)),
            ("swap", offset_of!(provider::ibv_wr_atomic, swap)),
            ("rkey", offset_of!(provider::ibv_wr_atomic, rkey)),
        ] {
            let field = format!("offsetof(struct ibv_send_wr, wr.atomic.{field})");
            rows.push((field, offset_of!(ibv_send_wr, remote_addr) + ours));
        }
        for (field, ours) in [
            ("ah", offset_of!(provider::ibv_wr_ud, ah)),
            ("remote_qpn", offset_of!(provider::ibv_wr_ud, remote_qpn)),
            ("remote_qkey", offset_of!(provider::ibv_wr_ud, remote_qkey)),
        ] {
            let field = format!("offsetof(struct ibv_send_wr, wr.ud.{field})");
            rows.push((field, offset_of!(ibv_send_wr, remote_addr) + ours));
        }
        for (field, ours) in [
            ("mw", offset_of!(provider::ibv_wr_bind_mw, mw)),
            ("rkey", offset_of!(provider::ibv_wr_bind_mw, rkey)),
            ("bind_info", offset_of!(provider::ibv_wr_bind_mw, bind_info)),
        ] {
            let field = format!("offsetof(struct ibv_send_wr, bind_mw.{field})");
            rows.push((field, provider::BIND_MW_OFFSET + ours));
        }
        use provider::*;
        constants! { rows;
            IBV_NODE_CA, IBV_TRANSPORT_IB, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_SYS_IMAGE_GUID,
            IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_MGT_EXTENSIONS,
            IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_WR_LOCAL_INV,
            IBV_WR_BIND_MW, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_CREATE_FLAGS,
            IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            IBV_QP_CUR_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE,
            IBV_QP_CAP, IBV_QP_RATE_LIMIT, IBV_PORT_DOWN, IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS,
            IBV_ACCESS_ZERO_BASED, IBV_ACCESS_HUGETLB, IBV_ACCESS_OPTIONAL_RANGE,
            IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_ACCESS,
            IBV_REREG_MR_ERR_INPUT,
        }
    }
    {
        use extended::*;
        sizes!(rows; ibv_qp_ex, ibv_cq_ex, ibv_data_buf, ibv_poll_cq_attr, ibv_cq_init_attr_ex);
        offsets! { rows;
            ibv_qp_ex { wr_bind_mw, wr_local_inv, wr_send_inv, qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
                wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_set_ud_addr,
                wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start,
                wr_complete, wr_abort }
            ibv_data_buf { addr, length }
            ibv_cq_ex { context, channel, cq_context, cqe, comp_mask, status, wr_id, start_poll,
                next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data,
                read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits }
            ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
                parent_domain }
        }
        constants! { rows;
            IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
            IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_BIND_MW,
            IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_RDMA_READ,
            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
            IBV_WC_STANDARD_FLAGS, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
        }
    }
    constants! { rows;
        IBV_PORT_ACTIVE, IBV_QPF_GRH_REQUIRED, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET,
        IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
        IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
        IBV_QPS_ERR,
        IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_AV,
        IBV_QP_PATH_MTU, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
        IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN,
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE,
        IBV_EVENT_PORT_ERR, IBV_EVENT_SM_CHANGE, IBV_EVENT_QP_LAST_WQE_REACHED,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE,
    }
    // The verbs constants that core's values must equal.
    use invar_core::nic::{
        Access, Mtu, QpType, SendFlags, SendOpcode, WcFlags, WcOpcode, WcStatus,
    };
    let same = [
        ("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE.bits()),
        ("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE.bits()),
        ("IBV_ACCESS_MW_BIND", Access::MW_BIND.bits()),
        ("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ.bits()),
        ("IBV_ACCESS_REMOTE_ATOMIC", Access::REMOTE_ATOMIC.bits()),
        ("IBV_ACCESS_RELAXED_ORDERING", Access::RELAXED_ORDERING.bits()),
        ("IBV_SEND_FENCE", SendFlags::FENCE.bits()),
        ("IBV_SEND_SIGNALED", SendFlags::SIGNALED.bits()),
        ("IBV_SEND_SOLICITED", SendFlags::SOLICITED.bits()),
        ("IBV_SEND_INLINE", SendFlags::INLINE.bits()),
        ("IBV_WR_RDMA_WRITE", SendOpcode::RdmaWrite as u32),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", SendOpcode::RdmaWriteWithImm as u32),
        ("IBV_WR_SEND", SendOpcode::Send as u32),
        ("IBV_WR_SEND_WITH_IMM", SendOpcode::SendWithImm as u32),
        ("IBV_WR_SEND_WITH_INV", SendOpcode::SendWithInv as u32),
        ("IBV_WR_RDMA_READ", SendOpcode::RdmaRead as u32),
        ("IBV_WC_SEND", WcOpcode::SEND.0),
        ("IBV_WC_RDMA_WRITE", WcOpcode::RDMA_WRITE.0),
        ("IBV_WC_RDMA_READ", WcOpcode::RDMA_READ.0),
        ("IBV_WC_RECV", WcOpcode::RECV.0),
        ("IBV_WC_RECV_RDMA_WITH_IMM", WcOpcode::RECV_RDMA_WITH_IMM.0),
        ("IBV_QPT_RC", QpType::Rc as u32),
        ("IBV_QPT_UC", QpType::Uc as u32),
        ("IBV_QPT_UD", QpType::Ud as u32),
        ("IBV_WC_GRH", WcFlags::GRH.bits()),
        ("IBV_WC_WITH_IMM", WcFlags::WITH_IMM.bits()),
        ("IBV_WC_SUCCESS", WcStatus::SUCCESS.0),
        ("IBV_WC_RETRY_EXC_ERR", WcStatus::RETRY_EXC_ERR.0),
        ("IBV_WC_GENERAL_ERR", WcStatus::GENERAL_ERR.0),
        ("IBV_MTU_256", Mtu::Mtu256 as u32),
        ("IBV_MTU_4096", Mtu::Mtu4096 as u32),
    ];
    rows.extend(same.map(|(name, ours)| (name.to_owned(), ours as usize)));
    rows
}

/// Returns the header's value of each row, or `None` without a compiler or header.
fn of_the_header(rows: &[Row]) -> Option<Vec<usize>> {
    let expressions: Vec<&str> = rows.iter().map(|(text, _)| text.as_str()).collect();
    let program = format!(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         static const size_t n[] = {{ {} }};\n\
         int main(void) {{ for (size_t i = 0; i < sizeof n / sizeof *n; i++) \
         printf(\"%zu\\n\", n[i]); return 0; }}\n",
        expressions.join(", ")
    );
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    fs::write(&source, "#include <infiniband/verbs.h>\n").unwrap();
    let has_header = Command::new("cc").arg("-fsyntax-only").arg(&source).output();
    let has_header = has_header.is_ok_and(|output| output.status.success());
    has_header.then(|| {
        fs::write(&source, program).unwrap();
        let built = Command::new("cc").arg("-o").arg(&binary).arg(&source).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let output = Command::new(&binary).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    })
}

#[test]
fn the_binding_is_laid_out_as_the_systems_header() {
    let rows = rows();
    let Some(theirs) = of_the_header(&rows) else {
        eprintln!("skipped: needs a C compiler (cc) and infiniband/verbs.h (libibverbs-dev)");
        return;
    };
    assert_eq!(theirs.len(), rows.len());
    let differing: Vec<String> = rows
        .iter()
        .zip(theirs)
        .filter(|((_, ours), theirs)| ours != theirs)
        .map(|((text, ours), theirs)| format!("{text}: {theirs}, and here {ours}"))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn there_is_room_for_port_attributes_that_grow() {
    // The size was 48 bytes in rdma-core 1, then 52, then 56 with `active_speed_ex`, which a header may
    // lack.
    assert_eq!(offset_of!(ibv_port_attr, active_speed_ex), 52);
    assert!(size_of::<ibv_port_attr>() >= 120);
}
