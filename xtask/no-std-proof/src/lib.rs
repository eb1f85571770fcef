//! A program without std, alloc or operating system that uses invar-core.
//!
//! A static library holds every function of its dependencies, called or not, but generic ones only
//! as far as something uses them.

#![no_std]

mod port;

use core::fmt::{self, Write};
use core::net::{IpAddr, Ipv6Addr};
use core::panic::PanicInfo;

use invar_core::auth::Session;
use invar_core::comm::{FlushBuf, RecvBuf, SendBuf};
use invar_core::conn::{Acceptor, CommSettings, Connector};
use invar_core::error::Error;
use invar_core::mr_cache::{Lookup, MrCache, MrSlot};
use invar_core::nic::{Access, Gid, NicError, QpCap, QpTransition, RecvWr, SendWr, Verb};
use invar_core::roce::Packet;
use invar_core::roce::qp::Qp;
use spin::{Mutex, Once};

use port::Nothing;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A line of text in place.
struct Line {
    bytes: [u8; 120],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// A connection and its messages: what a NIC's port runs. Gives the bytes of its error's text.
#[unsafe(no_mangle)]
pub extern "C" fn invar_no_std_connection(now_ns: u64) -> usize {
    let mut line = Line { bytes: [0; 120], len: 0 };
    // No line is as long as some errors.
    let _ = connection(now_ns).map_err(|error| write!(line, "{error}"));
    line.len
}

fn connection(now_ns: u64) -> Result<(), Error> {
    let settings = CommSettings::default();
    let mut connector = Connector::new(Nothing, (), Nothing, None, settings, now_ns);
    let mut acceptor = Acceptor::new(Nothing, (), Nothing, Session::UNKNOWN_PEER, settings, now_ns);
    let (send, recv) = (connector.poll(now_ns)?, acceptor.poll(now_ns)?);
    let (Some(mut send), Some(mut recv)) = (send, recv) else { return Ok(()) };
    if let Some(received) = recv.irecv(&[RecvBuf::default()])? {
        recv.test(&received)?;
    }
    if let Some(sent) = send.isend(&SendBuf::default(), 0)? {
        send.test(&sent)?;
    }
    let _ = recv.iflush(&[FlushBuf::default()])?;
    send.check_peer(0)?;
    recv.check_peer(0)?;
    recv.close().poll();
    Ok(())
}

/// A queue pair of RoCEv2 in software, given a packet.
#[unsafe(no_mangle)]
pub extern "C" fn invar_no_std_queue_pair(now_ns: u64, byte: u8) -> bool {
    let mut env = Nothing;
    let Ok(mut qp) = Qp::<64, 64>::new(1, QpCap::default()) else { return false };
    let _ = qp.modify(&QpTransition::Reset, &mut env);
    let _ = qp.post_send(&SendWr::default(), &mut env);
    let _ = qp.post_recv(&RecvWr::default(), &mut env);
    if let Ok(packet) = Packet::decode(&[byte; 64]) {
        qp.handle_packet(now_ns, &packet, &mut env);
    }
    qp.handle_timeout(now_ns, &mut env);
    qp.poll_transmit(now_ns, &mut env).is_some()
}

/// The registrations of the device. Several contexts share them: threads, cores, interrupts.
static REGISTRATIONS: Once<Mutex<MrCache<u32, [MrSlot<u32>; 4]>>> = Once::new();

/// Registrations that are cached. Each context may call this at any time.
#[unsafe(no_mangle)]
pub extern "C" fn invar_no_std_mr_cache(addr: u64, len: u64) -> usize {
    let slots = || core::array::from_fn(|_| MrSlot::default());
    let shared = REGISTRATIONS.try_call_once(|| MrCache::new(slots(), 4096).map(Mutex::new));
    let Ok(shared) = shared else { return 0 };
    let mut cache = shared.lock();
    if let Ok(Lookup::Miss(pages)) = cache.lookup(0, Access::LOCAL_WRITE, addr, len)
        && let Ok(inserted) = cache.insert(pages, 1)
    {
        let _ = cache.release(inserted.handle);
    }
    cache.len()
}

/// Formats what a device would print and gives its length, so that nothing is optimised away.
#[unsafe(no_mangle)]
pub extern "C" fn invar_no_std_proof() -> usize {
    let mut line = Line { bytes: [0; 120], len: 0 };
    let gid = Gid::from(IpAddr::V6(Ipv6Addr::LOCALHOST));
    let error = NicError::new(Verb::PostSend, 12, "send queue full");
    match write!(line, "{gid}: {error}") {
        Ok(()) => line.len,
        Err(fmt::Error) => 0,
    }
}
