//! The socket transport beside a bare TCP stream: two processes over loopback, both polling.
//!
//! `bench_socket LINK WORK SIZE COUNT WINDOW`, where LINK is `raw`, a stream with the congestion
//! control that the transport has within a host, `raw-system`, one with the system's, or how many
//! threads and sockets a thread the transport is asked for: `0x1`, `4x4`; WORK is `stream` or
//! `pingpong`. Prints seconds for COUNT messages of SIZE bytes, WINDOW of them under way; or
//! nanoseconds of half a round trip, the median of COUNT.

#![allow(clippy::print_stdout, reason = "a command line tool")]

mod comm;
mod raw;

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// No end waits longer for the other.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Both ways between two processes.
trait Link {
    /// Sends so many messages.
    fn send(&mut self, count: usize);
    /// Receives so many.
    fn recv(&mut self, count: usize);
    /// Sends one and receives one; the latter first, if `echo`.
    fn exchange(&mut self, echo: bool);
}

/// What is to be measured.
#[derive(Clone, Copy)]
struct Shape {
    size: usize,
    window: usize,
}

/// Where to find the other process: what it says in one line.
trait Meeting {
    /// Whoever waits for the other to come, and where that is.
    fn listen() -> (Self, String)
    where
        Self: Sized;
    /// The link, once the other is there too; `peer` is where it waits.
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
            // Both have closed then, and neither before the other is done.
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

/// Both processes: the first starts the second, and each tells the other where it waits.
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

/// Asks until there is an answer.
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
