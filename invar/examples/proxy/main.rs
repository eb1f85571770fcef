//! The proxy between two processes: a producer posts operations, and the proxy moves them.
//!
//! ```text
//!   producer process                 memory of both            proxy process
//!   three ranks, a thread each       operations (a pool)  ───▶ progress thread: engine
//!   "kernels" that compute,     ◀──▶ rings with flags     ◀──▶ transport over a NIC or TCP
//!   fill slots and wait on flags
//!   ProxyClient ─────────── Unix socket: setup, connect ─────▶ service thread
//! ```
//!
//! The kernels do what those of a GPU do: they touch only memory, and never make a system call for
//! data. Ranks shift data around a ring by sends and receives, and then reduce it by NCCL's ring
//! all-reduce. The proxy moves the data of all ranks, over the software NIC or, with
//! `INVAR_TRANSPORT=socket`, over TCP.
//!
//! ```sh
//! cargo run --release -p invar --example proxy
//! INVAR_PROXY_TRACE=/tmp/proxy.json cargo run --release -p invar --example proxy
//! INVAR_TRANSPORT=socket NCCL_SOCKET_IFNAME=lo cargo run --release -p invar --example proxy
//! ```

#![allow(clippy::print_stdout, reason = "a command line tool")]

mod host;
mod kernel;
mod producer;
mod ring;
mod transport;

use std::env;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

use invar::Settings;

/// Ranks of the producer.
const NRANKS: u32 = 3;
/// Elements that each rank has, `u32`. Not a multiple of anything.
const ELEMENTS: usize = 1_000_003;
/// How long anybody waits for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// Where a producer finds the service.
const SERVICE: &str = "INVAR_EXAMPLE_SERVICE";

fn main() -> Result<(), Box<dyn Error>> {
    match env::var(SERVICE) {
        Ok(service) => producer::run(&service),
        Err(_) => host::serve(Settings::from_env()?, &mut Command::new(env::current_exe()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn this_test(name: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "--nocapture", name]);
        command
    }

    #[test]
    #[ignore = "is the producer's process of another test"]
    fn produce() {
        producer::run(&env::var(SERVICE).expect("started by the other test")).unwrap();
    }

    #[test]
    fn what_a_producer_posts_is_moved_by_the_proxy_of_another_process() {
        for transport in ["soft", "socket"] {
            let settings = Settings::from_lookup(|name| match name {
                "INVAR_TRANSPORT" => Some(transport.to_owned()),
                "NCCL_SOCKET_IFNAME" => Some("=lo".to_owned()),
                _ => None,
            });
            host::serve(settings.unwrap(), &mut this_test("tests::produce")).unwrap();
        }
    }

    #[test]
    fn a_producer_that_fails_is_an_error_of_the_proxy() {
        let error = host::serve(Settings::from_env().unwrap(), &mut this_test("--no-such-flag"))
            .unwrap_err();
        assert!(error.to_string().starts_with("the producer"), "{error}");
    }
}
