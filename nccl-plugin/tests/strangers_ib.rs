//! The plugin over a null libibverbs, and strangers who call it. A process of its own: its memory is
//! looked at.

mod plugin {
    #[allow(dead_code, unused_imports, reason = "the other tests' too")]
    mod rig;
    mod strangers;
}

const TRANSPORT: &str = "ib";
