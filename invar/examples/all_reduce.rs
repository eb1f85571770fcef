//! Sums vectors of several processes: this program starts the ranks as children of itself.
//!
//! ```sh
//! cargo run --release --example all_reduce          # 4 ranks
//! cargo run --release --example all_reduce -- 8
//! ```
//!
//! The ranks share memory. With `NCCL_SHM_DISABLE=1` they use the network that `INVAR_TRANSPORT` and
//! `NCCL_SOCKET_IFNAME` name.

#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io};

use invar::{Communicator, Hub, RedOp, Settings, UniqueId};

/// Elements of each rank's vector.
const COUNT: usize = 1 << 20;
/// How long the ranks may take to join.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        [] => parent(4),
        [nranks] => parent(nranks.parse()?),
        [rank, nranks] => child(rank.parse()?, nranks.parse()?),
        _ => Err("usage: all_reduce [RANKS]".into()),
    }
}

/// Opens the rendezvous, starts the ranks, and gives each the communicator's id.
fn parent(nranks: u32) -> Result<(), Box<dyn Error>> {
    let settings = Settings::from_env()?;
    let address = "127.0.0.1:0".parse()?;
    let hub = Hub::listen(address, settings.tcp_ports(), nranks, None, TIMEOUT)?;
    let mut children = Vec::new();
    for rank in 0..nranks {
        let mut command = Command::new(env::current_exe()?);
        command.args([rank.to_string(), nranks.to_string()]).stdin(Stdio::piped());
        let mut child = command.spawn()?;
        // Not an argument of the command: other users could read the id there, and join.
        child.stdin.take().expect("a pipe").write_all(hub.id().as_bytes())?;
        children.push(child);
    }
    let mut failed = 0;
    for mut child in children {
        failed += u32::from(!child.wait()?.success());
    }
    if failed > 0 {
        return Err(format!("{failed} of {nranks} ranks failed").into());
    }
    println!("all {nranks} ranks have the sum");
    Ok(())
}

/// One rank: joins the others and sums with them.
fn child(rank: u32, nranks: u32) -> Result<(), Box<dyn Error>> {
    let mut id = [0; 128];
    io::stdin().read_exact(&mut id)?;
    let settings = Settings::from_env()?.connect_timeout(TIMEOUT);
    let communicator = Communicator::join(&UniqueId::from_bytes(id)?, rank, nranks, &settings)?;

    let input: Vec<f32> = (0..COUNT).map(|i| (i % 100) as f32 + rank as f32).collect();
    let mut sum = vec![0.0; COUNT];
    let start = Instant::now();
    communicator.all_reduce(&input, &mut sum, RedOp::Sum)?;
    let took = start.elapsed();

    let of_ranks: u32 = (0..nranks).sum();
    for (i, value) in sum.iter().enumerate() {
        let want = ((i % 100) as u32 * nranks + of_ranks) as f32;
        if *value != want {
            return Err(format!("element {i} is {value}, not {want}").into());
        }
    }
    let transport = communicator.transport();
    println!("rank {rank} of {nranks}: {COUNT} elements over {transport} in {took:.1?}");
    Ok(())
}
