//! Tests the plugin through its function tables, as NCCL calls it, with both ends in this process, over
//! a null libibverbs. A stand-in replaces CUDA's driver.

mod plugin {
    mod delayed;
    mod events;
    #[allow(dead_code, unused_imports, reason = "the other tests' too")]
    mod rig;
}

const TRANSPORT: &str = "ib";
