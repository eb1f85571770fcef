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
//! data. Ranks shift data around a ring by sends and receives, and run NCCL's collectives over rings and
//! trees, in all of its protocols. The proxy moves the data of all ranks, over the software NIC or, with
//! `INVAR_TRANSPORT=socket`, over TCP. Then the process moves the data of the shift over connections of
//! its own, to compare.
//!
//! ```sh
//! cargo run --release -p invar --example proxy
//! cargo run --release -p invar --example proxy -- 1000 16      # 1000 rounds of 16 elements
//! INVAR_PROXY_TRACE=/tmp/proxy.json cargo run --release -p invar --example proxy
//! INVAR_TRANSPORT=socket NCCL_SOCKET_IFNAME=lo cargo run --release -p invar --example proxy
//! ```

#![allow(clippy::print_stdout, reason = "a command line tool")]

mod direct;
mod host;
mod kernel;
mod producer;
mod ring;
mod task;
mod transport;

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::process::Command;
use std::time::Duration;

use invar::Settings;

/// Ranks of the producer.
const NRANKS: u32 = 3;
/// How long anybody waits for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// Where a producer finds the service.
const SERVICE: &str = "INVAR_EXAMPLE_SERVICE";

/// How much the ranks do.
#[derive(Clone, Copy)]
struct Work {
    /// How often each task is measured, after it was checked.
    rounds: u32,
    /// Elements that each rank has, `u32`.
    elements: usize,
}

impl Work {
    /// Reads the numbers from the command line.
    fn from_args(args: &[String]) -> Result<Self, Box<dyn Error>> {
        let number = |at: usize, default| args.get(at).map_or(Ok(default), |text| text.parse());
        // Not a multiple of anything.
        let (rounds, elements) = (number(0, 10)?, number(1, 1_000_003)?);
        if rounds == 0 || elements == 0 || args.len() > 2 {
            return Err("usage: proxy [ROUNDS [ELEMENTS]], one of each at least".into());
        }
        Ok(Work { rounds, elements: elements as usize })
    }

    fn print_head(self) {
        let Work { rounds, elements } = self;
        println!(
            "{NRANKS} ranks of {elements} elements, {rounds} rounds; the first results are right"
        );
        println!("{:26} {:>10} {:>8} {:>13}", "", "time (us)", "GB/s", "operations/s");
    }

    /// Prints how long the rounds of a task took together, for `bytes` at each rank.
    fn print_row(self, task: impl Display, bytes: usize, time: Duration) {
        let seconds = time.as_secs_f64() / f64::from(self.rounds);
        let rate = bytes as f64 / seconds / 1e9;
        println!("{task:26} {:10.1} {rate:8.3} {:13.1}", seconds * 1e6, 1.0 / seconds);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let work = Work::from_args(&args)?;
    match env::var(SERVICE) {
        Ok(service) => producer::run(&service, work),
        Err(_) => {
            let mut producer = Command::new(env::current_exe()?);
            host::serve(Settings::from_env()?, work, producer.args(args))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work { rounds: 1, elements: 100_003 };

    fn this_test(name: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "--nocapture", name]);
        command
    }

    #[test]
    #[ignore = "is the producer's process of another test"]
    fn produce() {
        producer::run(&env::var(SERVICE).expect("started by the other test"), WORK).unwrap();
    }

    #[test]
    fn what_a_producer_posts_is_moved_by_the_proxy_of_another_process() {
        for transport in ["soft", "socket"] {
            let settings = Settings::from_lookup(|name| match name {
                "INVAR_TRANSPORT" => Some(transport.to_owned()),
                "NCCL_SOCKET_IFNAME" => Some("=lo".to_owned()),
                _ => None,
            });
            host::serve(settings.unwrap(), WORK, &mut this_test("tests::produce")).unwrap();
        }
    }

    #[test]
    fn a_producer_that_fails_is_an_error_of_the_proxy() {
        let settings = Settings::from_env().unwrap();
        let error = host::serve(settings, WORK, &mut this_test("--no-such-flag")).unwrap_err();
        assert!(error.to_string().starts_with("the producer"), "{error}");
    }
}
