//! A client that continues with a new connection after its device has failed.
//!
//! `reconnect rxe_a rxe_b 'ip link set veth0 down' 'ip link set veth0 up'` sends messages from the first
//! device to the second, which another process has. It runs the first command, and the second command once
//! its sends fail. Then it connects again, by the same open device. When the new connection is gone too, the
//! client holds no more of the kernel's objects than before the first connection.

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use invar::{Device, Handle, Listener, MemoryRegion, SendComm, Settings};
use invar_testkit::child::Killed;

const MESSAGE_BYTES: usize = 256 << 10;
/// Messages that show that a connection works.
const MESSAGES: u32 = 20;
const TAG: u32 = 7;
/// A message takes less time, and so does the notice of a fault.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time in which a mended device works again.
const MENDED_WITHIN: Duration = Duration::from_secs(30);

type Done<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["serve", nic] => serve(nic),
        [nic, peer, cause, undo] => client(nic, peer, cause, undo),
        _ => Err("usage: reconnect NIC PEER_NIC CAUSE UNDO".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reconnect: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says where it is to be found, and receives from one client after the other.
fn serve(nic: &str) -> Done<()> {
    let device = Device::open(nic)?;
    let listener = Listener::bind(&device, &Settings::from_env()?)?;
    let region = MemoryRegion::new(&device, MESSAGE_BYTES)?;
    writeln!(io::stdout(), "{}", listener.handle().hex())?;
    loop {
        let mut comm = listener.accept_within(2 * TIMEOUT)?;
        // The client says when it has had enough, and so does its fault.
        while comm.recv(&region, 0..MESSAGE_BYTES, TAG, TIMEOUT).is_ok() {}
    }
}

fn client(nic: &str, peer: &str, cause: &str, undo: &str) -> Done<()> {
    let server =
        Command::new(env::current_exe()?).args(["serve", peer]).stdout(Stdio::piped()).spawn()?;
    let mut server = Killed(server);
    let mut line = String::new();
    let stdout = server.0.stdout.take().ok_or("no pipe")?;
    BufReader::new(stdout).read_line(&mut line)?;
    let handle = Handle::from_hex(line.trim())?;

    let device = Device::open(nic)?;
    let region = MemoryRegion::new(&device, MESSAGE_BYTES)?;
    let before = held()?;
    let mut comm = connect(&device, &handle)?;
    send(&mut comm, &region)?;
    run(cause)?;
    let start = Instant::now();
    let error = loop {
        match comm.send(&region, 0..MESSAGE_BYTES, TAG, TIMEOUT) {
            Ok(_) if start.elapsed() < TIMEOUT => {}
            Ok(_) => return Err("the fault is none".into()),
            Err(error) => break error,
        }
    };
    drop(comm);
    writeln!(io::stdout(), "failed: {error}")?;
    run(undo)?;

    let mended = Instant::now();
    let again = || send(&mut connect(&device, &handle)?, &region);
    while let Err(error) = again() {
        if mended.elapsed() >= MENDED_WITHIN {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(100));
    }
    writeln!(io::stdout(), "again: {MESSAGES} messages")?;
    match held()? {
        after if after == before => writeln!(io::stdout(), "nothing is left")?,
        after => writeln!(io::stdout(), "before: {before:?}; after: {after:?}")?,
    }
    Ok(())
}

/// Counts the objects that the kernel holds for this process: each kind of RDMA resource, and files. The file
/// of the flight recorder stays after a failure.
fn held() -> Done<[usize; 5]> {
    let files = fs::read_dir("/proc/self/fd")?.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let files = files.filter(|file| file.extension().is_none_or(|of| of != "rec")).count();
    let pid = std::process::id().to_string();
    let count = |kind: &str| -> Done<usize> {
        let output = Command::new("rdma").args(["resource", "show", kind, "pid", &pid]).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?.lines().count()),
            false => Err(String::from_utf8_lossy(&output.stderr).into()),
        }
    };
    Ok([count("qp")?, count("cq")?, count("mr")?, count("pd")?, files])
}

fn connect(device: &Device, handle: &Handle) -> Done<SendComm> {
    Ok(SendComm::connect(device, handle, &Settings::from_env()?)?.wait()?)
}

fn send(comm: &mut SendComm, region: &MemoryRegion) -> Done<()> {
    for _ in 0..MESSAGES {
        comm.send(region, 0..MESSAGE_BYTES, TAG, TIMEOUT)?;
    }
    Ok(())
}

fn run(command: &str) -> Done<()> {
    match Command::new("bash").args(["-c", command]).status()? {
        status if status.success() => Ok(()),
        status => Err(format!("{command}: {status}").into()),
    }
}
