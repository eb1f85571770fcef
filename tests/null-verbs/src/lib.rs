//! A libibverbs without hardware: the null NIC's [`Fabric`] behind the functions of
//! `infiniband/verbs.h` that Invar calls.
//!
//! Each work request is carried out, and completes, while it is posted, unless that is to wait; so
//! what is measured over it is what stands above libibverbs. All devices reach each other, within one
//! process, by the numbers of queue pairs alone. States, keys, bounds and the depths of queues are
//! checked as hardware does it: what is wrong is refused, or completes in error. Where CUDA's driver
//! is the stand-in of `tests/fake-cuda`, devices reach its GPUs' memory.
//!
//! A program finds it as `libibverbs.so.1` in its `LD_LIBRARY_PATH`. Variables, read once:
//!
//! | variable | |
//! |---|---|
//! | `NULL_VERBS_DEVICES` | how many devices of one port there are, `null0` and so on; 1 if it is not set |
//! | `NULL_VERBS_LINK` | `roce` or `ib`; `roce` if it is not set |
//! | `NULL_VERBS_MBPS` | speed of the ports; 200000 if it is not set; 0: only their codes tell, 4x HDR |
//! | `NULL_VERBS_ACTIVE_SPEED_EX` | the code that counts instead of HDR's: 256 is XDR |
//! | `NULL_VERBS_DMA_BUF` | `yes`: DMA-BUFs can be registered; otherwise why not: `EOPNOTSUPP`, which it is if it is not set, or `EPROTONOSUPPORT` |
//! | `NULL_VERBS_PEERMEM` | 1: a GPU's memory can be registered by its address |
//! | `NULL_VERBS_CALLS` | file to which each registration and each READ is appended, one a line |
//! | `NULL_VERBS_DELAY_POLLS` | after how many polls of its completion queue a send work request is carried out, at one of these; 0, while it is posted, if it is not set |
//! | `NULL_VERBS_STRICT` | 1: what a device refuses, or completes in error, aborts the process, and says what it was |

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

/// The state of all devices.
fn fabric() -> MutexGuard<'static, Fabric> {
    static FABRIC: LazyLock<Mutex<Fabric>> = LazyLock::new(Mutex::default);
    FABRIC.lock().unwrap_or_else(|_| fatal("a call failed before"))
}

/// Ends the process.
#[cold]
fn fatal(why: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "null libibverbs: {why}");
    std::process::abort()
}
