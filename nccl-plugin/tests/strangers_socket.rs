//! Tests strangers that call the plugin over TCP. The test has its own process, because it checks the
//! process's memory use.

mod plugin {
    #[allow(dead_code, unused_imports, reason = "the other tests' too")]
    mod rig;
    mod strangers;
}

const TRANSPORT: &str = "socket";
