//! A libibverbs without hardware. It puts the null NIC's [`Fabric`] behind those functions of
//! `infiniband/verbs.h` that Invar calls.
//!
//! A work request is carried out and completes while it is posted, unless `NULL_VERBS_DELAY_POLLS`
//! delays it. So a measurement counts the code above libibverbs. All devices of one process reach each
//! other, and queue pair numbers alone address a peer. States, keys, bounds and the depths of queues
//! are checked as hardware checks them. A wrong request is refused, or completes in error. If CUDA's
//! driver is the stand-in of `tests/fake-cuda`, devices reach the memory of its GPUs.
//!
//! A program finds this library as `libibverbs.so.1` in its `LD_LIBRARY_PATH`. The library reads these
//! variables once:
//!
//! | variable | |
//! |---|---|
//! | `NULL_VERBS_DEVICES` | number of devices with one port, `null0` and so on; default 1 |
//! | `NULL_VERBS_LINK` | `roce` or `ib`; default `roce` |
//! | `NULL_VERBS_MBPS` | speed of the ports; default 200000; 0: only the codes tell it, 4x HDR |
//! | `NULL_VERBS_ACTIVE_SPEED_EX` | the speed code that replaces HDR's: 256 is XDR |
//! | `NULL_VERBS_DMA_BUF` | `yes`, or the error: `EOPNOTSUPP` (default) or `EPROTONOSUPPORT` |
//! | `NULL_VERBS_PEERMEM` | 1: GPU memory can be registered by its address |
//! | `NULL_VERBS_CALLS` | file for a line for each registration and each READ |
//! | `NULL_VERBS_EVENTS` | directory of named pipes, `null0` and so on: each byte is an event of port 1 |
//! | `NULL_VERBS_DELAY_POLLS` | a send is carried out in this poll of its CQ; 0 (default): while posted |
//! | `NULL_VERBS_STRICT` | 1: a refused call or an error completion aborts with a message |

mod data_path;
mod delay;
mod device;
mod region;
mod resource;
mod settings;
mod transition;

use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard};

use invar_testkit::null::Fabric;

use settings::Settings;

static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::from_env);

/// Locks the state of all devices.
fn fabric() -> MutexGuard<'static, Fabric> {
    static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(Mutex::default);
    FABRIC.lock().unwrap_or_else(|_| fatal("a call failed before"))
}

/// Prints the reason and aborts the process.
#[cold]
fn fatal(why: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "null libibverbs: {why}");
    std::process::abort()
}
