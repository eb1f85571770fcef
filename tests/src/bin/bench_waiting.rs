//! Round trips of 8 bytes between two threads that block, and connections whose tasks wait: `bench_waiting`
//! prints a line `NAME VALUE` for each measurement. `cargo xtask bench waiting` compares them.

#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use invar_testkit::{library, load, sleepers};

const BYTES: usize = 8;
/// The round trips that are not measured, and those that are.
const WARM_UP: usize = 500;
const ROUND_TRIPS: usize = 5000;
const TRANSPORTS: [&str; 2] = ["socket", "soft"];
const IDLE_FOR: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    load::raise_descriptors();
    round_trips("");
    load::beside_busy_threads(load::BUSY_THREADS, || round_trips("-busy"));
    for transport in TRANSPORTS {
        let busy = load::idle_connections(transport, IDLE_FOR);
        println!("{transport}-idle {:.3}", 100.0 * busy.as_secs_f64() / IDLE_FOR.as_secs_f64());
    }
    ExitCode::SUCCESS
}

/// Measures round trips over TCP and over each transport, one after the other.
fn round_trips(suffix: &str) {
    println!("tcp{suffix} {:.2}", micros(over_tcp()));
    for transport in TRANSPORTS {
        let variables = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
        let settings = library::settings(&variables);
        sleepers::round_trips(sleepers::pair(&settings, BYTES), WARM_UP);
        let took = sleepers::round_trips(sleepers::pair(&settings, BYTES), ROUND_TRIPS);
        println!("{transport}{suffix} {:.2}", micros(took));
    }
}

/// Microseconds of one round trip.
fn micros(all: Duration) -> f64 {
    all.as_secs_f64() * 1e6 / ROUND_TRIPS as f64
}

/// Measures blocking round trips over a bare TCP connection.
fn over_tcp() -> Duration {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut ours = TcpStream::connect(address).expect("a connection");
    let (mut theirs, _) = listener.accept().expect("a connection");
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true).expect("a TCP socket");
    }
    let answer = move || {
        let mut bytes = [0; BYTES];
        for _ in 0..WARM_UP + ROUND_TRIPS {
            theirs.read_exact(&mut bytes).expect("a message comes");
            theirs.write_all(&bytes).expect("a message leaves");
        }
    };
    let mut go = |count| {
        let (start, mut bytes) = (Instant::now(), [0; BYTES]);
        for _ in 0..count {
            ours.write_all(&bytes).expect("a message leaves");
            ours.read_exact(&mut bytes).expect("a message comes");
        }
        start.elapsed()
    };
    thread::scope(|scope| {
        scope.spawn(answer);
        go(WARM_UP);
        go(ROUND_TRIPS)
    })
}
