//! Datagrams in batches, for the software NIC.
//!
//! A system call for each packet of 4 KiB reaches 10 Gbit/s; the kernel's segmentation offload
//! carries up to 64 of them through the network stack as one and reaches ten times that, where
//! `sendmmsg` or io_uring gain next to nothing. So [`TxSocket`] sends a train of equal packets by
//! one `sendmsg` with `UDP_SEGMENT`, gathered from wherever they lie, and [`RxSocket`] receives
//! such trains by `UDP_GRO` and hands them out cut. Both work without, slower.
//!
//! Checksums: rxe sends UDP checksum 0 over IPv6, which is received (`UDP_NO_CHECK6_RX`). Ours
//! stay on: `UDP_SEGMENT` needs them, adapters compute them, and loopback never does.

mod rx;
mod tx;

pub use rx::{Datagram, RxBatch, RxSocket};
pub use tx::{PIECES_MAX, SEGMENTS_MAX, SendError, TxSocket};

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

/// Most bytes in one datagram: what IPv4 leaves after its header and UDP's.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Most bytes in one train.
pub const TRAIN_BYTES_MAX: usize = invar_core::roce::qp::TRAIN_BYTES_MAX as usize;

/// Socket buffers to ask for: a train counts as about 70 KiB, and the buffer has to ride out a
/// receiver that is not scheduled for a few milliseconds.
const BUFFER_BYTES: usize = 16 << 20;

// linux/udp.h; the libc crate has these for other targets only.
const UDP_NO_CHECK6_RX: c_int = 102;

/// A non-blocking UDP socket at `addr`.
fn bind(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// `SO_RCVBUFFORCE` or `SO_SNDBUFFORCE`, for which one needs to be root, or else as far as
/// `net.core.*mem_max` allows.
fn grow_buffer(socket: &Socket, force: c_int, plain: c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, force, BUFFER_BYTES as c_int)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, plain, BUFFER_BYTES as c_int))
}

/// `setsockopt(2)` of an option that is an `int`.
fn set_option(socket: &Socket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the pointer and length are those of `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A control message (`struct cmsghdr` and its data), room for padding included.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control<T> {
    header: libc::cmsghdr,
    data: T,
    // Up to the alignment of what is sent, a u16: the kernel is given no byte that is not written.
    _padding: [u8; 14],
}

impl<T: Copy> Control<T> {
    const LEN: usize = size_of::<libc::cmsghdr>() + size_of::<T>();

    fn new(level: c_int, kind: c_int, data: T) -> Self {
        // SAFETY: integers and, with musl, padding: all zeros is a value.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = Self::LEN as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        Control { header, data, _padding: [0; 14] }
    }
}

/// The header of a message of one gather or scatter list.
///
/// The pointers are the caller's to keep valid until the system call is over.
pub(crate) fn message_header(
    name: *mut libc::c_void,
    name_len: libc::socklen_t,
    pieces: *mut libc::iovec,
    pieces_len: usize,
) -> libc::msghdr {
    // SAFETY: integers and pointers, and with musl padding: all zeros is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name;
    header.msg_namelen = name_len;
    header.msg_iov = pieces;
    header.msg_iovlen = pieces_len as _;
    header
}

#[cfg(test)]
mod tests;
