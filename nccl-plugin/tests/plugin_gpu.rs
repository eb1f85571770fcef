//! GPU memory through the plugin's tables, as NCCL registers and flushes it: over a null libibverbs
//! beside a stand-in for CUDA's driver.

mod plugin {
    mod gpu;
    #[allow(dead_code, reason = "the other tests' too")]
    mod rig;
}

const TRANSPORT: &str = "ib";
