//! Tests GPU memory through the plugin's function tables, as NCCL registers and flushes it. The device
//! is a null libibverbs, next to a stand-in for CUDA's driver.

mod plugin {
    mod gpu;
    #[allow(dead_code, reason = "the other tests' too")]
    mod rig;
}

const TRANSPORT: &str = "ib";
