//! Tests the plugin through its function tables, as NCCL calls it, each test in a process of its own. Most
//! tests run over a null libibverbs, next to a stand-in for CUDA's driver.

mod plugin {
    mod collnet_gpu;
    mod collnet_memory;
    mod delayed;
    mod events;
    mod gpu;
    mod rig;
    mod strangers;
    mod virtual_devices;
}

/// The transport of tests that name no other.
const TRANSPORT: &str = "ib";
