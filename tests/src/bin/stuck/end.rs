//! An end of a connection, which works well until the fault begins.

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use invar::{
    Device, DeviceKind, Error, Handle, Listener, MemoryRegion, RecvComm, Request, SendComm,
    Settings,
};
use invar_testkit::library::first_device;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::family::{ADDRESSES, begin, go_on, is_begun, park, read_when_there, write_whole};

/// Long enough for several packets.
const BYTES: usize = 256 << 10;
const TAG: u32 = 0x51;
/// Bytes of address space of a process that runs out of memory.
const MEMORY_MAX: u64 = 4 << 30;
/// Number of messages before the fault.
const MESSAGES: usize = 50;

pub(crate) fn run(dir: &Path, role: &str, fault: &str) -> ExitCode {
    crate::family::log_to_stderr();
    let settings = Settings::from_env().expect("valid settings");
    let done = match role {
        "send" => send(dir, fault, &settings),
        "relay" => relay(dir, &settings),
        role => recv(dir, role, fault, &settings),
    };
    if let Err(error) = done {
        eprintln!("error: {error}");
    }
    park()
}

/// The device of an end. The faults of the network are of IPv4.
fn device(host: usize, settings: &Settings) -> Result<Device, Error> {
    match settings.takes(DeviceKind::Soft) {
        true => Device::open_at(format!("{}:0", ADDRESSES[host]).parse().expect("an address")),
        false => Ok(first_device(settings)),
    }
}

/// Accepts a connection, whose handle is in the file `handle`.
fn accept(
    dir: &Path,
    handle: &str,
    device: &Device,
    settings: &Settings,
) -> Result<RecvComm, Error> {
    let listener = Listener::bind(device, settings)?;
    write_whole(&dir.join(handle), listener.handle().as_bytes());
    listener.accept_within(Duration::from_secs(20))
}

/// Connects to the handle in the file `handle`.
fn connect(
    dir: &Path,
    handle: &str,
    device: &Device,
    settings: &Settings,
) -> Result<SendComm, Error> {
    let bytes = read_when_there(&dir.join(handle));
    let handle = Handle::from_bytes(bytes.as_slice().try_into().expect("a handle"))?;
    SendComm::connect(device, &handle, settings)?.wait()
}

/// Receives each message and sends it on, until the next process takes none.
fn relay(dir: &Path, settings: &Settings) -> Result<(), Error> {
    let device = device(1, settings)?;
    let mut send = connect(dir, "last", &device, settings)?;
    let mut recv = accept(dir, "recv", &device, settings)?;
    let memory = MemoryRegion::new(&device, BYTES)?;
    for message in 0.. {
        if message == MESSAGES {
            begin(dir, "relay");
        }
        receive(&mut recv, &[(&memory, 0..BYTES, TAG)])?;
        let sent = begin_send(&mut send, &memory, BYTES)?;
        while send.test(&sent)?.is_none() {
            thread::yield_now();
        }
        go_on(dir, "relay");
    }
    Ok(())
}

/// Receives a message, or a group.
fn receive(recv: &mut RecvComm, bufs: &[(&MemoryRegion, Range<usize>, u32)]) -> Result<(), Error> {
    let receive = loop {
        if let Some(receive) = recv.irecv(bufs)? {
            break receive;
        }
        thread::yield_now();
    };
    while recv.test(&receive)?.is_none() {
        thread::yield_now();
    }
    Ok(())
}

/// Begins to send a message once the peer has posted its receive.
fn begin_send(send: &mut SendComm, from: &MemoryRegion, len: usize) -> Result<Request, Error> {
    loop {
        if let Some(request) = send.isend(from, 0..len, TAG)? {
            return Ok(request);
        }
        thread::yield_now();
    }
}

/// Receives messages. `role` is the process' name, and that of its handle's file.
fn recv(dir: &Path, role: &str, fault: &str, settings: &Settings) -> Result<(), Error> {
    let device = device(usize::from(role == "recv"), settings)?;
    let mut recv = accept(dir, role, &device, settings)?;
    let to = MemoryRegion::new(&device, BYTES)?;
    for message in 0.. {
        if message == MESSAGES {
            begin(dir, role);
        }
        let has_begun = is_begun(dir);
        match fault {
            "no receive" if has_begun => park(),
            "endless loop" if has_begun => loop {
                std::hint::spin_loop();
            },
            "memory" if has_begun => take_all_memory(),
            "no test" if has_begun => {
                while recv.irecv(&[(&to, 0..BYTES, TAG)])?.is_some() {}
                park();
            }
            _ => {}
        }
        let tag = if has_begun && fault == "other tag" { TAG + 1 } else { TAG };
        let bufs = [(&to, 0..BYTES / 2, tag), (&to, BYTES / 2..BYTES, TAG + 2)];
        let bufs = if has_begun && fault == "group" { &bufs[..] } else { &bufs[..1] };
        let bufs: Vec<_> = match bufs {
            [_] => vec![(&to, 0..BYTES, tag)],
            group => group.to_vec(),
        };
        receive(&mut recv, &bufs)?;
        go_on(dir, role);
        if fault == "slow receiver" && has_begun {
            thread::sleep(Duration::from_millis(500));
        }
    }
    Ok(())
}

fn send(dir: &Path, fault: &str, settings: &Settings) -> Result<(), Error> {
    let device = device(0, settings)?;
    let mut send = connect(dir, "recv", &device, settings)?;
    let from = MemoryRegion::new(&device, BYTES)?;
    let mut message = 0;
    loop {
        if message == MESSAGES {
            begin(dir, "send");
        }
        message += 1;
        if fault == "no send" && is_begun(dir) {
            park();
        }
        let len = if fault == "group" { BYTES / 2 } else { BYTES };
        let request = begin_send(&mut send, &from, len)?;
        if fault == "no test of sends" && is_begun(dir) {
            continue;
        }
        while send.test(&request)?.is_none() {
            thread::yield_now();
        }
        go_on(dir, "send");
    }
}

/// Takes memory until the process, which may have only so much, ends.
fn take_all_memory() -> ! {
    let limit = Rlimit { current: Some(MEMORY_MAX), maximum: Some(MEMORY_MAX) };
    setrlimit(Resource::As, limit).expect("a lower limit");
    let mut taken = Vec::<Vec<u8>>::new();
    loop {
        taken.push(Vec::with_capacity(1 << 20));
    }
}
