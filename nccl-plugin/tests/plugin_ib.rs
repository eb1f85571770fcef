//! The plugin through its tables, as NCCL calls it, with both ends in this process: over a null
//! libibverbs. CUDA's driver is a stand-in.

mod plugin {
    mod delayed;
    mod events;
    #[allow(dead_code, unused_imports, reason = "the other tests' too")]
    mod rig;
}

const TRANSPORT: &str = "ib";
