//! Sends and receives datagrams in batches, for the software NIC.
//!
//! A system call for each packet of 4 KiB reaches 10 Gbit/s. The kernel's segmentation offload carries
//! up to 64 packets through the network stack as one and reaches ten times that. `sendmmsg` or io_uring
//! gain next to nothing there. So [`TxSocket`] sends a train of equal packets by one `sendmsg` with
//! `UDP_SEGMENT`, gathered from their locations. [`RxSocket`] receives such trains by `UDP_GRO` and
//! returns the single datagrams. Both sockets also work without offload, at lower speed.
//!
//! Checksums: rxe sends UDP checksum 0 over IPv6, so the receiving socket accepts it
//! (`UDP_NO_CHECK6_RX`). Our own packets have checksums: `UDP_SEGMENT` needs them, adapters compute
//! them, and loopback skips them.

mod rx;
mod tx;

pub use rx::{Datagram, OTHERS_MAX, RxBatch, RxSocket};
pub(crate) use tx::SOURCE_PORTS;
pub use tx::{PIECES_MAX, SEGMENTS_MAX, SendError, TxSocket};

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

/// Maximum bytes of a datagram: IPv4's limit minus its header and UDP's.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Maximum bytes of a train.
pub const TRAIN_BYTES_MAX: usize = invar_core::roce::qp::TRAIN_BYTES_MAX as usize;

/// Requested size of the socket buffers. The kernel counts about 70 KiB for a train, and the buffer must
/// last while the receiver is not scheduled for a few milliseconds.
pub const BUFFER_BYTES: usize = 16 << 20;

// From linux/udp.h; the libc crate defines this constant for other targets only.
const UDP_NO_CHECK6_RX: c_int = 102;

/// Makes a non-blocking UDP socket at `addr`.
fn bind(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// Grows a buffer by `SO_RCVBUFFORCE` or `SO_SNDBUFFORCE`, which needs root. Otherwise grows it as far
/// as `net.core.*mem_max` allows.
fn grow_buffer(socket: &Socket, force: c_int, plain: c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, force, BUFFER_BYTES as c_int)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, plain, BUFFER_BYTES as c_int))
}

/// Calls `setsockopt(2)` for an option of type `int`.
fn set_option(socket: &Socket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: The pointer and length are those of `value`, which outlives the call.
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

/// A control message (`struct cmsghdr` and its data), including room for padding.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control<T> {
    header: libc::cmsghdr,
    data: T,
    // Padding to the alignment of the data to send, a u16, so that the kernel gets no uninitialized
    // byte.
    _padding: [u8; 14],
}

impl<T: Copy> Control<T> {
    const LEN: usize = size_of::<libc::cmsghdr>() + size_of::<T>();

    fn new(level: c_int, kind: c_int, data: T) -> Self {
        // SAFETY: The type consists of integers and, with musl, padding, for which all zeros is a valid
        // value.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = Self::LEN as _;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        Control { header, data, _padding: [0; 14] }
    }
}

/// Makes the header of a message with one gather or scatter list.
///
/// The caller keeps the pointers valid until the system call is over.
pub(crate) fn message_header(
    name: *mut libc::c_void,
    name_len: libc::socklen_t,
    pieces: *mut libc::iovec,
    pieces_len: usize,
) -> libc::msghdr {
    // SAFETY: The type consists of integers, pointers and, with musl, padding, for which all zeros is a
    // valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name;
    header.msg_namelen = name_len;
    header.msg_iov = pieces;
    header.msg_iovlen = pieces_len as _;
    header
}

#[cfg(test)]
mod tests;
