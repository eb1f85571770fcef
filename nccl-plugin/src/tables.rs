//! The function tables that NCCL looks up, one for each version of the interface.

use std::ffi::c_char;

use crate::abi::{
    Blocks, CollNet, CollNetVersion, FinalTail, Net, SgeV8, SgeV9, TailV9, TailV11, V6, V7, V8, V9,
    V10, V11, V12, Version,
};
use crate::collnet;
use crate::connect::{
    accept, accept_v6, close_listen, connect, connect_v6, connect_v10, connect_v11, listen,
    listen_v11,
};
use crate::entry::{iflush, irecv, irecv_int, irecv_v10, isend, isend_int, isend_v10, test};
use crate::finalize::finalize;
use crate::host::{
    devices, devices_of_collnet, init, init_collnet, init_collnet_v11, init_v10, init_v11,
    set_net_attr,
};
use crate::lifetime::{close_recv, close_send};
use crate::properties::{get_properties, get_properties_of_collnet};
use crate::register::{dereg_mr, reg_mr, reg_mr_dma_buf};
use crate::virtual_device::{make_v_device, make_v_device_of_collnet};

/// Name of the network, as `NCCL_NET` selects it.
const NAME: *const c_char = c"Invar".as_ptr();

macro_rules! table {
    (
        $symbol:ident: $version:ident, $init:ident, $listen:ident, $connect:ident, $accept:ident,
        $isend:ident, $irecv:ident, $tail:expr
    ) => {
        /// The plugin's functions for this version of the interface.
        #[unsafe(no_mangle)]
        pub static $symbol: Net<$version> = Net {
            name: NAME,
            init: $init,
            devices,
            get_properties: get_properties::<<$version as Version>::Properties>,
            listen: $listen,
            connect: $connect,
            accept: $accept,
            reg_mr,
            reg_mr_dma_buf,
            dereg_mr,
            isend: $isend,
            irecv: $irecv,
            iflush,
            test,
            close_send,
            close_recv,
            close_listen,
            tail: $tail,
        };
    };
}

const TAIL_V9: TailV9 = TailV9 { absent: [None; 2], make_v_device };

const fn tail_v11<const DEVS_MAX: usize>() -> TailV11<DEVS_MAX> {
    TailV11 { absent: [None; 2], make_v_device, finalize, set_net_attr }
}

table!(ncclNetPlugin_v6: V6,
    init, listen, connect_v6, accept_v6, isend_int, irecv_int, ());
table!(ncclNetPlugin_v7: V7,
    init, listen, connect, accept, isend_int, irecv_int, [None; 2]);
table!(ncclNetPlugin_v8: V8,
    init, listen, connect, accept, isend_int, irecv_int, [None; 2]);
table!(ncclNetPlugin_v9: V9,
    init, listen, connect, accept, isend, irecv, TAIL_V9);
table!(ncclNetPlugin_v10: V10,
    init_v10, listen, connect_v10, accept, isend_v10, irecv_v10, TAIL_V9);
table!(ncclNetPlugin_v11: V11,
    init_v11, listen_v11, connect_v11, accept, isend_v10, irecv_v10, tail_v11());
table!(ncclNetPlugin_v12: V12,
    init_v11, listen_v11, connect_v11, accept, isend_v10, irecv_v10, tail_v11());

macro_rules! collnet_table {
    (
        $symbol:ident: $version:ident, $init:ident, $listen:ident, $blocks:expr, $tail:expr
    ) => {
        /// The functions of collNet for this version of the interface.
        #[unsafe(no_mangle)]
        pub static $symbol: CollNet<$version> = CollNet {
            name: NAME,
            init: $init,
            devices: devices_of_collnet,
            get_properties: get_properties_of_collnet::<<$version as CollNetVersion>::Properties>,
            listen: collnet::$listen,
            connect: collnet::connect,
            reduce_support: collnet::reduce_support,
            reg_mr: collnet::reg_mr,
            reg_mr_dma_buf: collnet::reg_mr_dma_buf,
            dereg_mr: collnet::dereg_mr,
            iallreduce: collnet::iallreduce,
            blocks: $blocks,
            iflush: collnet::iflush,
            test: collnet::test,
            close_coll: collnet::close_coll,
            close_listen: collnet::close_listen,
            tail: $tail,
        };
    };
}

const BLOCKS_V8: Blocks<SgeV8> =
    Blocks { iallgather: collnet::iallgather, ireducescatter: collnet::ireducescatter };
const BLOCKS_V9: Blocks<SgeV9> =
    Blocks { iallgather: collnet::iallgather, ireducescatter: collnet::ireducescatter };

const fn final_tail<const DEVS_MAX: usize>() -> FinalTail<DEVS_MAX> {
    FinalTail { make_v_device: make_v_device_of_collnet, finalize }
}

collnet_table!(ncclCollNetPlugin_v6: V6, init_collnet, listen, (), ());
collnet_table!(ncclCollNetPlugin_v7: V7, init_collnet, listen, (), ());
collnet_table!(ncclCollNetPlugin_v8: V8, init_collnet, listen, BLOCKS_V8, ());
collnet_table!(ncclCollNetPlugin_v9: V9,
    init_collnet, listen, BLOCKS_V9, make_v_device_of_collnet);
collnet_table!(ncclCollNetPlugin_v10: V10,
    init_collnet, listen, BLOCKS_V9, make_v_device_of_collnet);
collnet_table!(ncclCollNetPlugin_v11: V11,
    init_collnet_v11, listen_v11, BLOCKS_V9, final_tail());
collnet_table!(ncclCollNetPlugin_v12: V12,
    init_collnet_v11, listen_v11, BLOCKS_V9, final_tail());
