//! Measures the socket transport beside a bare TCP stream. Two processes poll over loopback.
//!
//! Usage: `bench_socket LINK WORK SIZE COUNT WINDOW`.
//!
//! - LINK `raw` is a TCP stream with the congestion control that the transport uses within a host.
//! - LINK `raw-system` is a TCP stream with the system's congestion control.
//! - LINK `0x1` or `4x4` is the transport with this number of threads, and of sockets for each thread.
//! - WORK `stream` prints the seconds for COUNT messages of SIZE bytes, of which WINDOW are in flight.
//! - WORK `pingpong` prints half a round trip in nanoseconds, the median of COUNT.

#![allow(clippy::print_stdout, reason = "a command line tool")]

mod comm;
mod raw;

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time that an end waits for its peer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A link in both directions between two processes.
trait Link {
    /// Sends `count` messages.
    fn send(&mut self, count: usize);
    /// Receives `count` messages.
    fn recv(&mut self, count: usize);
    /// Sends one message and receives one. With `echo` it receives first.
    fn exchange(&mut self, echo: bool);
}

/// The size of the messages and the number of them in flight.
#[derive(Clone, Copy)]
struct Shape {
    size: usize,
    window: usize,
}

/// A way for two processes to find each other by a line of text.
trait Meeting {
    /// Starts to listen. Returns the listener and its address as text.
    fn listen() -> (Self, String)
    where
        Self: Sized;
    /// Makes the link when the other process is there too. `peer` is the address at which that process
    /// listens.
    fn join(self, peer: &str, is_first: bool, shape: Shape) -> Box<dyn Link>;
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let [link, work, numbers @ ..] = args.as_slice() else { panic!("LINK WORK SIZE COUNT WINDOW") };
    let number = |i: usize| -> usize { numbers[i].parse().expect("a number") };
    let (shape, count) = (Shape { size: number(0), window: number(2) }, number(1));
    let peer = numbers.get(3).map(String::as_str);
    let (mut link, child) = match link.as_str() {
        "raw" => meet::<raw::Listening<false>>(peer, shape),
        "raw-system" => meet::<raw::Listening<true>>(peer, shape),
        layout => {
            comm::choose_layout(layout);
            meet::<comm::Listening>(peer, shape)
        }
    };
    match (work.as_str(), peer) {
        ("stream", Some(_)) => {
            link.send(warm_up(count, shape) + count);
            // The receiver's message arrives when both ends have finished, so neither closes too early.
            link.recv(1);
        }
        ("stream", None) => {
            link.recv(warm_up(count, shape));
            let start = Instant::now();
            link.recv(count);
            println!("{}", start.elapsed().as_secs_f64());
            link.send(1);
        }
        (_, Some(_)) => (0..count + count / 8).for_each(|_| link.exchange(true)),
        (_, None) => {
            (0..count / 8).for_each(|_| link.exchange(false));
            let mut times: Vec<Duration> = (0..count)
                .map(|_| {
                    let start = Instant::now();
                    link.exchange(false);
                    start.elapsed() / 2
                })
                .collect();
            times.sort_unstable();
            println!("{}", times[count / 2].as_nanos());
        }
    }
    if let Some(mut child) = child {
        assert!(child.wait().expect("a child").success());
    }
}

fn warm_up(count: usize, shape: Shape) -> usize {
    (count / 8).max(shape.window)
}

/// Connects both processes. The first process starts the second, and each tells the other its address.
fn meet<M: Meeting>(peer: Option<&str>, shape: Shape) -> (Box<dyn Link>, Option<Child>) {
    let (listening, here) = M::listen();
    if let Some(peer) = peer {
        println!("{here}");
        return (listening.join(peer, false, shape), None);
    }
    let mut child = Command::new(env::current_exe().expect("a path"))
        .args(env::args().skip(1))
        .arg(&here)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe").take(1 << 10));
    let mut there = String::new();
    said.read_line(&mut there).expect("where the child waits");
    (listening.join(there.trim(), true, shape), Some(child))
}

/// Repeats `ask` until it has an answer.
fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let mut deadline = None;
    loop {
        for _ in 0..1 << 20 {
            if let Some(answer) = ask() {
                return answer;
            }
        }
        let deadline = deadline.get_or_insert_with(|| Instant::now() + TIMEOUT);
        assert!(Instant::now() < *deadline, "the other process does not go on");
    }
}
